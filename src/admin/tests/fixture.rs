//! A real router over a real [`Fencing`](crate::fencing::Fencing), whose store is in memory. The
//! commands of `fencepost marks` are tried over the same one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, header};
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::admin::auth::AdminPeer;
use crate::admin::{AdminState, LoadedConfig, router};
use crate::config::{self, AdminSettings, Overrides, RouteTable, Unmatched};
use crate::fencing::tests::rows::Mark;
use crate::fencing::tests::{Double, Rig, clock, key, token};
use crate::json_values::wall_clock;
use crate::rejections::Rejections;
use crate::routing::Token;
use crate::store::routes::RouteRecord;
use crate::store::{AuditRow, Epoch, InstanceId, Terms};

pub(super) const SECRET: &str = "correct horse battery";
/// The token of reads.
pub(super) const READER: &str = "staple, only to read";

/// A client on this machine.
pub(super) fn local(by_socket: bool) -> AdminPeer {
    AdminPeer {
        text: "unknown".into(),
        local: true,
        by_socket,
    }
}

pub(crate) struct Admin {
    pub(crate) store: Arc<Double>,
    pub(crate) rig: Rig,
    pub(crate) state: AdminState,
    loaded: watch::Sender<LoadedConfig>,
    /// Holds the token files.
    pub(crate) dir: tempfile::TempDir,
}

pub(super) struct AdminAnswer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl AdminAnswer {
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
    /// An instance that has joined a store without marks.
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let token_file = dir.path().join("token");
        std::fs::write(&token_file, format!("  {SECRET}\n")).expect("written");
        let read_token_file = dir.path().join("read-token");
        std::fs::write(&read_token_file, READER).expect("written");
        let text = "upstream: { url: http://a }\nstore: { url: 'sqlite:marks.db' }\n";
        let (mut config, _) = config::parse(text, &Overrides::default()).expect("a good file");
        config.admin.token_file = Some(token_file);
        config.admin.read_token_file = Some(read_token_file);
        let loaded = LoadedConfig::now(Arc::new(config), Vec::new());
        let loaded = watch::Sender::new(loaded);
        let store = Arc::new(Double::default());
        let rig = Rig::new(Arc::clone(&store) as _, 1, clock()).await;
        let mismatch = rig.metrics().series.route_table_mismatch.clone();
        let routes = Arc::new(RouteRecord::new(
            RouteTable::of(&[], Unmatched::Refuse),
            mismatch,
        ));
        let state = AdminState {
            fencing: Arc::clone(&rig.0),
            metrics: Arc::clone(rig.metrics()),
            rejections: Arc::new(Rejections::default()),
            active: Arc::default(),
            readiness: Arc::default(),
            routes,
            started: wall_clock(),
            loaded: loaded.subscribe(),
        };
        Self {
            store,
            rig,
            state,
            loaded,
            dir,
        }
    }

    /// Changes the block `admin` of the configuration in force.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut AdminSettings)) {
        self.loaded
            .send_modify(|loaded| change(&mut Arc::make_mut(&mut loaded.settings).admin));
    }

    /// The store is reached for the first time.
    pub(crate) fn reach_store(&self) {
        let reached = &self.state.readiness.store_reached;
        reached.store(true, Ordering::Release);
    }

    /// Puts a mark into the store, as if another instance had raised it.
    pub(crate) fn set_mark(&self, resource: &str, mark: i64) {
        let mark = Mark::at(token(mark));
        self.store.rows().marks.insert(key(resource), mark);
    }

    /// Puts an epoch into the row of a mark, as if another instance had opened it.
    pub(crate) fn set_open(&self, resource: &str, instance: InstanceId, token: Token) {
        let mut rows = self.store.rows();
        let mark = rows.marks.get_mut(&key(resource)).expect("a mark");
        mark.open.push(Epoch {
            instance,
            opening: 3,
            token,
        });
    }

    /// An instance that was declared dead.
    pub(crate) fn set_dead(&self, instance: InstanceId) {
        let mut rows = self.store.rows();
        rows.join(instance, &Terms::default()).expect("a new id");
        assert!(rows.declare_dead(instance, 0));
    }

    /// The actions of operators, the oldest first: action, resource, mark before and after, reason,
    /// actor.
    pub(crate) fn audit(&self) -> Vec<String> {
        let rows = self.store.rows();
        let text = |token: Option<Token>| token.map_or("-".into(), |token| token.to_string());
        let rows = rows.audit.iter().map(|row| {
            let (before, after) = (text(row.before), text(row.after));
            let AuditRow {
                action,
                resource,
                reason,
                actor,
                ..
            } = row;
            format!("{action} {resource} {before} {after} {reason:?} {actor:?}")
        });
        rows.collect()
    }

    /// True if no request has reached the store.
    pub(crate) fn is_untouched(&self) -> bool {
        let reads = ["look", "list", "audit"];
        let writes = ["advance", "raise_era", "override_mark", "record_audit"];
        let mut calls = reads.iter().chain(&writes);
        calls.all(|call| self.store.calls(call) == 0)
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
    pub(super) async fn send(&self, mut request: Request<Body>) -> AdminAnswer {
        request.extensions_mut().get_or_insert_with(|| local(false));
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
        AdminAnswer {
            status: head.status.as_u16(),
            headers: head.headers,
            text,
        }
    }

    pub(super) async fn get(&self, path: &str) -> AdminAnswer {
        self.send(Request::get(path).body(Body::empty()).expect("a request"))
            .await
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Body>) -> AdminAnswer {
        let request = Request::post(path)
            .header(header::AUTHORIZATION, format!("Bearer {SECRET}"))
            .body(body.into())
            .expect("a request");
        self.send(request).await
    }

    pub(super) async fn post_as(&self, authorization: &[&str]) -> AdminAnswer {
        let mut request = Request::post("/v1/marks/a/advance");
        for line in authorization {
            request = request.header(header::AUTHORIZATION, *line);
        }
        let body = Body::from(r#"{"token":"44"}"#);
        self.send(request.body(body).expect("a request")).await
    }
}
