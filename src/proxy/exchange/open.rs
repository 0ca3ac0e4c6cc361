//! [`OpenExchange`]: a fenced exchange that has begun, and how it ends if there is no response to
//! relay.

use tokio_util::sync::DropGuard;

use super::ExchangeLimits;
use super::cuts::{Cuts, ExchangeFailure};
use crate::fencing::Fencing;
use crate::fencing::barrier::Sending;
use crate::metrics::InFlightGuard;
use crate::proxy::refusal::Refusal;
use crate::proxy::response_watch::ResponseWatch;
use crate::proxy::tunnel::{Tunnel, TunnelEnd};
use crate::proxy::upstream::{ExchangeHold, RequestFate};
use crate::routing::{ResourceKey, Token};

/// An exchange that has begun. The order of the fields matters when they are dropped: an upload
/// that still runs must end before the permit, whose drop starts the settling.
pub(super) struct OpenExchange<G> {
    pub hold: ExchangeHold,
    pub upload: DropGuard,
    pub sending: Sending,
    /// Counts the exchange as in flight, and keeps what [`Exchange::held`](super::Exchange::held)
    /// has.
    pub counted: (InFlightGuard, G),
    pub key: ResourceKey,
    pub token: Token,
    pub limits: ExchangeLimits,
}

impl<G> OpenExchange<G> {
    pub(super) fn cuts(&self) -> Cuts<'_> {
        Cuts::of(&self.sending, self.limits)
    }

    /// Ends a request that got no answer: makes sure that nothing more of it arrives, ends its
    /// permit, and returns the refusal for its client. `spend`: the name that the token was spent
    /// under.
    pub(super) async fn unanswered(
        self,
        failed: ExchangeFailure,
        fencing: &Fencing,
        spend: Option<String>,
    ) -> Refusal {
        // However this ends, variables are dropped in the reverse order: hold, upload, permit.
        let Self {
            counted: _counted,
            key,
            token,
            limits,
            sending,
            upload,
            hold,
        } = self;
        drop(upload);
        let cuts = Cuts::of(&sending, limits);
        match failed.give_up(hold, cuts).await {
            RequestFate::WithoutEffect => {
                sending.settled();
                let given = match spend {
                    Some(name) => fencing.give_back(&key, token, name).await,
                    None => true,
                };
                failed.without_effect(!given)
            }
            RequestFate::Unknown => {
                drop(sending);
                failed.unknown(limits)
            }
        }
    }

    /// Follows a tunnel to its end. Only if the upstream itself ends the tunnel, its work on what
    /// it has read is known to be over.
    pub(super) async fn through(self, tunnel: Tunnel, watch: ResponseWatch) {
        match tunnel.run(self.cuts().at_once()).await {
            TunnelEnd::Upstream(rest) => {
                // The tunnel has been reset.
                self.hold.disarm();
                self.sending.settled();
                watch.end(true);
                drop(self.counted);
                rest.finish().await;
            }
            TunnelEnd::Cut => {
                if self.sending.superseded().is_cancelled() {
                    tracing::info!(
                        resource = self.key.as_str(),
                        token = self.token.to_string(),
                        "a tunnel was closed: a newer token is known"
                    );
                }
                drop((self.hold, self.upload));
                drop(self.sending);
            }
        }
    }
}
