//! The admin port over a core that is made up.

pub(crate) mod fake;

use std::time::SystemTime;

use axum::body::Body;
use axum::http::{Method, Request, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tower::ServiceExt;

use self::fake::{Admin, Answer, READER, SECRET, key};
use super::clients::{AdminClient, Conduct};
use super::peer::AdminPeer;
use super::*;
use crate::metrics::Outcome;
use crate::rejections::RecentRejection;
use crate::routing::Token;

#[tokio::test]
async fn probes() {
    let admin = Admin::new();
    assert_eq!(admin.get("/livez").await.status, 200);
    let answer = admin.get("/readyz").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["ready"], false);
    assert_eq!(answer.json()["store"], "unknown");
    admin.state.readiness.set_configured();
    admin.state.readiness.set_store_reached();
    let answer = admin.get("/readyz").await;
    assert_eq!(
        (answer.status, &answer.json()["store"]),
        (200, &json!("up"))
    );
    admin.state.readiness.set_draining();
    assert_eq!(admin.get("/readyz").await.status, 503);
    assert_eq!(admin.get("/livez").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_end_of_a_drain_hears_of_it() {
    let admin = Admin::new();
    let answer = admin.get("/drained").await;
    assert_eq!(
        (answer.status, &answer.json()["type"]),
        (503, &json!("urn:fencepost:problem:not-draining"))
    );
    let mut asked = std::pin::pin!(admin.get("/drained"));
    let a_while = std::time::Duration::from_secs(9);
    assert!(tokio::time::timeout(a_while, &mut asked).await.is_err());
    admin.state.readiness.set_draining();
    let an_hour = std::time::Duration::from_hours(1);
    assert!(
        tokio::time::timeout(an_hour, &mut asked).await.is_err(),
        "no other limit holds"
    );
    admin.state.readiness.set_drained();
    assert_eq!(asked.await.status, 200);
}

#[tokio::test]
async fn few_wait_for_a_drain_that_has_not_begun_and_any_number_for_its_end() {
    let admin = Admin::new();
    let port = router(admin.state.clone());
    let ask = || {
        let asked = Request::get("/drained").body(Body::empty());
        Box::pin(port.clone().oneshot(asked.expect("a request")))
    };
    let mut waiting: Vec<_> = (0..AT_ONCE).map(|_| ask()).collect();
    for asked in &mut waiting {
        assert!(futures_util::poll!(asked).is_pending());
    }
    assert_eq!(ask().await.expect("infallible").status(), 503);
    admin.state.readiness.set_draining();
    for _ in 0..AT_ONCE {
        let mut asked = ask();
        assert!(futures_util::poll!(&mut asked).is_pending());
        waiting.push(asked);
    }
    admin.state.readiness.set_drained();
    for asked in waiting {
        assert_eq!(asked.await.expect("infallible").status(), 200);
    }
}

#[tokio::test]
async fn a_scrape_refreshes_first() {
    let admin = Admin::new();
    let answer = admin.get("/metrics").await;
    assert_eq!(answer.headers[header::CONTENT_TYPE], Metrics::CONTENT_TYPE);
    assert!(
        answer.text.contains("\nfencepost_unknown_outcomes 4\n"),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn lists_page_by_page() {
    let admin = Admin::new();
    let answer = admin
        .get("/v1/marks?prefix=order%3A&after=a+b&limit=2")
        .await
        .json();
    assert_eq!(answer["next"], "b");
    assert_eq!(
        answer["marks"][0],
        json!({
            "resource": "a",
            "mark": "9007199254740993",
            "spent": false,
            "era": 2,
            "since": "2023-11-14T22:13:20.123Z",
        })
    );
    assert_eq!(answer["marks"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        admin.get("/v1/marks?limit=3").await.json()["next"],
        Value::Null
    );
    assert_eq!(admin.get("/v1/marks").await.status, 200);
    assert_eq!(
        admin.control.calls(),
        [
            r#"list "order:" Some("a b") 3"#,
            r#"list "" None 4"#,
            r#"list "" None 101"#
        ]
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

#[tokio::test]
async fn a_view_says_what_goes_on() {
    let admin = Admin::new();
    for (resource, at) in [("order:42", 41), ("order:43", 40)] {
        admin.state.rejections.push(RecentRejection {
            at: SystemTime::UNIX_EPOCH,
            route: "/orders/{id}".into(),
            resource: Some(key(resource)),
            token: Token::new(at),
            mark: Token::new(43),
            outcome: Outcome::StaleToken,
            peer: "127.0.0.1:5000".into(),
            trace_id: Some("t".into()),
        });
    }
    admin.state.rejections.push(RecentRejection {
        at: SystemTime::UNIX_EPOCH,
        route: "/orders/{id}".into(),
        resource: Some(key("order:42")),
        token: Token::new(42),
        mark: None,
        outcome: Outcome::OutcomeUnknown,
        peer: "127.0.0.1:5000".into(),
        trace_id: None,
    });
    let unknown = json!({
        "at": "1970-01-01T00:00:00.000Z", "route": "/orders/{id}", "resource": "order:42",
        "token": "42", "mark": null, "gap": null, "outcome": "outcome-unknown",
        "client": "127.0.0.1:5000", "trace_id": null,
    });
    let rejection = json!({
        "at": "1970-01-01T00:00:00.000Z", "route": "/orders/{id}", "resource": "order:42",
        "token": "41", "mark": "43", "gap": "2", "outcome": "stale-token",
        "client": "127.0.0.1:5000", "trace_id": "t",
    });
    assert_eq!(
        admin.get("/v1/marks/order:42").await.json(),
        json!({
            "resource": "order:42", "mark": "9007199254740993", "spent": false, "era": 2,
            "since": "2023-11-14T22:13:20.123Z", "in_flight": 1, "waiting": 2,
            "unknown": [{
                "id": "u1", "token": "42", "settles_in_seconds": 1.5, "instance": "i1",
                "inherited": true,
            }],
            "epochs": [{
                "instance": "00000000000000000000000000000007", "opening": 3, "token": "43",
            }],
            "rejections": [rejection],
            "latest_unknown": [unknown],
            "audit": [{
                "action": "override", "before": "43", "after": "7", "reason": "restored",
                "actor": "ann", "at": "1970-01-01T00:00:00.000Z",
            }],
        })
    );
    let all = admin.get("/v1/rejections?limit=10").await.json();
    assert_eq!(all["rejections"].as_array().map(Vec::len), Some(2));
    assert_eq!(all["rejections"][1], rejection);
    let all = admin.get("/v1/unknown?limit=10").await.json();
    assert_eq!(all, json!({"unknown": [unknown]}));
    admin.get("/v1/marks/absent").await.problem(404, "no-mark");
    let down = admin.get("/v1/marks/down").await;
    down.problem(503, "store-unavailable");
    assert_eq!(down.headers[header::RETRY_AFTER], "1");
}

#[tokio::test]
async fn a_key_is_the_rest_of_the_path_decoded_once() {
    let admin = Admin::new();
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
        let answer = admin.get(&format!("/v1/marks/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        assert_eq!(
            admin.control.calls().last(),
            Some(&format!("view {expected}")),
            "{path}"
        );
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
async fn writes_reach_the_core() {
    let admin = Admin::new();
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
        json!({"resource": "a", "before": "43", "mark": "7", "era": 5})
    );
    let answer = admin
        .post("/v1/marks/a/resolve", r#"{"id":"u1","reason":"seen"}"#)
        .await;
    assert_eq!(
        answer.json(),
        json!({"resource": "a", "id": "u1", "resolved": true})
    );
    assert_eq!(
        admin.control.calls(),
        [
            r#"advance a%2Fb/c 44 "" "admin API, unknown""#,
            r#"advance a/advance 43 "" "admin API, unknown""#,
            r#"override a 7 "restored" "ann (admin API, unknown)""#,
            r#"resolve a u1 "seen" "admin API, unknown""#,
        ]
    );
    assert!(
        admin
            .get("/metrics")
            .await
            .text
            .contains("\nfencepost_overrides_total 1\n")
    );
}

#[tokio::test]
async fn the_core_may_say_no() {
    let admin = Admin::new();
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
    let refused = admin.post("/v1/marks/lost/override", body).await;
    assert_eq!(refused.problem(409, "refused"), "marks are being restored");
    let body = r#"{"id":"u2","reason":"r"}"#;
    admin
        .post("/v1/marks/a/resolve", body)
        .await
        .problem(404, "no-such-unknown");
    let body = r#"{"token":"44"}"#;
    admin
        .post("/v1/marks/down/advance", body)
        .await
        .problem(503, "store-unavailable");
    assert!(
        admin
            .get("/metrics")
            .await
            .text
            .contains("\nfencepost_overrides_total 0\n")
    );
}

#[tokio::test]
async fn a_write_that_has_begun_ends_though_the_asker_leaves() {
    let admin = Admin::new();
    tokio::select! {
        _ = admin.post("/v1/marks/slow/advance", r#"{"token":"44"}"#) => panic!("it waits"),
        () = admin.control.begun.notified() => {}
    }
    assert!(admin.control.calls().is_empty());
    admin.control.go.notify_one();
    tokio::time::timeout(Duration::from_secs(10), async {
        while admin.control.calls().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the write ends");
}

#[tokio::test]
async fn bodies_are_read_strictly() {
    let admin = Admin::new();
    for (verb, body) in [
        ("advance", ""),
        ("advance", "{}"),
        ("advance", r#"{"token":43}"#),
        ("advance", r#"{"token":"43","x":1}"#),
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
            .contains("a token as a JSON string")
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
    assert!(admin.control.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn writes_need_the_token() {
    let admin = Admin::new();
    for authorization in [
        &[][..],
        &["Bearer wrong"],
        &["Bearer "],
        &["Bearer"],
        &["Basic correct horse battery"],
        &["correct horse battery"],
        &[
            "Bearer correct horse battery",
            "Bearer correct horse battery",
        ],
        &["Bearer correct horse batter"],
        &["Bearer correct horse battery!"],
        &["Bearer staple, only to read"],
    ] {
        let answer = admin.post_as(authorization).await;
        answer.problem(401, "unauthorized");
        assert!(
            answer.headers[header::WWW_AUTHENTICATE]
                .to_str()
                .is_ok_and(|v| v.starts_with("Bearer"))
        );
    }
    assert!(admin.control.calls().is_empty());
    let right = admin.post_as(&["bearer correct horse battery"]).await;
    assert_eq!(right.status, 200);
}

#[tokio::test(start_paused = true)]
async fn the_token_file_is_read_each_time() {
    let admin = Admin::new();
    let file = admin.token_file();
    let rotated = "Bearer rotated since then";
    std::fs::write(&file, "rotated since then").expect("written");
    admin
        .post_as(&["Bearer correct horse battery"])
        .await
        .problem(401, "unauthorized");
    assert_eq!(admin.post_as(&[rotated]).await.status, 200);
    for (bad, sent) in [
        ("", "Bearer "),
        (" \n\t", "Bearer "),
        ("fifteen letters", "Bearer fifteen letters"),
        ("  fifteen letters\n", "Bearer fifteen letters"),
    ] {
        std::fs::write(&file, bad).expect("written");
        admin.post_as(&[sent]).await.problem(403, "writes-off");
        admin.post_as(&[]).await.problem(403, "writes-off");
    }
    std::fs::write(&file, "sixteen letters!").expect("written");
    let sixteen = admin.post_as(&["Bearer sixteen letters!"]).await;
    assert_eq!(sixteen.status, 200);
    std::fs::remove_file(&file).expect("removed");
    admin.post_as(&[rotated]).await.problem(403, "writes-off");
}

#[tokio::test]
async fn no_token_file_no_writes() {
    let admin = Admin::new();
    admin.settings.send_modify(|now| now.token_file = None);
    let detail = admin
        .post_as(&["Bearer correct horse battery"])
        .await
        .problem(403, "writes-off");
    assert!(detail.contains("admin.token_file"));
    assert!(admin.control.calls().is_empty());
}

/// A read of marks from the network, with these header lines.
async fn read_from_afar(admin: &Admin, headers: &[(&'static str, &str)]) -> Answer {
    let mut request = Request::get("/v1/marks").extension(AdminPeer {
        text: "192.0.2.7:5000".into(),
        client: AdminClient::of("192.0.2.7".parse().expect("an address")),
        local: false,
        conduct: Conduct::default(),
    });
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    admin
        .send(request.body(Body::empty()).expect("a request"))
        .await
}

#[tokio::test(start_paused = true)]
async fn reads_from_elsewhere_need_a_token() {
    let admin = Admin::new();
    let right = [SECRET, READER].map(|token| format!("Bearer {token}"));
    for token in &right {
        let answer = read_from_afar(&admin, &[("authorization", token)]).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        // Whoever knows the token asks by any name.
        let named = [("authorization", token.as_str()), ("host", "fencepost.svc")];
        assert_eq!(read_from_afar(&admin, &named).await.status, 200);
    }
    let calls = admin.control.calls().len();
    let none = read_from_afar(&admin, &[]).await;
    none.problem(401, "unauthorized");
    assert!(none.headers.contains_key(header::WWW_AUTHENTICATE));
    let wrong = read_from_afar(&admin, &[("authorization", "Bearer wrong")]).await;
    wrong.problem(401, "unauthorized");
    // One that lets nobody in takes nothing from the other.
    admin
        .settings
        .send_modify(|now| now.read_token_file = Some("/nowhere".into()));
    let answer = read_from_afar(&admin, &[("authorization", &right[0])]).await;
    assert_eq!(answer.status, 200);
    admin.settings.send_modify(|now| now.token_file = None);
    let answer = read_from_afar(&admin, &[("authorization", &right[0])]).await;
    let detail = answer.problem(403, "reads-off");
    assert!(
        detail.contains("admin.read_token_file cannot be read"),
        "{detail}"
    );
    admin.settings.send_modify(|now| now.read_token_file = None);
    read_from_afar(&admin, &[]).await.problem(403, "reads-off");
    assert_eq!(admin.control.calls().len(), calls + 1);
    assert_eq!(
        admin.get("/v1/marks").await.status,
        200,
        "the loopback is open"
    );
}

#[tokio::test]
async fn a_read_without_a_token_names_an_address() {
    let admin = Admin::new();
    let named = |host: &str, token: Option<&str>| {
        let mut request = Request::get("/v1/rejections").header(header::HOST, host);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Body::empty()).expect("a request")
    };
    let answer = admin.send(named("evil.example:7081", None)).await;
    answer.problem(421, "unknown-host");
    assert_eq!(admin.refused("unknown-host").await, 1);
    let answer = admin.send(named("evil.example:7081", Some(READER))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(admin.send(named("127.0.0.1:7081", None)).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn wrong_tokens_are_counted_and_slowed_and_the_right_one_is_never_refused() {
    let admin = Admin::new();
    let port = router(admin.state.clone());
    let ask = async |token: &str| {
        let began = tokio::time::Instant::now();
        let request = Request::post("/v1/marks/a/advance")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(r#"{"token":"44"}"#))
            .expect("a request");
        let answer = port.clone().oneshot(request).await.expect("infallible");
        (answer.status().as_u16(), began.elapsed().as_secs())
    };
    assert_eq!(ask(SECRET).await, (200, 0));
    // As many at once as would take every place, were they to hold one.
    let guesses = (0..2 * MARKS_ROOM).map(|_| ask("wrong"));
    let guesses = futures_util::future::join_all(guesses).await;
    assert!(
        guesses.iter().all(|guess| *guess == (401, 1)),
        "{guesses:?}"
    );
    // Who guesses may have the operator's address: the right one waits for nobody.
    assert_eq!(ask(SECRET).await, (200, 0));
    assert_eq!(admin.refused("wrong-token").await, 2 * MARKS_ROOM as u64);
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() {
    let admin = Admin::new();
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

/// One request over a connection, closed by the server.
async fn exchange<S: AsyncReadExt + AsyncWriteExt + Unpin>(mut stream: S, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("received");
    answer
}

#[tokio::test]
async fn serves_over_tcp_and_unix_until_shut_down() {
    let admin = Admin::new();
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = tcp.local_addr().expect("an address");
    let path = admin.dir.path().join("admin.sock");
    let unix = UnixListener::bind(&path).expect("bound");
    let (stop, stopped) = tokio::sync::watch::channel(());
    let servers: Vec<_> = [AdminListener::Tcp(tcp), AdminListener::Unix(unix)]
        .into_iter()
        .map(|listener| {
            let mut stopped = stopped.clone();
            let stopped = async move {
                let _ = stopped.changed().await;
            };
            tokio::spawn(serve(listener, admin.state.clone(), stopped))
        })
        .collect();

    let get = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let stream = TcpStream::connect(address).await.expect("connected");
    let answer = exchange(stream, get).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let post = format!(
        "POST /v1/marks/a/advance HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Authorization: Bearer {SECRET}\r\nContent-Length: 14\r\n\r\n{{\"token\":\"44\"}}"
    );
    let stream = TcpStream::connect(address).await.expect("connected");
    let answer = exchange(stream, &post).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let stream = UnixStream::connect(&path).await.expect("connected");
    let answer = exchange(stream, &post).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let calls = admin.control.calls();
    assert!(calls[0].contains("admin API, 127.0.0.1:"), "{}", calls[0]);
    assert!(calls[1].contains("admin API, unix, uid "), "{}", calls[1]);

    // An idle connection does not hold up the shutdown.
    let mut idle = TcpStream::connect(address).await.expect("connected");
    stop.send(()).expect("somebody listens");
    for server in servers {
        server.await.expect("ends without a panic");
    }
    assert!(TcpStream::connect(address).await.is_err());
    let mut rest = Vec::new();
    // Closed or reset: either way it is over.
    let _ = idle.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

/// Serves until the test ends.
async fn served(admin: &Admin) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let state = admin.state.clone();
    tokio::spawn(serve(
        AdminListener::Tcp(listener),
        state,
        std::future::pending(),
    ));
    address
}

/// Time is paused, so it jumps to the next timer whenever everybody waits.
#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_cut_off() {
    let admin = Admin::new();
    let address = served(&admin).await;
    for start in [
        "",
        "GET /livez HTTP/1.1\r\nHost:",
        "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(start.as_bytes()).await.expect("sent");
        let began = tokio::time::Instant::now();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("closed");
        assert!(began.elapsed() < Duration::from_secs(20), "{start:?}");
        assert_eq!(
            rest.starts_with("HTTP/1.1 200"),
            start.ends_with("\r\n\r\n"),
            "{rest}"
        );
    }
}

/// What is never taken does not hold its connection; nor does a body that never comes.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_and_a_body_that_does_not_come_are_cut_off() {
    let admin = Admin::new();
    let address = served(&admin).await;
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("taken");
    let mut deaf = socket.connect(address).await.expect("connected");
    let asked = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    deaf.write_all(asked.as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(admin.refused("write-timeout").await, 1);

    let mut lazy = TcpStream::connect(address).await.expect("connected");
    let head = format!(
        "POST /v1/marks/a/advance HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n\
         Content-Length: 14\r\n\r\n{{"
    );
    let answer = exchange(&mut lazy, &head).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(admin.control.calls().is_empty());
}
