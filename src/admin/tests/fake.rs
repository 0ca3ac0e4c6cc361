//! A core that is made up, behind a real router; the commands of `fencepost marks` are tried over the
//! same one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, header};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tower::ServiceExt;

use crate::admin::clients::{AdminClient, Conduct};
use crate::admin::peer::AdminPeer;
use crate::admin::{AdminState, Control, ControlError, MarkView, Readiness, UnknownView, router};
use crate::config::AdminSettings;
use crate::config::settings::Mode;
use crate::metrics::Metrics;
use crate::rejections::Rejections;
use crate::routing::{Decision, ResourceKey, Token};
use crate::store::{AuditRow, EpochRow, InstanceId, MarkRow, Override, StoreError};

pub(super) const SECRET: &str = "correct horse battery";
/// The token of reads.
pub(super) const READER: &str = "staple, only to read";

pub(super) fn key(text: &str) -> ResourceKey {
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

/// Knows every resource but those whose key begins with `absent`; fails for `down`; an advance of
/// `slow` says that it has begun, and ends when it is let go.
pub(crate) struct FakeControl {
    metrics: Arc<Metrics>,
    /// What was asked, in words.
    calls: Mutex<Vec<String>>,
    pub(super) begun: Notify,
    pub(super) go: Notify,
}

impl FakeControl {
    fn new(metrics: &Arc<Metrics>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            calls: Mutex::default(),
            begun: Notify::default(),
            go: Notify::default(),
        }
    }

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
        if resource.as_str() == "slow" {
            self.begun.notify_one();
            self.go.notified().await;
        }
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

    fn refresh(&self) {
        self.metrics.store_handles().unknown_outcomes.set(4);
    }
}

pub(crate) struct Admin {
    pub(crate) control: Arc<FakeControl>,
    pub(crate) state: AdminState,
    pub(super) settings: watch::Sender<AdminSettings>,
    /// Holds the token files.
    pub(crate) dir: tempfile::TempDir,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Checks that this is a problem of that status and word, and returns its detail.
    #[track_caller]
    pub(super) fn problem(&self, status: u16, word: &str) -> String {
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
        let read_token_file = dir.path().join("read-token");
        std::fs::write(&read_token_file, READER).expect("written");
        let settings = watch::Sender::new(AdminSettings {
            listen: None,
            token_file: Some(token_file),
            read_token_file: Some(read_token_file),
            tls: None,
            ready_follows_store: false,
        });
        let metrics = Arc::new(Metrics::new(&[("/orders/{id}".into(), Mode::Enforce)]));
        let control = Arc::new(FakeControl::new(&metrics));
        let state = AdminState {
            control: Arc::clone(&control) as Arc<dyn Control>,
            metrics,
            rejections: Arc::new(Rejections::default()),
            readiness: Arc::new(Readiness::new(false)),
            settings: settings.subscribe(),
        };
        Self {
            control,
            state,
            settings,
            dir,
        }
    }

    /// The file of the token of writes.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    /// How often the port has refused something for this reason.
    pub(super) async fn refused(&self, reason: &str) -> u64 {
        let text = self.get("/metrics").await.text;
        let series = format!("fencepost_admin_refused_total{{reason=\"{reason}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.expect("the series is there").parse().expect("a count")
    }

    /// Sends a request over the loopback, if it does not say that it comes from elsewhere.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Answer {
        request.extensions_mut().get_or_insert_with(|| AdminPeer {
            text: "unknown".into(),
            client: AdminClient::Loopback,
            local: true,
            conduct: Conduct::default(),
        });
        request
            .headers_mut()
            .entry(header::HOST)
            .or_insert(HeaderValue::from_static("localhost"));
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

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request"))
            .await
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(path)
            .header(header::AUTHORIZATION, format!("Bearer {SECRET}"))
            .body(body.into())
            .expect("a request");
        self.send(request).await
    }

    pub(super) async fn post_as(&self, authorization: &[&str]) -> Answer {
        let mut request = Request::post("/v1/marks/a/advance");
        for line in authorization {
            request = request.header(header::AUTHORIZATION, *line);
        }
        let body = Body::from(r#"{"token":"44"}"#);
        self.send(request.body(body).expect("a request")).await
    }
}
