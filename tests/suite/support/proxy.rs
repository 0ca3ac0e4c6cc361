//! The program under test: its configuration, one run of it, and what it says of itself.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub use super::client::escape;
use super::client::{Answer, Exchange, Request, get, request};
use super::metrics::Metrics;
use super::process::Process;
use super::store::disk_dir;
use super::wait::eventually;
use super::{Store, Upstream};

/// The log line that ends the wait for a proxy's start.
pub const READY: &str = "the proxy to be ready";
/// The bearer token of the admin API in every test.
pub const ADMIN_TOKEN: &str = "only-for-tests-of-ours";

/// A configuration file in the making. Its store lives at least as long.
#[derive(Clone)]
pub struct Config {
    file: Value,
    store: Store,
}

impl Config {
    /// Fences `/orders/{id}` in front of `upstream`, with free ports and JSON logs.
    pub fn new(upstream: &Upstream, store: &Store) -> Self {
        Self::to(upstream.url(), store)
    }

    /// As [`Self::new`], in front of any URL. The upstream is given longer than by default: on a
    /// busy machine a test may hold a request there for more than ten seconds.
    pub fn to(url: &str, store: &Store) -> Self {
        let file = json!({
            "listen": "127.0.0.1:0",
            "upstream": { "url": url, "timeout": "30s" },
            "barrier": { "settle": "30s" },
            "store": store.settings(),
            "admin": { "listen": "127.0.0.1:0" },
            "log": { "format": "json" },
            "routes": [{ "path": "/orders/{id}", "resource": "order:{id}" }],
        });
        Self {
            file,
            store: store.clone(),
        }
    }

    /// Lays a YAML fragment over what there is: mappings merge, all else is replaced.
    pub fn with(mut self, yaml: &str) -> Self {
        lay_over(&mut self.file, fragment(yaml));
        self
    }

    /// Lays a YAML fragment over the first route.
    pub fn route(mut self, yaml: &str) -> Self {
        lay_over(&mut self.file["routes"][0], fragment(yaml));
        self
    }

    /// The file's text, with an admin token that lies in `dir`.
    fn text_for(&self, dir: &Path) -> String {
        let token_file = dir.join("admin-token");
        std::fs::write(&token_file, ADMIN_TOKEN).expect("the directory is writable");
        let mut config = self.clone();
        config.file["admin"]["token_file"] = json!(token_file);
        config.text()
    }

    /// The file's text.
    pub fn text(&self) -> String {
        serde_saphyr::to_string(&self.file).expect("plain data can be written")
    }
}

fn fragment(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}:\n{yaml}"))
}

