//! [`Attachment`]: what `fencepost attach` adds to requests, and what it has seen of the answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Response};
use tokio::sync::watch;

use super::body::{ClientBody, full};
use super::headers::attached::FencingStamp;
use crate::metrics::Outcome;

/// What is added to each request, and when a refused one is sent again.
#[derive(Debug)]
pub(crate) struct Attachment {
    stamp: RwLock<FencingStamp>,
    /// How long a request is sent again after a refusal with `retry: same-token`.
    pub retry_for: Duration,
    /// The authorities of requests that lead to the fencepost.
    hosts: RwLock<Vec<String>>,
    /// The refusal that has ended the hold.
    lost: watch::Sender<Option<Arc<Lost>>>,
    pub counts: AttachCounts,
}

/// The counters of one run.
#[derive(Debug, Default)]
pub(crate) struct AttachCounts {
    requests: AtomicU64,
    retries: AtomicU64,
    stale: AtomicU64,
    past_no_fence: AtomicBool,
    /// Short: a map of some twenty outcomes, never across an await.
    refused: Mutex<BTreeMap<String, u64>>,
}

/// What [`AttachCounts`] has counted.
#[derive(Clone, Debug)]
pub(crate) struct AttachTotals {
    /// Requests of the client, each once.
    pub requests: u64,
    /// How often one was sent again.
    pub retries: u64,
    /// Requests refused as stale, here or by the fencepost.
    pub stale: u64,
    /// Requests that a fencepost did not forward, or whose outcome is unknown, by their last
    /// outcome; without stale ones.
    pub refused: BTreeMap<String, u64>,
}

impl AttachTotals {
    /// Whether the token was refused for itself, so that no request with it can succeed there.
    pub(crate) fn token_refused(&self) -> bool {
        let of_token = [Outcome::MalformedToken, Outcome::ImplausibleToken];
        of_token
            .iter()
            .any(|outcome| self.refused.contains_key(outcome.as_str()))
    }
}

impl AttachCounts {
    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes an answer that no fencepost has passed on. Returns whether it is the first.
    pub(super) fn past_no_fence(&self) -> bool {
        !self.past_no_fence.swap(true, Ordering::Relaxed)
    }

    /// Returns whether it is the first with this outcome.
    pub(super) fn refused(&self, outcome: &str) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let count = refused.entry(outcome.to_owned()).or_default();
        *count += 1;
        *count == 1
    }

    pub(crate) fn totals(&self) -> AttachTotals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AttachTotals {
            requests: read(&self.requests),
            retries: read(&self.retries),
            stale: read(&self.stale),
            refused: self
                .refused
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}

/// A refusal as stale: the lock has another holder.
pub(crate) struct Lost {
    pub token: String,
    /// What was asked for: `PUT /orders/7`.
    pub request: String,
    /// The highest token that the fencepost has accepted there, if it says so.
    pub mark: Option<String>,
    /// The answer, which later requests get as well.
    head: Parts,
    body: Bytes,
}

impl Lost {
    fn answer(&self) -> Response<ClientBody> {
        Response::from_parts(self.head.clone(), full(self.body.clone()))
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, request, .. } = self;
        write!(f, "token {token} is stale: {request} was refused, because ")?;
        match &self.mark {
            Some(mark) => write!(f, "the holder of token {mark} is newer"),
            None => write!(f, "a newer holder has written there"),
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lost({self})")
    }
}

impl Attachment {
    pub(crate) fn new(stamp: FencingStamp, retry_for: Duration) -> Self {
        Self {
            stamp: RwLock::new(stamp),
            retry_for,
            hosts: RwLock::default(),
            lost: watch::Sender::new(None),
            counts: AttachCounts::default(),
        }
    }

    /// The fencing fields of a request that begins now.
    pub(super) fn stamp(&self) -> FencingStamp {
        let stamp = self.stamp.read().unwrap_or_else(PoisonError::into_inner);
        stamp.clone()
    }

    /// The token of requests that begin now.
    pub(crate) fn token(&self) -> HeaderValue {
        self.stamp().token
    }

    /// Later requests get this token. Those that were refused with another one no longer count.
    pub(crate) fn renew(&self, token: HeaderValue) {
        let mut stamp = self.stamp.write().unwrap_or_else(PoisonError::into_inner);
        stamp.token = token;
        drop(stamp);
        self.lost.send_replace(None);
    }

    /// Requests for one of these authorities lead to the fencepost.
    pub(crate) fn stand_for(&self, hosts: &[String]) {
        let mut known = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        *known = hosts.iter().map(|host| with_port(host)).collect();
    }

    pub(super) fn stands_for(&self, authority: &str) -> bool {
        let known = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
        known.contains(&with_port(authority))
    }

    /// Changes once the hold is lost, and once a new token ends that.
    pub(crate) fn lost(&self) -> watch::Receiver<Option<Arc<Lost>>> {
        self.lost.subscribe()
    }

    /// The answer to all requests while the hold is lost.
    pub(super) fn refused(&self) -> Option<Response<ClientBody>> {
        let lost = self.lost.borrow().clone()?;
        self.counts.stale.fetch_add(1, Ordering::Relaxed);
        Some(lost.answer())
    }

    /// The hold is lost: this was answered to a request with `token`. Returns the answer.
    pub(super) fn lose(
        &self,
        (token, request): (&HeaderValue, String),
        mark: Option<String>,
        (head, body): (Parts, Bytes),
    ) -> Response<ClientBody> {
        self.counts.stale.fetch_add(1, Ordering::Relaxed);
        let lost = Arc::new(Lost {
            token: String::from_utf8_lossy(token.as_bytes()).into_owned(),
            request,
            mark,
            head,
            body,
        });
        let answer = lost.answer();
        // Under the lock, so that a token that has come since is not blamed.
        let stamp = self.stamp.read().unwrap_or_else(PoisonError::into_inner);
        if stamp.token == *token {
            self.lost.send_if_modified(|known| {
                let first = known.is_none();
                if first {
                    *known = Some(lost);
                }
                first
            });
        }
        drop(stamp);
        answer
    }
}

/// An authority of `http` in one spelling.
fn with_port(authority: &str) -> String {
    let host = authority.to_ascii_lowercase();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    if port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())) {
        return host;
    }
    format!("{}:80", host.trim_end_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_known_with_and_without_its_default_port() {
        for (authority, port) in [
            ("Orders", "orders:80"),
            ("orders:7080", "orders:7080"),
            ("[::1]", "[::1]:80"),
            ("[::1]:7080", "[::1]:7080"),
            ("orders:", "orders:80"),
        ] {
            assert_eq!(with_port(authority), port);
        }
    }
}
