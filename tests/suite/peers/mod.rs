//! Suites and clients that others wrote. Each is played straight against its upstream, through
//! nginx as a plain reverse proxy, and through fencepost, and the outcomes are compared test by
//! test. A difference fails unless the suite's table names it, and so does a line of a table that
//! no longer differs.

pub mod clients;
pub mod dav;
pub mod http;
pub mod websocket;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::time::timeout;

use self::Way::{Attach, Bypass, Fenced, Nginx, Straight};
use crate::attach::Sidecar;
use crate::support::nginx;
use crate::support::store::tool;
use crate::support::{Config, Must as _, Proxy, Store};

/// A way from a suite to its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Straight,
    /// Through nginx as a plain reverse proxy.
    Nginx,
    /// Through a route of fencepost that fences nothing.
    Bypass,
    /// Through a fenced route, by a client that sends the token.
    Fenced,
    /// Through a fenced route, with the token from `fencepost attach`.
    Attach,
}

/// A suite of others, and what is known of it.
pub struct Suite {
    pub name: &'static str,
    /// It has no fewer tests than this.
    pub tests: usize,
    /// The ways through fencepost.
    pub ways: &'static [Way],
    /// The tests whose outcome is another one than straight: each with the ways, and the reason.
    pub differences: &'static [(&'static str, &'static [Way], &'static str)],
}

/// The name of each test, and its outcome.
pub type Outcomes = Vec<(String, String)>;

/// The outcomes by name. A name that is there already gets a number.
fn by_name(tests: Outcomes) -> BTreeMap<String, String> {
    let mut outcomes = BTreeMap::new();
    for (name, outcome) in tests {
        let more = (2..).map(|number| format!("{name} ({number})"));
        let mut names = std::iter::once(name.clone()).chain(more);
        let free = names.find(|name| !outcomes.contains_key(name));
        outcomes.insert(free.expect("a name"), outcome);
    }
    outcomes
}

/// One way to an upstream, for the time of one run.
pub struct Route {
    pub way: Way,
    /// The suite sends its requests there: `http://127.0.0.1:40123`.
    pub url: String,
    /// A directory for the files of the run.
    pub dir: TempDir,
    proxy: Option<Proxy>,
    _others: (Option<nginx::Nginx>, Option<Sidecar>),
}

/// Every method that a suite sends.
const FENCED: &str = "safe_methods: optional, routes: [{ path: '/{*path}', resource: peer, \
    methods: [POST, PUT, PATCH, DELETE, MKCOL, COPY, MOVE, PROPPATCH, LOCK, UNLOCK, M-SEARCH, PURGE] }]";
const BYPASS: &str = "routes: [{ path: /fenced, resource: peer }, \
    { path: '/{*path}', mode: bypass, allow: [any-destination] }]";
/// As nginx's documents have it, for WebSocket too.
const REVERSE_PROXY: &str = "proxy_http_version 1.1; proxy_set_header Host $http_host; \
    proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $on_upgrade; \
    client_max_body_size 0;";
const CONNECTION: &str = "map $http_upgrade $on_upgrade { default upgrade; '' ''; }";

impl Route {
    async fn to(upstream: &str, way: Way, program: &Path) -> Self {
        let (mut url, mut nginx, mut proxy, mut attach) = (upstream.to_owned(), None, None, None);
        if way == Nginx {
            let location = format!("{REVERSE_PROXY} proxy_pass {upstream};");
            let started = nginx::Nginx::start(program, &location, CONNECTION).await;
            url = started.url();
            nginx = Some(started);
        } else if way != Straight {
            let routes = if way == Bypass { BYPASS } else { FENCED };
            let config = Config::to(upstream, &Store::sqlite()).with(&format!("{{ {routes} }}"));
            let started = Proxy::start(&config).await;
            url = format!("http://{}", started.data());
            proxy = Some(started);
        }
        if way == Attach {
            let started = Sidecar::start(&url, &["--token", "7"]).await;
            url = format!("http://{}", started.at);
            attach = Some(started);
        }
        Self {
            way,
            url,
            dir: TempDir::new().expect("a temporary directory"),
            proxy,
            _others: (nginx, attach),
        }
    }

    /// The field that the client has to send.
    pub fn token(&self) -> Option<&'static str> {
        (self.way == Fenced).then_some("X-Fencing-Token: 7")
    }

    /// Runs a program in the directory to its end. Returns its output and its errors.
    pub async fn run(&self, command: Command) -> String {
        let mut command = tokio::process::Command::from(command);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        let output = command.kill_on_drop(true).output();
        let output = timeout(Duration::from_mins(5), output).must().await;
        let output = output.expect("the suite runs");
        let [said, errors] = [output.stdout, output.stderr];
        String::from_utf8_lossy(&said).into_owned() + &String::from_utf8_lossy(&errors)
    }
}

/// Plays a suite on all its ways at once, each against an upstream of its own, and compares.
/// `upstream`: the URL, and what serves it.
pub async fn compare<U>(
    suite: &Suite,
    upstream: impl AsyncFn() -> (String, U),
    play: impl AsyncFn(&Route, &U) -> Outcomes,
) {
    let Some(nginx) = tool("nginx") else { return };
    let ways: Vec<Way> = [&[Straight, Nginx], suite.ways].concat();
    let runs = ways.iter().map(async |way| {
        let (url, served) = upstream().await;
        let route = Route::to(&url, *way, &nginx).await;
        let outcomes = by_name(play(&route, &served).await);
        if let Some(proxy) = route.proxy.filter(|_| *way != Bypass) {
            assert_eq!(proxy.token("peer").await, Some(7), "{way:?} is not fenced");
        }
        outcomes
    });
    let (runs, name) = (join_all(runs).await, suite.name);
    let straight = &runs[0];
    assert!(
        straight.len() >= suite.tests,
        "{name}: too few tests: {straight:#?}"
    );
    let mut wrong = Vec::new();
    for (way, outcomes) in ways.iter().zip(&runs).skip(1) {
        let tests = straight.keys().chain(outcomes.keys());
        let differing: BTreeSet<&str> = tests
            .filter(|name| straight.get(*name) != outcomes.get(*name))
            .map(String::as_str)
            .collect();
        let lines = suite.differences.iter();
        let lines = lines.filter(|(_, ways, _)| ways.contains(way));
        let explained: BTreeSet<&str> = lines.map(|(name, ..)| *name).collect();
        for test in differing.difference(&explained) {
            let says = [straight, outcomes].map(|of| of.get(*test));
            wrong.push(format!("{way:?}: {test}: {says:?}"));
        }
        for test in explained.difference(&differing) {
            wrong.push(format!(
                "{way:?}: {test} does not differ: take its line out"
            ));
        }
        let (tests, count) = (straight.len(), differing.len());
        println!("{name}: {tests} tests, {count} differ by {way:?}");
    }
    assert!(wrong.is_empty(), "{name}: {wrong:#?}");
}