fn lay_over(base: &mut Value, fragment: Value) {
    match (base, fragment) {
        (Value::Object(base), Value::Object(fragment)) => {
            for (key, value) in fragment {
                lay_over(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, fragment) => *base = fragment,
    }
}

/// The path of the binary under test: the one just built, or a mutant of it (`tests/mutants.sh`).
fn binary() -> OsString {
    std::env::var_os("FENCEPOST_MUTANT").unwrap_or_else(|| env!("CARGO_BIN_EXE_fencepost").into())
}

/// The binary under test.
pub fn fencepost() -> Command {
    let mut command = Command::new(binary());
    command.env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// One run of the program. Killed when dropped.
pub struct Proxy {
    process: Process,
    data: SocketAddr,
    admin: SocketAddr,
    dir: TempDir,
    _store: Option<Store>,
}

/// A proxy before an upstream of its own, over `SQLite`, with this laid over [`Config::new`].
pub async fn fenced(more: &str) -> (Upstream, Proxy) {
    Proxy::before(&Store::sqlite(), more).await
}

/// One run that may not listen yet, in its directory. Killed when dropped.
pub struct Starting {
    pub process: Process,
    _dir: TempDir,
}

impl Starting {
    async fn end(mut self) -> (ExitStatus, String) {
        (self.process.exit().await, self.process.output())
    }
}

impl Proxy {
    /// Starts it and waits until it listens.
    pub async fn start(config: &Config) -> Self {
        Self::start_by(config, fencepost(), &[]).await
    }

    /// A proxy before an upstream of its own, with this laid over [`Config::new`].
    pub async fn before(store: &Store, more: &str) -> (Upstream, Self) {
        let (upstream, _, proxy) = Self::with_config(store, more).await;
        (upstream, proxy)
    }

    /// As [`Self::start`], by way of `runner` (strace, say), which gets the command as arguments.
    pub async fn start_under(config: &Config, mut runner: Command) -> Self {
        runner.arg(binary());
        Self::start_by(config, runner, &[]).await
    }

    /// As [`Self::start`], with an environment and flags over the file.
    pub async fn start_by(config: &Config, command: Command, flags: &[&str]) -> Self {
        let (dir, command) = with_file(config, command, &[&["serve"], flags].concat());
        Self::run_in(dir, command, Some(config.store.clone())).await
    }

    /// As [`Self::start`], where the store is not fit to make it ready.
    pub async fn start_unready(config: &Config) -> Self {
        let (dir, command) = with_file(config, fencepost(), &["serve"]);
        Self::until_it_listens(dir, command, Some(config.store.clone())).await
    }

    /// Starts it, and waits for nothing.
    pub fn starting(config: &Config) -> Starting {
        started(config, fencepost(), &["serve"])
    }

    /// Runs `fencepost serve` without a file, in a directory of its own.
    pub async fn start_fileless(flags: &[&str]) -> Self {
        let mut command = fencepost();
        command.arg("serve").args(flags);
        Self::run_in(disk_dir(), command, None).await
    }

    async fn run_in(dir: TempDir, command: Command, store: Option<Store>) -> Self {
        let proxy = Self::until_it_listens(dir, command, store).await;
        let is_ready = || async { (proxy.ask("/readyz").await.status() == 200).then_some(()) };
        eventually(READY, is_ready).await;
        proxy
    }

    async fn until_it_listens(dir: TempDir, mut command: Command, store: Option<Store>) -> Self {
        let mut process = Process::start(command.current_dir(dir.path()));
        let (data, admin) = process.says("the proxy to listen", addresses).await;
        Self {
            process,
            data,
            admin,
            dir,
            _store: store,
        }
    }

    /// As [`Self::run_with`] `serve`, by way of `runner`, which gets the command as arguments.
    pub async fn refused_under(config: &Config, mut runner: Command) -> (ExitStatus, String) {
        runner.arg(binary());
        started(config, runner, &["serve"]).end().await
    }

    /// Runs another command to its end with `--config`.
    pub async fn run_with(config: &Config, arguments: &[&str]) -> (ExitStatus, String) {
        started(config, fencepost(), arguments).end().await
    }

    /// As [`Self::run_with`], until it has written `sign`; then kills it.
    pub async fn interrupted_with(config: &Config, arguments: &[&str], sign: &str) {
        let is_sign = |line: &str| line.contains(sign).then_some(());
        let mut started = started(config, fencepost(), arguments);
        started.process.says(sign, is_sign).await;
    }

    /// As [`Self::start`], with the file where Kubernetes would mount a `ConfigMap`: behind two
    /// links.
    pub async fn start_linked(config: &Config) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let text = config.text_for(dir.path());
        mount(dir.path(), "first", &[("fencepost.yaml", &text)]);
        let mut command = fencepost();
        command
            .args(["serve", "--config"])
            .arg(dir.path().join("fencepost.yaml"));
        Self::run_in(dir, command, Some(config.store.clone())).await
    }

    /// Swaps the link, as Kubernetes does when a `ConfigMap` has changed.
    pub fn relink(&self, config: &Config) {
        let (dir, text) = (self.dir.path(), config.text_for(self.dir.path()));
        mount(dir, "second", &[("fencepost.yaml", &text)]);
    }

    /// Replaces the configuration file in one step.
    pub fn rewrite(&self, config: &Config) {
        self.rewrite_text(&config.text_for(self.dir.path()));
    }

    /// As [`Self::rewrite`], with any text.
    pub fn rewrite_text(&self, text: &str) {
        put(self.dir.path(), "fencepost.yaml", text);
    }

    /// The data port.
    pub fn data(&self) -> SocketAddr {
        self.data
    }

    /// The admin port.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its configuration file.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("fencepost.yaml")
    }

    /// The file that holds [`ADMIN_TOKEN`].
    pub fn token_file(&self) -> PathBuf {
        self.dir.path().join("admin-token")
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends a request to the data port.
    pub async fn send(&self, request: Request) -> Answer {
        request.send(self.data).await
    }

    /// As [`Self::send`]; asserts that the answer is the upstream's own success.
    #[track_caller]
    pub fn forward(&self, request: Request) -> impl Future<Output = Answer> + Send {
        let (to, at) = (self.data, Location::caller());
        async move { request.send(to).await.forwarded_at(at) }
    }

    /// As [`Self::send`]; asserts that the answer is the proxy's own, and returns its body.
    #[track_caller]
    pub fn refuse(
        &self,
        request: Request,
        status: u16,
        kind: &str,
    ) -> impl Future<Output = Value> + Send {
        let (to, at) = (self.data, Location::caller());
        async move { request.send(to).await.problem_at(status, kind, at) }
    }

    /// As [`Self::refuse`], for a token below the mark.
    #[track_caller]
    pub fn stale(&self, request: Request) -> impl Future<Output = Value> + Send {
        self.refuse(request, 412, "stale-token")
    }

    /// Sends a request from a task of its own.
    pub fn start_request(&self, request: Request) -> JoinHandle<Answer> {
        request.start(self.data)
    }

    /// Sends a request's head and `part` of its body.
    pub async fn begin(&self, request: &Request, part: &[u8]) -> Exchange {
        Exchange::begin(self.data, request, part).await
    }

    /// A read of the admin port.
    pub async fn ask(&self, target: &str) -> Answer {
        get(target).host(Some("localhost")).send(self.admin).await
    }

    /// A write to the admin port, with the bearer token.
    pub async fn command(&self, target: &str, body: &Value) -> Answer {
        request("POST", target)
            .header("Authorization", format!("Bearer {ADMIN_TOKEN}"))
            .header("Content-Type", "application/json")
            .body(body.to_string())
            .send(self.admin)
            .await
    }

    /// The answer of the marks API for a resource; `None` if it does not know the resource.
    pub async fn mark(&self, resource: &str) -> Option<Value> {
        let answer = self.ask(&format!("/v1/marks/{}", escape(resource))).await;
        match answer.status() {
            200 => Some(answer.json()),
            404 => None,
            status => panic!("{status}: {}", answer.text()),
        }
    }

    /// The mark of a resource, if there is one.
    pub async fn token(&self, resource: &str) -> Option<u64> {
        let mark = self.mark(resource).await?;
        let token = mark["mark"].as_str()?;
        Some(token.parse().expect("a decimal string"))
    }

    /// Waits until this many requests wait at the resource's barrier.
    pub async fn waiting(&self, resource: &str, count: u64) {
        let what = format!("{count} waiting at the barrier of {resource}");
        eventually(&what, || async {
            let mark = self.mark(resource).await?;
            (mark["waiting"].as_u64() == Some(count)).then_some(())
        })
        .await;
    }

    pub async fn metrics(&self) -> Metrics {
        let answer = self.ask("/metrics").await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        Metrics::parse(&answer.text())
    }

    /// A metric, summed over all series that have these labels.
    pub async fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics().await.sum(name, labels)
    }

    /// Waits until a metric (summed over all series that have these labels) is as wanted.
    pub async fn until_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        fits: impl Fn(f64) -> bool,
    ) {
        let fit = || async { fits(self.sum(name, labels).await).then_some(()) };
        eventually(&format!("{name}{labels:?}"), fit).await;
    }

    /// Every log line that is JSON, its own fields flattened into it.
    pub fn logs(&self) -> Vec<Value> {
        let lines = self.process.lines();
        lines.iter().filter_map(|line| flat(line)).collect()
    }

    /// The first line of the log that is such a one, once it has been read.
    pub async fn logged(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async { self.logs().into_iter().find(&is) }).await
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// SIGTERM; asserts a good end.
    pub async fn stop(&mut self) {
        self.process.signal(Signal::TERM);
        let status = self.process.exit().await;
        assert!(status.success(), "after SIGTERM: {status}");
    }

    /// SIGSTOP; returns when every thread has stopped.
    pub async fn pause(&self) {
        self.process.stop().await;
    }

    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    pub fn hang_up(&self) {
        self.process.signal(Signal::HUP);
    }
}

