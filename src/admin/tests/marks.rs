//! `/v1/marks` over a real instance: reads, writes and refusals.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::{Method, Request, header};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::fixture::Admin;
use crate::admin::marks::BODY_LIMIT;
use crate::fencing::tests::{CallPlan, LOSS, broken, key, token};
use crate::metrics::Outcome;
use crate::rejections::{Rejection, RequestText};
use crate::routing::Token;
use crate::store::{AuditRow, InstanceId};

/// More than JavaScript's numbers can tell apart.
const BIG: i64 = 9_007_199_254_740_993;

#[tokio::test]
async fn lists_page_by_page() {
    let admin = Admin::new().await;
    for resource in ["order:a b", "order:b", "order:c", "order:d", "z"] {
        admin.set_mark(resource, BIG);
    }
    let resources = async |query: &str| {
        let list = admin.get(&format!("/v1/marks?{query}")).await.json();
        let rows = list["marks"].as_array().expect("a list").iter();
        let rows: Vec<Value> = rows.map(|row| row["resource"].clone()).collect();
        (json!(rows), list["next"].clone())
    };
    assert_eq!(
        resources("prefix=order%3A&after=order:a+b&limit=2").await,
        (json!(["order:b", "order:c"]), json!("order:c"))
    );
    assert_eq!(
        resources("prefix=order%3A&after=order:a+b&limit=3").await,
        (json!(["order:b", "order:c", "order:d"]), Value::Null)
    );
    let all = admin.get("/v1/marks").await.json();
    assert_eq!(
        all["marks"][0],
        json!({
            "resource": "order:a b",
            "mark": "9007199254740993",
            "spent": false,
            "era": 0,
            "since": "2023-11-14T22:13:20.123Z",
        })
    );
    for number in 0..100 {
        admin.set_mark(&format!("r{number:03}"), 1);
    }
    let (rows, next) = resources("").await;
    assert_eq!(
        (rows.as_array().map(Vec::len), next),
        (Some(100), json!("r095"))
    );
    for query in [
        "limit=0",
        "limit=1001",
        "limit=x",
        "prefx=a",
        "prefix=%00",
        "after=%0a",
    ] {
        admin
            .get(&format!("/v1/marks?{query}"))
            .await
            .problem(400, "malformed-request");
    }
}

fn rejection(resource: &str, number: i64, mark: Option<i64>, outcome: Outcome) -> Rejection {
    Rejection {
        at: SystemTime::UNIX_EPOCH,
        route: "/orders/{id}".into(),
        resource: Some(key(resource)),
        token: Token::new(number),
        mark: mark.and_then(Token::new),
        gap: mark.map(|mark| (mark - number).to_string()),
        outcome,
        status: 412,
        client: "127.0.0.1:5000".into(),
        request: RequestText {
            trace_id: mark.map(|_| "t".into()),
            ..RequestText::default()
        },
        times: 1,
        first_at: SystemTime::UNIX_EPOCH,
    }
}

