//! Steps that many tests take with a proxy.

use std::panic::Location;
use std::process::Command;

use serde_json::Value;
use tokio::task::JoinHandle;

use super::client::Exchange;
use super::proxy::fencepost;
use super::run::run;
use super::wait::{eventually, soon};
use super::{Answer, Config, Gate, Proxy, Request, Store, Upstream, get, put};

/// Counts requests by their outcome.
pub const REQUESTS: &str = "fencepost_requests_total";
/// Counts how often each limit was reached.
pub const REACHED: &str = "fencepost_limit_reached_total";

impl Proxy {
    /// As [`Self::before`], with the configuration.
    pub async fn with_config(store: &Store, more: &str) -> (Upstream, Config, Self) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, store).with(more);
        let proxy = Self::start(&config).await;
        (upstream, config, proxy)
    }

    /// Sends a request again and again until it is answered with 200.
    #[track_caller]
    pub fn until_forwarded(&self, request: Request) -> impl Future<Output = ()> + Send {
        self.until_status(200, request)
    }

    /// Sends a request again and again until it is answered with this status.
    #[track_caller]
    pub fn until_status(&self, status: u16, request: Request) -> impl Future<Output = ()> + Send {
        let (to, what) = (self.data(), format!("{status} at {}", Location::caller()));
        async move {
            let comes = || async { (request.send(to).await.status() == status).then_some(()) };
            eventually(&what, comes).await;
        }
    }

    /// Waits until `/readyz` has this status.
    pub async fn until_ready_is(&self, status: u16) {
        let is = || async { (self.ask("/readyz").await.status() == status).then_some(()) };
        eventually(&format!("/readyz is {status}"), is).await;
    }

    /// Waits until a resource has this mark.
    pub async fn until_token(&self, resource: &str, token: u64) {
        let is = || async { (self.token(resource).await == Some(token)).then_some(()) };
        eventually(&format!("the mark of {resource} is {token}"), is).await;
    }

    /// Waits until a metric, summed over all its series, is 0.
    pub async fn until_none(&self, metric: &str) {
        self.until_metric(metric, &[], |value| value < 0.5).await;
    }

    /// Waits until a metric, summed over all its series, is above 0.
    pub async fn until_some(&self, metric: &str) {
        self.until_metric(metric, &[], |value| value > 0.0).await;
    }

    /// A counter, summed over all series that have these labels: a whole number.
    pub async fn count(&self, metric: &str, labels: &[(&str, &str)]) -> u64 {
        self.metrics().await.count(metric, labels)
    }

    /// Waits until so many requests have had this outcome.
    pub async fn until_outcome(&self, outcome: &str, least: u32) {
        let often = |count| count >= f64::from(least);
        let outcome = [("outcome", outcome)];
        self.until_metric(REQUESTS, &outcome, often).await;
    }

    /// How often a limit was reached so far.
    pub async fn reached(&self, limit: &str) -> u64 {
        self.count(REACHED, &[("limit", limit)]).await
    }

    /// Waits until a limit has been reached so often.
    pub async fn until_reached(&self, limit: &str, least: u32) {
        let often = |count| count >= f64::from(least);
        self.until_metric(REACHED, &[("limit", limit)], often).await;
    }

    /// The first line of the log whose field has this value, once it has been read.
    pub async fn log_of(&self, field: &str, value: &str) -> Value {
        let what = format!("a line whose {field} is {value}");
        self.logged(&what, |line| line[field] == value).await
    }

    /// A command of the program for the admin port, with the token of writes.
    pub fn admin_command(&self, arguments: &[&str]) -> Command {
        let mut command = fencepost();
        command.args(arguments);
        command.args(["--admin", &format!("http://{}", self.admin())]);
        command.arg("--token-file").arg(self.token_file());
        command
    }

    /// Runs [`Self::admin_command`] to its end. Returns whether it was successful, and all that it
    /// wrote.
    pub async fn run_admin(&self, arguments: &[&str]) -> (bool, String) {
        let ended = run(self.admin_command(arguments)).await;
        (ended.code == Some(0), ended.text())
    }

    /// Waits until the data port takes no more connections.
    pub async fn until_closed(&self) {
        let more = put("/orders/8").token(1);
        let fails = || async { more.attempt(self.data()).await.err() };
        eventually("the data port to take no more", fails).await;
    }

    /// Waits for the end of a drain, as the hook of a pod does.
    pub async fn until_drained(&self) {
        let hook = get("/drained");
        let drained = soon("the end of the drain", hook.attempt(self.admin())).await;
        assert_eq!(drained.expect("an answer").status(), 200);
    }

    /// Replaces the configuration file, and has it read.
    pub fn reload(&self, config: &Config) {
        self.rewrite(config);
        self.hang_up();
    }

    /// Starts a request that the upstream holds up, and waits until it is there.
    pub async fn held(&self, upstream: &Upstream, request: Request) -> (JoinHandle<Answer>, Gate) {
        let (gate, before) = (upstream.hold(&request), upstream.count());
        let held = self.start_request(request);
        upstream.reached(before + 1).await;
        (held, gate)
    }

    /// As [`Self::held`], for a test that leaves before the answer.
    pub async fn begin_held(&self, upstream: &Upstream, request: Request) -> (Exchange, Gate) {
        let (gate, before) = (upstream.hold(&request), upstream.count());
        let held = self.begin(&request, b"").await;
        upstream.reached(before + 1).await;
        (held, gate)
    }

    /// Asserts that a start with this configuration is refused, and that it says all of `why`.
    #[track_caller]
    pub fn refused_for(config: &Config, why: &[&str]) -> impl Future<Output = String> {
        Self::fails_for(config, &["serve"], why)
    }

    /// As [`Self::refused_for`], for another command.
    #[track_caller]
    pub fn fails_for(
        config: &Config,
        arguments: &[&str],
        why: &[&str],
    ) -> impl Future<Output = String> {
        let at = Location::caller();
        async move {
            let (status, said) = Self::run_with(config, arguments).await;
            assert_eq!(status.code(), Some(1), "{at}: {said}");
            for word in why {
                assert!(said.contains(word), "{at}: no {word:?} in {said}");
            }
            said
        }
    }
}
