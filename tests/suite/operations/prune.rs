//! Marks that have not changed for long are forgotten, where an operator says so.

use serde_json::{Value, json};
use sqlx::Connection as _;

use super::commands::marks;
use crate::support::sql::sqlite;
use crate::support::{Proxy, Store, fenced, forwarded, or_return, over_both_stores, put};

const PRUNE: [&str; 5] = ["prune", "--unchanged-for", "720h", "--reason", "too many"];

/// As if the marks of these keys had not changed for 60 days.
async fn age(store: &Store, keys: &str) {
    let aged = |changed_at| {
        format!("UPDATE marks SET changed_at = {changed_at} WHERE resource LIKE '{keys}'")
    };
    if store.is_shared() {
        store.execute(&aged("now() - interval '60 days'")).await;
    } else {
        let mut file = store.file().await;
        sqlite(&mut file, &aged("changed_at - 60 * 86400000")).await;
        file.close().await.expect("closed");
    }
}

over_both_stores! {
    async fn a_prune_forgets_old_marks_and_no_others(store: Store) {
        let (upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
        for id in ["old-1", "old-2", "young", "used"] {
            proxy.forward(put(&format!("/orders/{id}")).token(50)).await;
        }
        // The file is this process's alone, and with a stop all epochs are over.
        proxy.stop().await;
        age(&store, "order:old-%").await;
        age(&store, "order:used").await;
        let proxy = Proxy::start(&config).await;
        // An equal token changes no mark, and opens an epoch.
        let (at_work, gate) = proxy.held(&upstream, put("/orders/used").token(50)).await;
        proxy.stale(put("/orders/old-1").token(49)).await;

        // What changes nothing needs no reason.
        let (good, said) = marks(&proxy, &PRUNE[..3]).await;
        assert!(!good && said.contains("`reason` is empty"), "{said}");
        let (good, said) = marks(&proxy, &[&PRUNE[..3], &["--dry-run"]].concat()).await;
        assert!(good && said == "2 marks would be deleted, 1 are in use\n", "{said}");
        assert_eq!(proxy.token("order:old-1").await, Some(50));
        let (good, said) = marks(&proxy, &PRUNE).await;
        assert!(good && said == "2 marks were deleted, 1 are in use\n", "{said}");
        for (id, mark) in [("old-1", None), ("old-2", None), ("young", Some(50)), ("used", Some(50))] {
            assert_eq!(proxy.token(&format!("order:{id}")).await, mark, "{id}");
        }
        gate.open();
        forwarded(at_work).await;
        // Its risk: any token is the first one again.
        proxy.send(put("/orders/old-1").token(3)).await.assert_forwarded();
        proxy.stale(put("/orders/young").token(49)).await;
        let rows = "SELECT count(*) FROM audit WHERE action = 'prune' AND resource = '*' \
                    AND reason = '2 marks, unchanged for 30days: too many'";
        if store.is_shared() {
            assert_eq!(store.number(rows).await, 1);
        }
        assert_eq!(proxy.count("fencepost_pruned_marks_total", &[]).await, 2);
        let line = proxy.log_of("message", "an operator pruned marks").await;
        assert_eq!((&line["deleted"], &line["level"]), (&2.into(), &"WARN".into()));

        let (good, said) = marks(&proxy, &[&PRUNE[..], &["--json"]].concat()).await;
        let told: Value = serde_json::from_str(&said).expect("JSON");
        assert!(good && told == json!({ "deleted": 0, "open": 1, "dry_run": false }), "{said}");
    }
}

/// What another proxy knows is forgotten before a mark is deleted: it takes no mark for lost.
#[tokio::test]
async fn another_proxy_takes_no_pruned_mark_for_lost() {
    let store = or_return!(Store::postgres().await);
    let (_upstream, config, mut first) =
        Proxy::with_config(&store, "store: { lease: 1s, timeout: 1s }").await;
    first.forward(put("/orders/7").token(50)).await;
    // Its epoch is closed then.
    first.stop().await;
    age(&store, "order:%").await;
    let (one, two) = (Proxy::start(&config).await, Proxy::start(&config).await);
    // A refusal by the store: the mark is known to the other proxy from now on.
    two.stale(put("/orders/7").token(49)).await;

    let body = json!({ "unchanged_for": "720h", "reason": "a test" });
    let first = one.command("/v1/prune", &body).await;
    assert_eq!((first.status(), first.retry_after()), (202, Some(3)));
    let announced = json!({ "announced": true, "again_in_seconds": 3 });
    assert_eq!(first.json(), announced);
    assert_eq!(one.token("order:7").await, Some(50), "not yet");
    let (good, said) = marks(&one, &PRUNE).await;
    let deleted = "1 marks were deleted, 0 are in use\n";
    assert!(good && said.starts_with(deleted), "{said}");
    two.forward(put("/orders/7").token(60)).await;
    for proxy in [&one, &two] {
        let regressions = proxy.count("fencepost_mark_regressions_total", &[]);
        assert_eq!(regressions.await, 0);
    }
    assert_eq!(two.token("order:7").await, Some(60));
}

#[tokio::test]
async fn a_wrong_prune_says_what_to_do() {
    let (_upstream, proxy) = fenced("{}").await;
    for (members, says) in [
        ("reason: a", "unchanged_for"),
        ("unchanged_for: 720h", "reason"),
        ("unchanged_for: 720h, reason: ' '", "reason"),
        ("unchanged_for: '720', reason: a", "720h"),
        ("unchanged_for: 59m, reason: a", "At least 1h"),
        ("unchanged_for: 720h, reason: a, prefix: \"\\n\"", "control"),
        ("unchanged_for: 720h, reason: a, all: true", "unknown field"),
    ] {
        let body = serde_saphyr::from_str(&format!("{{ {members} }}")).expect("YAML");
        let answer = proxy.command("/v1/prune", &body).await;
        let detail = answer.json()["detail"].to_string();
        assert_eq!(answer.status(), 400, "{detail}");
        assert!(detail.contains(says), "{detail}");
    }
    let (good, said) = marks(&proxy, &["prune", "--unchanged-for", "1m", "--reason", "a"]).await;
    assert!(!good && said.contains("At least 1h"), "{said}");
}
