//! Requests are given a route and a key, and refused if they are too ambiguous (guarantee G6). The
//! store does not matter here, so these run over `SQLite`.

mod modes;

use crate::fencing::keys::key_of;
use crate::support::{Request, delete, fenced, get, post, put, request};

#[tokio::test]
async fn what_no_route_takes_can_be_refused_altogether() {
    let (upstream, proxy) = fenced("unmatched: refuse").await;
    proxy.refuse(get("/elsewhere"), 404, "no-route").await;
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_most_specific_route_wins() {
    let (upstream, proxy) = fenced(
        "routes:
         - { path: '/{*any}', resource: 'any:{any}' }
         - { path: '/orders/{id}', resource: 'order:{id}' }
         - { path: '/orders/special', resource: 'special' }
         - { path: '/orders/{id}/{*rest}', resource: 'below:{id}' }",
    )
    .await;
    for (path, key) in [
        ("/orders/special", "special"),
        ("/orders/%73pecial", "special"),
        ("/orders/7", "order:7"),
        ("/orders/7/lines/1", "below:7"),
    ] {
        assert_eq!(
            key_of(&upstream, &proxy, put(path).token(1)).await,
            key,
            "{path}"
        );
    }
    assert!(
        key_of(&upstream, &proxy, put("/x").token(1))
            .await
            .starts_with("any:")
    );
}

#[tokio::test]
async fn methods_that_no_route_allows_are_refused() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: '/orders/{id}', resource: 'order:{id}', methods: [PUT, DELETE] }]",
    )
    .await;
    for method in ["POST", "PATCH", "MKCOL", "put", "Delete"] {
        let answer = proxy.send(request(method, "/orders/7").token(1)).await;
        answer.assert_problem(405, "method-not-allowed");
        let allow = answer.header("allow").expect("RFC 9110, section 15.5.6");
        assert!(allow.contains("PUT") && allow.contains("DELETE"), "{allow}");
    }
    proxy.forward(delete("/orders/7").token(1)).await;
    proxy.forward(get("/orders/7")).await;
    assert_eq!(upstream.count(), 2);
}

/// Requests that have two readings, each in its own way.
fn doubtful() -> Vec<Request> {
    let write = |path: &str| put(path).token(1);
    let json = |request: Request| request.body(r#"{"id":"7"}"#);
    vec![
        write("/orders/7").header("X-Original-URL", "/orders/8"),
        write("/orders/7").header("x_rewrite_url", "/orders/8"),
        json(write("/members")),
        json(write("/members").header("Content-Type", "text/plain")),
        write("/orders/7")
            .header("Idempotency-Key", "a")
            .header("Idempotency-Key", "a"),
        write("/orders/7%3F"),
        write("/orders/7%23"),
        write("/orders/7%2541"),
    ]
}

fn routes(mode: &str) -> String {
    format!(
        "routes:
         - {{ path: '/orders/{{id}}', resource: 'order:{{id}}', mode: {mode} }}
         - {{ path: /members, resource: 'member:{{json.id}}', mode: {mode} }}"
    )
}

#[tokio::test]
async fn what_names_two_targets_or_has_two_readings_is_refused() {
    let (upstream, proxy) = fenced(&routes("enforce")).await;
    for request in doubtful() {
        let shown = format!("{request:?}");
        let answer = proxy.send(request).await;
        assert_eq!(answer.status(), 400, "{shown}");
        answer.assert_problem(400, "ambiguous-request");
    }
    assert_eq!(upstream.count(), 0);
    let (_, proxy) = fenced(&routes("enforce")).await;
    let claim = |target: &str| {
        post("/.well-known/fencing/claim")
            .token(9)
            .header("X-Fencing-Target", format!("PUT {target}"))
    };
    for claim in [
        claim("/orders/7").header("X-Original-URL", "/orders/8"),
        claim("/members").body(r#"{"id":"7"}"#),
        claim("/orders/7%3F"),
    ] {
        let shown = format!("{claim:?}");
        let answer = proxy.send(claim).await;
        assert_eq!(answer.status(), 400, "{shown}");
    }
    assert_eq!(proxy.token("order:7").await, None);
    let typed = claim("/members")
        .header("Content-Type", "application/json")
        .body(r#"{"id":"7"}"#);
    assert_eq!(proxy.send(typed).await.status(), 204);
    assert_eq!(proxy.token("member:7").await, Some(9));
}

#[tokio::test]
async fn observe_counts_what_names_two_targets_or_has_two_readings() {
    let (upstream, proxy) = fenced(&routes("observe")).await;
    for request in doubtful() {
        proxy.forward(request).await;
    }
    let count = u32::try_from(doubtful().len()).expect("a few");
    let outcome = "observed-ambiguous-request";
    proxy.until_outcome(outcome, count).await;
    assert_eq!(upstream.count(), doubtful().len());
    assert_eq!(proxy.token("order:7").await, None);
}