#[tokio::test]
async fn a_view_has_the_refusals_and_the_audit_of_the_resource() {
    let admin = Admin::new().await;
    admin.set_mark("order:42", 7);
    for (resource, number) in [("order:42", 41), ("order:43", 40)] {
        let stale = rejection(resource, number, Some(43), Outcome::StaleToken);
        admin.state.rejections.push(stale);
    }
    let lost = rejection("order:42", 42, None, Outcome::OutcomeUnknown);
    admin.state.rejections.push(lost);
    admin.store.rows().audit.push(AuditRow {
        resource: key("order:42"),
        action: "override".into(),
        before: Some(token(43)),
        after: Some(token(7)),
        reason: "restored".into(),
        actor: "ann".into(),
        at_ms: 0,
    });
    let unknown = json!({
        "at": "1970-01-01T00:00:00.000Z", "route": "/orders/{id}", "resource": "order:42",
        "token": "42", "mark": null, "gap": null, "outcome": "outcome-unknown",
        "status": 412, "method": null, "path": null, "client": "127.0.0.1:5000",
        "forwarded_for": null, "user_agent": null, "request_id": null, "trace_id": null,
        "times": 1, "first_at": "1970-01-01T00:00:00.000Z",
    });
    let rejection = json!({
        "at": "1970-01-01T00:00:00.000Z", "route": "/orders/{id}", "resource": "order:42",
        "token": "41", "mark": "43", "gap": "2", "outcome": "stale-token",
        "status": 412, "method": null, "path": null, "client": "127.0.0.1:5000",
        "forwarded_for": null, "user_agent": null, "request_id": null, "trace_id": "t",
        "times": 1, "first_at": "1970-01-01T00:00:00.000Z",
    });
    assert_eq!(
        admin.get("/v1/marks/order:42").await.json(),
        json!({
            "resource": "order:42", "mark": "7", "spent": false, "era": 0,
            "since": "2023-11-14T22:13:20.123Z", "in_flight": 0, "waiting": 0,
            "instance": admin.rig.instance().name(), "unknown": [], "epochs": [],
            "rejections": [rejection],
            "latest_unknown": [unknown],
            "audit": [{
                "resource": "order:42",
                "action": "override", "before": "43", "after": "7", "reason": "restored",
                "actor": "ann", "at": "1970-01-01T00:00:00.000Z",
            }],
        })
    );
    let all = admin.get("/v1/rejections?limit=10").await.json();
    assert_eq!(all["rejections"].as_array().map(Vec::len), Some(2));
    assert_eq!(all["rejections"][1], rejection);
    let all = admin.get("/v1/unknown?limit=10").await.json();
    assert_eq!(all, json!({"open": [], "next": null, "unknown": [unknown]}));
}

#[tokio::test(start_paused = true)]
async fn a_view_says_what_goes_on() {
    let admin = Admin::new().await;
    let order = key("order:42");
    let held = admin.rig.admit("order:42", 42).await;
    drop(admin.rig.admit("order:42", 42).await.begin());
    // An instance that is dead has left an epoch behind.
    let dead = InstanceId::from_bits(7);
    admin.set_dead(dead);
    admin.set_open("order:42", dead, token(41));
    admin.rig.round().await;
    let waiting = [(); 2].map(|()| admin.rig.spawn_admit("order:42", BIG));
    while admin.rig.waiting(&order) < 2 {
        tokio::task::yield_now().await;
    }
    let view = admin.get("/v1/marks/order:42").await.json();
    let own = admin.rig.instance();
    assert_eq!(
        (&view["mark"], &view["in_flight"], &view["waiting"]),
        (&json!("9007199254740993"), &json!(1), &json!(2))
    );
    let unknown = json!([
        {
            "id": format!("{own}.1"), "token": "42", "settles_in_seconds": 30.0,
            "instance": own.to_string(), "inherited": false,
        },
        {
            "id": format!("{dead}/3"), "token": "41", "settles_in_seconds": LOSS.as_secs_f64(),
            "instance": dead.to_string(), "inherited": true,
        },
    ]);
    assert_eq!(view["unknown"], unknown);
    let epochs = json!([
        { "instance": own.to_string(), "number": 1, "token": "42" },
        { "instance": dead.to_string(), "number": 3, "token": "41" },
        { "instance": own.to_string(), "number": 2, "token": "9007199254740993" },
    ]);
    assert_eq!(view["epochs"], epochs);
    drop((held, waiting));

    admin.get("/v1/marks/absent").await.problem(404, "no-mark");
    admin.store.plan("look", CallPlan::Fail(broken()));
    let down = admin.get("/v1/marks/order:42").await;
    let why = down.problem(503, "store-unavailable");
    assert!(!why.contains("take effect"), "{why}");
    assert_eq!(down.headers[header::RETRY_AFTER], "1");
}

