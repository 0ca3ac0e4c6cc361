//! Where a corpus is played: one proxy, one [`Recorder`] behind it, many connections at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::StreamExt as _;

use super::recorder::{RecordedRequest, Recorder};
use crate::support::client::Exchange;
use crate::support::wait::deadline;
use crate::support::{Answer, Config, Proxy, Store};

/// How many connections are used at once.
const AT_ONCE: usize = 48;

/// One route of each kind that a case may need. The times are short for requests that stay
/// incomplete: the proxy's deadline ends them, and the case with them.
const CONFIG: &str = "
limits: { head_timeout: 5s, idle_timeout: 5s }
body: { timeout: 5s, progress_timeout: 5s }
routes:
  - { path: '/orders/{id}', resource: 'order:{id}' }
  - { path: '/open/{*rest}', mode: bypass }
  - { path: '/seen/{id}', resource: 'seen:{id}', mode: observe }
  - { path: '/hosts/{id}', resource: 'host:{host}:{id}' }
  - { path: '/tenants/{id}', resource: 'tenant:{header.x-tenant}:{id}' }
  - { path: '/queries/{id}', resource: 'query:{query.q}:{id}' }
  - { path: '/members/{id}', resource: 'member:{json.name}:{id}' }
  - { path: '/more/{id}', resource: 'more:{id}', methods: [PROPPATCH, MKCOL, LOCK, FROB] }
  - { path: '/limited/{id}', resource: 'limited:{id}', methods: [PUT], body: { max: 10 } }
  - { path: '/moved/{id}/{*rest}', resource: 'moved:{id}', methods: [COPY, MOVE] }
  - { path: '/once/{id}', resource: 'once:{id}', reuse: once }
  - { path: '/hex/{id}', resource: 'hex:{id}', token: { format: hex } }
  - { path: '/semi/{id}', resource: 'semi:{id}', allow: [semicolon] }
";

/// A proxy and the upstream behind it.
pub struct Stage {
    pub proxy: Proxy,
    pub upstream: Recorder,
}

/// The state after all has been played and the proxy has ended.
pub struct StageEnd {
    pub arrivals: Vec<RecordedRequest>,
    pub marks: Vec<(String, u64)>,
}

impl Stage {
    pub async fn start() -> Self {
        let upstream = Recorder::start().await;
        let url = format!("http://{}", upstream.address);
        let config = Config::to(&url, &Store::sqlite()).with(CONFIG);
        let proxy = Proxy::start(&config).await;
        Self { proxy, upstream }
    }

    /// Plays all, many at once; what each of them came to, in order.
    pub async fn play<'a, T, O: Future>(
        all: &'a [T],
        mut one: impl FnMut(&'a T) -> O,
    ) -> Vec<(&'a T, O::Output)> {
        let tasks = all.iter().enumerate().map(|(at, item)| {
            let done = one(item);
            async move { (at, (item, done.await)) }
        });
        // In any order: some of them wait for a deadline, and must not hold up those behind them.
        let tasks = futures_util::stream::iter(tasks).buffer_unordered(AT_ONCE);
        let played: BTreeMap<_, _> = tasks.collect().await;
        played.into_values().collect()
    }

    /// Checks that the process is well, and ends it: then all that will ever arrive has arrived.
    pub async fn end(mut self) -> StageEnd {
        assert_eq!(self.proxy.ask("/livez").await.status(), 200);
        let marks = self.marks().await;
        let mut lines = self.proxy.logs().into_iter();
        let panic = lines.find(|line| line["message"].to_string().contains("panic"));
        assert_eq!(panic, None);
        self.proxy.stop().await;
        StageEnd {
            arrivals: self.upstream.arrivals(),
            marks,
        }
    }

    async fn marks(&self) -> Vec<(String, u64)> {
        let mut marks = Vec::new();
        let mut after = String::new();
        loop {
            let page = self
                .proxy
                .ask(&format!("/v1/marks?limit=1000{after}"))
                .await
                .json();
            for mark in page["marks"].as_array().expect("a list") {
                let text = |name: &str| mark[name].as_str().expect("text").to_owned();
                let value = text("mark").parse().expect("a decimal");
                marks.push((text("resource"), value));
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", crate::support::proxy::escape(next)),
                None => return marks,
            }
        }
    }
}

impl StageEnd {
    /// Complaints about arrivals that name no case.
    pub fn strays(&self, is_name: impl Fn(&[u8]) -> bool) -> Vec<String> {
        let named = |arrival: &&RecordedRequest| !arrival.raw.windows(5).any(&is_name);
        let strays = self.arrivals.iter().filter(named);
        let complaint =
            |arrival: &RecordedRequest| format!("nobody's arrival: {}", shown(&arrival.raw));
        strays.map(complaint).collect()
    }
}

/// The request that follows each case: its answer tells whose it is.
pub fn probe(id: &str) -> Vec<u8> {
    format!("GET /probe/{id} HTTP/1.1\r\nHost: app.test\r\n\r\n").into_bytes()
}

/// Printable bytes, cut to a readable length.
pub fn shown(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() <= 1500 {
        return text;
    }
    let (begin, end) = (&text[..900], &text[text.len() - 300..]);
    format!("{begin} … {end} ({} bytes)", bytes.len())
}

/// A connection of a client that never loses its temper: that the other side has closed is a
/// finding.
pub struct Line(Exchange);

/// With a reset: thousands of ports that wait for the last packet of a good end would be missing
/// elsewhere.
impl Drop for Line {
    fn drop(&mut self) {
        self.0.wire.end_by_reset();
    }
}

impl Line {
    pub async fn open(to: SocketAddr) -> Result<Self, String> {
        let open = Exchange::open(to, "").await;
        open.map(Self)
            .map_err(|error| format!("no connection: {error}"))
    }

    /// Writes; on a connection that is closed already, in vain.
    pub async fn send(&mut self, bytes: &[u8]) {
        // In time, since who does not read may not take everything either.
        let _ = tokio::time::timeout(deadline(), self.0.wire.send(bytes)).await;
    }

    /// The next answer; `None`: the connection is closed. The error: neither came, or half of an
    /// answer.
    pub async fn answer(&mut self, method: &str) -> Result<Option<Answer>, String> {
        method.clone_into(&mut self.0.method);
        let first = tokio::time::timeout(deadline(), self.0.wire.peek()).await;
        match first {
            Err(_) => return Err(format!("neither an answer nor an end in {:?}", deadline())),
            Ok(Ok(None) | Err(_)) => return Ok(None),
            Ok(Ok(Some(b'H'))) => {}
            Ok(Ok(Some(_))) => {
                let bytes = self.0.wire.some().await.unwrap_or_default();
                return Err(format!("no answer begins so: {}", shown(&bytes)));
            }
        }
        match tokio::time::timeout(deadline(), self.0.answer()).await {
            Err(_) => Err(format!("half an answer in {:?}", deadline())),
            Ok(answer) => answer
                .map(Some)
                .map_err(|error| format!("half an answer: {error}")),
        }
    }
}
