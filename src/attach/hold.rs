//! The holder's token, the refusal that ends its use, and the numbers of the run.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use http::response::Parts;

use crate::metrics::Outcome;

/// The token of requests that begin now.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub token: HeaderValue,
    /// Set once the lock has another holder.
    pub lost: Option<Arc<Lost>>,
}

/// A refusal as stale.
#[derive(Debug)]
pub(super) struct Lost {
    /// `token 41 is stale: …`.
    pub why: String,
    /// The fencepost's answer, which later requests get as well.
    pub answer: (Parts, Bytes),
}

/// The numbers of one run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Requests of the client, claims included, each once.
    pub requests: u64,
    /// Attempts after the first one of a request.
    pub retries: u64,
    /// Requests refused as stale, here or by the fencepost.
    pub stale: u64,
    /// Other requests that were refused, or whose outcome is unknown, by their last outcome.
    pub refused: BTreeMap<String, u64>,
    /// An answer did not come through a fencepost.
    pub unchecked: bool,
}

impl Counts {
    /// Whether the token was refused for itself, so that no request with it can succeed there.
    pub(super) fn token_refused(&self) -> bool {
        let of_token = [Outcome::MalformedToken, Outcome::ImplausibleToken];
        of_token
            .iter()
            .any(|outcome| self.refused.contains_key(outcome.as_str()))
    }
}