/// A command with this configuration, which lies in the directory.
fn with_file(config: &Config, mut command: Command, arguments: &[&str]) -> (TempDir, Command) {
    let dir = TempDir::new().expect("a temporary directory");
    let file = put(dir.path(), "fencepost.yaml", &config.text_for(dir.path()));
    command.args(arguments).arg("--config").arg(file);
    (dir, command)
}

fn started(config: &Config, command: Command, arguments: &[&str]) -> Starting {
    let (dir, mut command) = with_file(config, command, arguments);
    let process = Process::start(&mut command);
    Starting { process, _dir: dir }
}

/// Puts a file into a directory in one step, or in the place of the one that was there.
pub fn put(dir: &Path, name: &str, text: &str) -> PathBuf {
    let (new, file) = (dir.join(format!("{name}.new")), dir.join(name));
    std::fs::write(&new, text).expect("the directory is writable");
    std::fs::rename(&new, &file).expect("the directory is writable");
    file
}

/// Puts a version of mounted files into a directory, behind two links, and swaps to it in one step,
/// as Kubernetes does.
pub fn mount(dir: &Path, version: &str, files: &[(&str, &str)]) {
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, dir.join(name)).expect("the directory is writable");
    };
    let folder = dir.join(version);
    std::fs::create_dir(&folder).expect("the directory is writable");
    for (name, text) in files {
        std::fs::write(folder.join(name), text).expect("the directory is writable");
        if !dir.join(name).is_symlink() {
            link(&format!("..data/{name}"), name);
        }
    }
    link(version, "..new");
    std::fs::rename(dir.join("..new"), dir.join("..data")).expect("the directory is writable");
}

/// The addresses in the line that says that the proxy listens.
fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line = flat(line).filter(|line| line["message"] == "listening")?;
    let address = |name: &str| line[name].as_str()?.parse().ok();
    // The path of a Unix socket the test knows.
    let unix = SocketAddr::from(([127, 0, 0, 1], 0));
    Some((address("data").unwrap_or(unix), address("admin")?))
}

/// A JSON log line as one flat object.
fn flat(line: &str) -> Option<Value> {
    let mut line: Value = serde_json::from_str(line).ok()?;
    if let Some(Value::Object(fields)) = line.get_mut("fields").map(Value::take) {
        line.as_object_mut()?.extend(fields);
    }
    Some(line)
}
