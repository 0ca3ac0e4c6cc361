//! Waiting for a condition, with a deadline: the suite never sleeps in the hope that something has
//! happened meanwhile.

use std::fmt::Debug;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::task::JoinError;

use super::Answer;

/// How long anything that ought to happen soon may take on a crowded machine. With a mutant much is
/// waited for in vain.
pub fn deadline() -> Duration {
    let mutant = std::env::var_os("FENCEPOST_MUTANT").is_some();
    Duration::from_secs(if mutant { 15 } else { 30 })
}

/// Polls until `probe` yields something.
///
/// # Panics
/// After [`deadline`], naming what was waited for.
pub async fn eventually<T, F>(what: &str, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        let waited = started.elapsed();
        assert!(waited < deadline(), "waited {waited:?} in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Awaits `future`, which ought to end soon.
///
/// # Panics
/// After [`deadline`], naming what was waited for.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(deadline(), future).await;
    ended.unwrap_or_else(|_| panic!("waited {:?} in vain for: {what}", deadline()))
}

/// The result of a task, which ought to end soon.
///
/// # Panics
/// After [`deadline`], or as the task did; names the line that waits.
#[track_caller]
pub fn joined<T>(task: impl Future<Output = Result<T, JoinError>>) -> impl Future<Output = T> {
    let at = Location::caller();
    async move {
        let ended = soon(&at.to_string(), task).await;
        ended.unwrap_or_else(|error| panic!("{at}: {error}"))
    }
}

/// The answer to a request that a task has sent, which has to be the upstream's own success.
///
/// # Panics
/// As [`joined`], or if it is another answer.
#[track_caller]
pub fn forwarded(
    request: impl Future<Output = Result<Answer, JoinError>>,
) -> impl Future<Output = Answer> {
    let at = Location::caller();
    let answer = joined(request);
    async move { answer.await.forwarded_at(at) }
}

/// As [`forwarded`], for several requests that run beside each other.
///
/// # Panics
/// As [`forwarded`] does for one of them.
#[track_caller]
pub fn all_forwarded<const N: usize>(
    requests: [tokio::task::JoinHandle<Answer>; N],
) -> impl Future<Output = ()> {
    let at = Location::caller();
    let answers = requests.map(joined);
    async move {
        for answer in answers {
            answer.await.forwarded_at(at);
        }
    }
}

/// A future whose error ends the test.
pub trait Must: Future + Sized {
    /// The value.
    ///
    /// # Panics
    /// On an error; names the line that called it.
    #[track_caller]
    fn must(self) -> MustFuture<Self> {
        MustFuture(Box::pin(self), Location::caller())
    }
}

impl<T, E, F: Future<Output = Result<T, E>>> Must for F {}

pub struct MustFuture<F>(Pin<Box<F>>, &'static Location<'static>);

impl<T, E: Debug, F: Future<Output = Result<T, E>>> Future for MustFuture<F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let ended = self.0.as_mut().poll(cx);
        ended.map(|ended| ended.unwrap_or_else(|error| panic!("{}: {error:?}", self.1)))
    }
}
