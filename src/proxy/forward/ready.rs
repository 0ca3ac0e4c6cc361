//! The steps before a permit begins: reserve the way upstream, spend the token.

use std::time::Duration;

use super::answered::HeadTx;
use crate::fencing::Fencing;
use crate::fencing::barrier::Permit;
use crate::proxy::admit::{self, cut_off};
use crate::proxy::refusal::{Refusal, Why};
use crate::proxy::upstream::{ReserveError, Reserved, SendError, Upstream};

/// What has to be done before a permit begins.
pub(super) struct Ready<'a> {
    pub upstream: &'a Upstream,
    /// How long it may wait for the upstream.
    pub within: Duration,
    /// See [`Exchange::spend`](super::Exchange::spend).
    pub spend: Option<&'a str>,
}

impl Ready<'_> {
    /// Reserves the way upstream, and spends the token. The permit holds newer tokens up meanwhile, so
    /// the wait ends as soon as one is known.
    pub(super) async fn wait(
        self,
        permit: &Permit,
        fencing: &Fencing,
        head: &mut HeadTx,
    ) -> Result<Reserved, Refusal> {
        let (superseded, cutoff) = (permit.superseded(), permit.cutoff());
        let refused = || {
            let (key, token) = (permit.key(), permit.token());
            admit::refusal(fencing.superseded(key, token), key, token)
        };
        let reserved = tokio::select! {
            biased;
            () = superseded.cancelled() => return Err(refused()),
            () = cutoff.cancelled() => return Err(cut_off()),
            () = head.closed() => {
                return Err(Refusal::ClientGone("The client has left".into()));
            }
            reserved = self.upstream.reserve(permit.generation(), self.within) => {
                reserved.map_err(|error| unreserved(&error))?
            }
        };
        if let Some(name) = self.spend {
            admit::spend(fencing, permit, name).await?;
            if superseded.is_cancelled() {
                // The token is stale now, spent or not.
                return Err(refused());
            }
        }
        Ok(reserved)
    }
}

/// What a request is told that could not be sent.
pub(crate) fn unreserved(error: &ReserveError) -> Refusal {
    match error {
        ReserveError::Full => Refusal::Overloaded(
            "No stream was free on the HTTP/2 connections to the upstream. Nothing was forwarded. \
             See upstream.http2_connections.",
        ),
        ReserveError::Retired => Refusal::Overloaded(
            "The configuration was reloaded while the request waited for the upstream. Nothing was \
             forwarded.",
        ),
        ReserveError::Unreachable(_) | ReserveError::Ended => Refusal::unreachable(error, false),
    }
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotSent(why) => Self::unreachable(&why, false),
            SendError::Refused(why) => Self::refused(&why, false),
            SendError::Broken(why) => {
                Self::Broken(Why::of("The exchange with the upstream broke", &why))
            }
        }
    }
}
