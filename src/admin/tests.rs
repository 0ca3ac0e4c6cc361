//! The admin port over a core that is made up. The commands that speak to it use the same.

use std::sync::Mutex;
use std::time::SystemTime;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tower::ServiceExt;

use super::*;
use crate::config::settings::Mode;
use crate::fence::{Decision, ResourceKey, Token};
use crate::marks::{AuditRow, EpochRow, InstanceId, MarkRow, Override, StoreError};
use crate::metrics::Outcome;
use crate::rejections::Refusal;

const SECRET: &str = "correct horse";

fn key(text: &str) -> ResourceKey {
    ResourceKey::new(text).expect("a good key")
}

fn token(number: i64) -> Token {
    Token::new(number).expect("in range")
}

fn row(resource: &str) -> MarkRow {
    MarkRow {
        resource: key(resource),
        token: token(9_007_199_254_740_993),
        spent: false,
        era: 2,
        since_ms: 1_700_000_000_123,
    }
}

fn epoch(resource: &ResourceKey) -> EpochRow {
    EpochRow {
        resource: resource.clone(),
        instance: InstanceId::from_bits(7),
        opening: 3,
        token: token(43),
    }
}

/// Knows every resource but those whose key begins with `absent`; fails for `down`.
#[derive(Default)]
pub(crate) struct FakeControl {
    /// What was asked, in words.
    calls: Mutex<Vec<String>>,
}

impl FakeControl {
    fn note(&self, call: String) {
        self.calls
            .lock()
            .expect("no test panics in between")
            .push(call);
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls
            .lock()
            .expect("no test panics in between")
            .clone()
    }
}

fn reach(resource: &ResourceKey) -> Result<(), StoreError> {
    if resource.as_str() == "down" {
        return Err(StoreError::Timeout(Duration::from_secs(5)));
    }
    Ok(())
}

#[async_trait]
impl Control for FakeControl {
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        self.note(format!("list {prefix:?} {after:?} {limit}"));
        Ok(["a", "b", "c"]
            .into_iter()
            .take(limit as usize)
            .map(row)
            .collect())
    }

    async fn view(&self, resource: &ResourceKey) -> Result<Option<MarkView>, StoreError> {
        self.note(format!("view {resource}"));
        reach(resource)?;
        let unknown = UnknownView {
            id: "u1".into(),
            token: token(42),
            settles_in: Some(Duration::from_millis(1500)),
            instance: "i1".into(),
            inherited: true,
        };
        Ok(
            (!resource.as_str().starts_with("absent")).then(|| MarkView {
                row: row(resource.as_str()),
                in_flight: 1,
                waiting: 2,
                unknown: vec![unknown],
                epochs: vec![epoch(resource)],
            }),
        )
    }

    async fn advance(
        &self,
        resource: &ResourceKey,
        asked: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Decision, ControlError> {
        self.note(format!("advance {resource} {asked} {reason:?} {actor:?}"));
        reach(resource)?;
        Ok(match asked.get() {
            43 => Decision::Current,
            0..43 => Decision::Stale { mark: token(43) },
            _ => Decision::Advanced,
        })
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        asked: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, ControlError> {
        self.note(format!("override {resource} {asked} {reason:?} {actor:?}"));
        reach(resource)?;
        Ok(match resource.as_str() {
            "busy" => Override::EpochsOpen(vec![epoch(resource)]),
            "absent" => Override::Absent,
            "lost" => return Err(ControlError::Refused("marks are being restored".into())),
            _ => Override::Done {
                before: token(43),
                era: 5,
            },
        })
    }

    async fn resolve(
        &self,
        resource: &ResourceKey,
        unknown_id: &str,
        reason: &str,
        actor: &str,
    ) -> Result<bool, ControlError> {
        self.note(format!(
            "resolve {resource} {unknown_id} {reason:?} {actor:?}"
        ));
        Ok(unknown_id == "u1")
    }

    async fn audit(&self, resource: &ResourceKey, _: u32) -> Result<Vec<AuditRow>, StoreError> {
        Ok(vec![AuditRow {
            resource: resource.clone(),
            action: "override".into(),
            before: Some(token(43)),
            after: Some(token(7)),
            reason: "restored".into(),
            actor: "ann".into(),
            at_ms: 0,
        }])
    }

    fn refresh(&self, metrics: &Metrics) {
        metrics.set_unknown_outcomes(4);
    }
}

pub(crate) struct Admin {
    pub(crate) control: Arc<FakeControl>,
    pub(crate) state: AdminState,
    /// Holds the token file.
    pub(crate) dir: tempfile::TempDir,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Checks that this is a problem of that status and word, and returns its detail.
    #[track_caller]
    fn problem(&self, status: u16, word: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(
            self.headers[header::CONTENT_TYPE],
            "application/problem+json"
        );
        let body = self.json();
        assert_eq!(body["type"], format!("urn:fencepost:problem:{word}"));
        assert_eq!(body["status"], status);
        assert!(body["title"].is_string());
        body["detail"].as_str().expect("a detail").to_owned()
    }
}

impl Admin {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let token_file = dir.path().join("token");
        std::fs::write(&token_file, format!("  {SECRET}\n")).expect("written");
        let control = Arc::new(FakeControl::default());
        let state = AdminState {
            control: Arc::clone(&control) as Arc<dyn Control>,
            metrics: Arc::new(Metrics::new(&[("/orders/{id}".into(), Mode::Enforce)])),
            rejections: Arc::new(Rejections::default()),
            readiness: Arc::new(Readiness::new(false)),
            token_file: Some(token_file),
        };
        Self {
            control,
            state,
            dir,
        }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = router(self.state.clone())
            .oneshot(request)
            .await
            .expect("infallible");
        let (head, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.expect("a whole body");
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        assert_eq!(head.headers[header::CACHE_CONTROL], "no-store");
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            text,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request"))
            .await
    }

    async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(path)
            .header(header::AUTHORIZATION, format!("Bearer {SECRET}"))
            .body(body.into())
            .expect("a request");
        self.send(request).await
    }

    async fn post_as(&self, authorization: &[&str]) -> Answer {
        let mut request = Request::post("/v1/marks/a/advance");
        for line in authorization {
            request = request.header(header::AUTHORIZATION, *line);
        }
        let body = Body::from(r#"{"token":"44"}"#);
        self.send(request.body(body).expect("a request")).await
    }
}

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
        admin.state.rejections.push(Refusal {
            at: SystemTime::UNIX_EPOCH,
            route: "/orders/{id}".into(),
            resource: Some(key(resource)),
            token: Token::new(at),
            mark: Token::new(43),
            outcome: Outcome::Stale,
            peer: "127.0.0.1:5000".into(),
            trace_id: Some("t".into()),
        });
    }
    let rejection = json!({
        "at": "1970-01-01T00:00:00.000Z", "route": "/orders/{id}", "resource": "order:42",
        "token": "41", "mark": "43", "gap": "2", "outcome": "stale",
        "peer": "127.0.0.1:5000", "trace_id": "t",
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
            "audit": [{
                "action": "override", "before": "43", "after": "7", "reason": "restored",
                "actor": "ann", "at": "1970-01-01T00:00:00.000Z",
            }],
        })
    );
    let all = admin.get("/v1/rejections?limit=10").await.json();
    assert_eq!(all["rejections"].as_array().map(Vec::len), Some(2));
    assert_eq!(all["rejections"][1], rejection);
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