#[tokio::test]
async fn a_key_is_the_rest_of_the_path_decoded_once() {
    let admin = Admin::new().await;
    for (path, expected) in [
        ("order:42", "order:42"),
        ("a/b", "a/b"),
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("/orders/42", "/orders/42"),
        ("a//b/", "a//b/"),
        ("a+b%20c", "a+b c"),
        ("%C3%A4", "ä"),
        ("a/advance", "a/advance"),
        ("../x", "../x"),
        ("a?limit=1", "a"),
    ] {
        admin.set_mark(expected, 1);
        let answer = admin.get(&format!("/v1/marks/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        assert_eq!(answer.json()["resource"], expected, "{path}");
    }
    for path in ["a%2", "a%zz", "%", "%ff", "%00", "a%0Ab"] {
        admin
            .get(&format!("/v1/marks/{path}"))
            .await
            .problem(400, "malformed-request");
    }
    admin
        .get(&format!("/v1/marks/{}", "x".repeat(1025)))
        .await
        .problem(400, "malformed-request");
    admin.get("/v1/marks/").await.problem(404, "not-found");
}

#[tokio::test]
async fn writes_change_the_store_and_are_audited() {
    let admin = Admin::new().await;
    for resource in ["a%2Fb/c", "a/advance", "a"] {
        admin.set_mark(resource, 43);
    }
    let answer = admin
        .post("/v1/marks/a%252Fb/c/advance", r#"{"token":"0044"}"#)
        .await;
    assert_eq!(
        answer.json(),
        json!({"resource": "a%2Fb/c", "outcome": "advanced", "mark": "44"})
    );
    let answer = admin
        .post("/v1/marks/a%2Fadvance/advance", r#"{"token":"43"}"#)
        .await;
    assert_eq!(answer.json()["outcome"], "current");
    let body = r#"{"token":"7","reason":"restored","actor":"ann"}"#;
    let answer = admin.post("/v1/marks/a/override", body).await;
    assert_eq!(
        answer.json(),
        json!({"resource": "a", "outcome": "overridden", "before": "43", "mark": "7", "era": 1})
    );
    drop(admin.rig.admit("a", 8).await.begin());
    let id = format!("{}.1", admin.rig.instance());
    let body = json!({"id": id, "reason": "seen"}).to_string();
    let answer = admin.post("/v1/marks/a/resolve", body).await;
    assert_eq!(
        answer.json(),
        json!({"resource": "a", "outcome": "resolved", "id": id})
    );
    assert_eq!(
        admin.audit(),
        [
            r#"advance a%2Fb/c 43 44 "" "admin API, unknown""#,
            r#"override a 43 7 "restored" "ann (admin API, unknown)""#,
            r#"resolve a 8 8 "seen" "admin API, unknown""#,
        ],
        "an advance that changes nothing is not audited"
    );
    let marks = ["a%2Fb/c", "a/advance", "a"].map(|on| admin.store.mark_of(&key(on)));
    assert_eq!(marks, [Some(44), Some(43), Some(8)]);
    assert_eq!(admin.rig.in_flight(&key("a")), (0, 0));
    let metrics = admin.get("/metrics").await.text;
    assert!(metrics.contains("\nfencepost_overrides_total 1\n"));
}

#[tokio::test]
async fn the_proxy_may_say_no() {
    let admin = Admin::new().await;
    admin.set_mark("a", 43);
    admin.set_mark("busy", 43);
    let other = InstanceId::from_bits(7);
    admin.set_open("busy", other, token(43));
    let stale = admin.post("/v1/marks/a/advance", r#"{"token":"41"}"#).await;
    stale.problem(412, "stale-token");
    assert_eq!(stale.json()["mark"], "43");
    assert_eq!(stale.json()["gap"], "2");
    let body = r#"{"token":"7","reason":"r"}"#;
    let busy = admin.post("/v1/marks/busy/override", body).await;
    busy.problem(409, "epochs-open");
    assert_eq!(busy.json()["epochs"][0]["token"], "43");
    admin
        .post("/v1/marks/absent/override", body)
        .await
        .problem(404, "no-mark");
    let body = json!({"id": format!("{other}/3"), "reason": "r"}).to_string();
    let refused = admin.post("/v1/marks/busy/resolve", body).await;
    let why = refused.problem(409, "refused");
    assert!(why.contains("not known to be dead"), "{why}");
    let body = r#"{"id":"u2","reason":"r"}"#;
    admin
        .post("/v1/marks/a/resolve", body)
        .await
        .problem(404, "no-such-unknown");
    for call in ["look", "advance"] {
        admin.store.plan(call, CallPlan::Fail(broken()));
        let down = admin.post("/v1/marks/a/advance", r#"{"token":"44"}"#).await;
        let why = down.problem(503, "store-unavailable");
        assert!(why.contains("The write may still take effect"), "{why}");
    }
    assert!(admin.audit().is_empty());
    let metrics = admin.get("/metrics").await.text;
    assert!(metrics.contains("\nfencepost_overrides_total 0\n"));
}

#[tokio::test]
async fn a_write_that_has_begun_ends_though_the_client_leaves() {
    let admin = Admin::new().await;
    let go = Arc::new(Notify::new());
    admin.store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    tokio::select! {
        _ = admin.post("/v1/marks/a/advance", r#"{"token":"44"}"#) => panic!("it waits"),
        () = admin.store.until("advance", 1) => {}
    }
    assert!(admin.audit().is_empty());
    go.notify_one();
    tokio::time::timeout(Duration::from_secs(10), async {
        while admin.audit().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the write ends");
    assert_eq!(admin.store.mark_of(&key("a")), Some(44));
}

#[tokio::test]
async fn bodies_are_read_strictly() {
    let admin = Admin::new().await;
    for (verb, body) in [
        ("advance", ""),
        ("advance", "{}"),
        ("advance", r#"{"token":43}"#),
        ("advance", r#"{"token":"43","x":1}"#),
        ("advance", r#"{"token":"43","id":"u1"}"#),
        ("resolve", r#"{"token":"43","reason":"r"}"#),
        ("resolve", r#"{"token":"43","id":"u1","reason":"r"}"#),
        ("advance", r#"{"token":"-1"}"#),
        ("advance", r#"{"token":"9223372036854775808"}"#),
        ("advance", r#"{"token":"1","actor":"a\nb"}"#),
        ("override", r#"{"token":"7"}"#),
        ("override", r#"{"token":"7","reason":"  "}"#),
        ("resolve", r#"{"id":"","reason":"r"}"#),
        ("resolve", r#"{"id":"u1"}"#),
        ("resolve", r#"{"id":1,"reason":"r"}"#),
    ] {
        let answer = admin.post(&format!("/v1/marks/a/{verb}"), body).await;
        answer.problem(400, "malformed-request");
    }
    let number = admin.post("/v1/marks/a/advance", r#"{"token":43}"#).await;
    assert!(
        number
            .problem(400, "malformed-request")
            .contains("expected a string")
    );
    let long = format!(r#"{{"token":"7","reason":"{}"}}"#, "x".repeat(1001));
    admin
        .post("/v1/marks/a/override", long)
        .await
        .problem(400, "malformed-request");
    let huge = vec![b' '; BODY_LIMIT + 1];
    admin
        .post("/v1/marks/a/override", huge)
        .await
        .problem(413, "content-too-large");
    assert!(admin.is_untouched());
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() {
    let admin = Admin::new().await;
    admin.get("/nothing").await.problem(404, "not-found");
    admin
        .post("/v1/marks/a", "{}")
        .await
        .problem(404, "not-found");
    admin
        .post("/v1/marks/a/raise", "{}")
        .await
        .problem(404, "not-found");
    for (method, path) in [
        (Method::POST, "/livez"),
        (Method::DELETE, "/v1/marks/a"),
        (Method::PUT, "/v1/marks"),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::empty());
        let answer = admin.send(request.expect("a request")).await;
        answer.problem(405, "method-not-allowed");
        assert!(answer.headers.contains_key(header::ALLOW));
    }
}
