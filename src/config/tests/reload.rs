//! Changes that a reload may make, and changes that need a restart.

use super::{BASE, good};

#[test]
fn a_reload_may_change_what_nothing_rests_upon() {
    let (old, _) = good(&format!(
        "{BASE}routes: [{{ path: /a, resource: a, mode: observe }}]\n"
    ));
    let (new, _) = good(
        "upstream: { url: http://b }\nstale_status: 409\nbarrier: { wait: 1s }\nroutes: [{ path: \
         /a, resource: a }, { path: /b, resource: b }]\n",
    );
    let (taken, kept) = old.reload_from(new).expect("nothing is fixed about it");
    assert_eq!(taken.stale_status.0, 409);
    assert_eq!(taken.routes.len(), 2);
    assert!(kept.is_empty(), "{kept:?}");
}

#[test]
fn limits_that_need_a_restart_stay_and_are_named() {
    let routes = "routes: [{ path: /a, resource: a }]\n";
    let (old, _) = good(&format!("{BASE}{routes}"));
    let (new, _) = good(&format!(
        "{BASE}{routes}stale_status: 409\nbarrier: {{ queue: 7 }}\nlimits: {{ in_flight: 9, \
         body_memory: 1MiB, idle_timeout: 9s }}\n"
    ));
    let wanted = format!("{:?}", new.limits);
    let (taken, kept) = old.reload_from(new).expect("nothing rests on them");
    assert_eq!(
        kept,
        [
            "limits.body_memory",
            "limits.idle_timeout",
            "limits.in_flight",
            "barrier.queue",
        ]
    );
    assert_eq!(taken.stale_status.0, 409);
    assert_eq!(taken.barrier.queue, old.barrier.queue);
    let limits = taken.limits;
    assert_eq!(limits.in_flight, old.limits.in_flight);
    assert_ne!(format!("{limits:?}"), wanted);
    assert_eq!(format!("{limits:?}"), format!("{:?}", old.limits));
}

#[test]
fn a_reload_never_changes_what_the_marks_rest_upon() {
    let routes = "routes: [{ path: /a, resource: a }]\n";
    let (old, _) = good(&format!("{BASE}{routes}"));
    for (text, reason) in [
        ("listen: 127.0.0.1:9", "listen"),
        ("admin: { listen: off }", "admin.listen"),
        ("store: { url: sqlite:other.db }", "store.url"),
        ("store: { namespace: other }", "store.namespace"),
        ("store: { lease: 6s }", "store.lease"),
        ("store: { timeout: 4s }", "store.timeout"),
        ("store: { cached_marks: 5 }", "store.cached_marks"),
        ("store: { migrate: false }", "store.migrate"),
        ("barrier: { settle: 11s }", "barrier.settle"),
    ] {
        let (new, _) = good(&format!("{BASE}{routes}{text}\n"));
        let reasons = old.reload_from(new).expect_err("it is fixed");
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].starts_with(reason), "{reasons:?}");
    }
    let (new, _) = good(&format!(
        "{BASE}{routes}listen: 127.0.0.1:9\nstore: {{ lease: 6s }}\n"
    ));
    let reasons = old.reload_from(new).expect_err("both are fixed");
    assert_eq!(reasons.len(), 2, "{reasons:?}");
}

#[test]
fn a_limit_that_is_taken_away_is_named() {
    let (old, _) = good(BASE);
    let (new, _) = good(&format!(
        "{BASE}limits: {{ connections_per_client: none, in_flight_per_client: none }}\n"
    ));
    let (taken, kept) = old.reload_from(new).expect("nothing rests on them");
    assert_eq!(
        kept,
        [
            "limits.connections_per_client",
            "limits.in_flight_per_client"
        ]
    );
    assert_eq!(taken.limits.connections_per_client, None);
}
