//! Steps that many tests take with a proxy.

use std::panic::Location;
use std::process::ExitStatus;

use tokio::task::JoinHandle;

use super::client::Exchange;
use super::wait::eventually;
use super::{Answer, Config, Gate, Proxy, Request, Upstream};

impl Proxy {
    /// Sends a request again and again until it is answered with 200.
    #[track_caller]
    pub fn until_forwarded(&self, request: Request) -> impl Future<Output = ()> + Send {
        let (to, what) = (self.data(), format!("200 at {}", Location::caller()));
        async move {
            let passes = || async { (request.send(to).await.status() == 200).then_some(()) };
            eventually(&what, passes).await;
        }
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
        let at = Location::caller();
        async move { refusal(Self::refused(config).await, why, at) }
    }

    /// As [`Self::refused_for`], for another command.
    #[track_caller]
    pub fn fails_for(
        config: &Config,
        arguments: &[&str],
        why: &[&str],
    ) -> impl Future<Output = String> {
        let at = Location::caller();
        async move { refusal(Self::run_with(config, arguments).await, why, at) }
    }
}

fn refusal((status, said): (ExitStatus, String), why: &[&str], at: &Location<'_>) -> String {
    assert_eq!(status.code(), Some(1), "{at}: {said}");
    for word in why {
        assert!(said.contains(word), "{at}: no {word:?} in {said}");
    }
    said
}