#[tokio::test]
async fn writes_need_the_token() {
    let admin = Admin::new();
    for authorization in [
        &[][..],
        &["Bearer wrong"],
        &["Bearer "],
        &["Bearer"],
        &["Basic correct horse"],
        &["correct horse"],
        &["Bearer correct horse", "Bearer correct horse"],
        &["Bearer correct hors"],
        &["Bearer correct horse!"],
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
    assert_eq!(admin.post_as(&["bearer correct horse"]).await.status, 200);
}

#[tokio::test]
async fn the_token_file_is_read_each_time() {
    let admin = Admin::new();
    let file = admin.dir.path().join("token");
    std::fs::write(&file, "rotated").expect("written");
    admin
        .post_as(&["Bearer correct horse"])
        .await
        .problem(401, "unauthorized");
    assert_eq!(admin.post_as(&["Bearer rotated"]).await.status, 200);
    for empty in ["", " \n\t"] {
        std::fs::write(&file, empty).expect("written");
        admin.post_as(&["Bearer "]).await.problem(403, "writes-off");
        admin.post_as(&[]).await.problem(403, "writes-off");
    }
    std::fs::remove_file(&file).expect("removed");
    admin
        .post_as(&["Bearer rotated"])
        .await
        .problem(403, "writes-off");
}

#[tokio::test]
async fn no_token_file_no_writes() {
    let mut admin = Admin::new();
    admin.state.token_file = None;
    let detail = admin
        .post_as(&["Bearer correct horse"])
        .await
        .problem(403, "writes-off");
    assert!(detail.contains("admin.token_file"));
    assert!(admin.control.calls().is_empty());
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
    let servers: Vec<_> = [Listener::Tcp(tcp), Listener::Unix(unix)]
        .into_iter()
        .map(|listener| {
            let mut stopped = stopped.clone();
            let stopped = async move {
                let _ = stopped.changed().await;
            };
            tokio::spawn(serve(listener, router(admin.state.clone()), stopped))
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
