//! [`OpenExchange`]: a fenced exchange that has begun, and how it ends if there is no response to
//! relay.

use super::ExchangeLimits;
use super::cuts::{Cuts, ExchangeFailure};
use crate::fencing::Fencing;
use crate::fencing::permit::Sending;
use crate::metrics::InFlightGuard;
use crate::proxy::refusal::Refusal;

/// An exchange that has begun. The response, and with it the connection, must be dropped before its
/// permit ends: the drop resets what the upstream has not taken, and the settling starts after that.
pub(super) struct OpenExchange<G> {
    pub sending: Sending,
    /// Counts the exchange as in flight, and keeps what [`Exchange::held`](super::Exchange::held)
    /// has.
    pub counted: (InFlightGuard, G),
    pub limits: ExchangeLimits,
}

impl<G> OpenExchange<G> {
    pub(super) fn cuts(&self) -> Cuts<'_> {
        Cuts::of(&self.sending, self.limits)
    }

    /// Ends the permit of a request that got no answer and whose connection has been dropped.
    /// Returns the refusal for its client. `spend`: the name that the token was spent under.
    pub(super) async fn unanswered(
        self,
        failed: ExchangeFailure,
        fencing: &Fencing,
        spend: Option<String>,
    ) -> Refusal {
        let mut lost = false;
        if failed.is_without_effect() {
            let (key, token) = (self.sending.key().clone(), self.sending.token());
            self.sending.settled();
            if let Some(name) = spend {
                lost = !fencing.give_back(&key, token, name).await;
            }
        } else {
            drop(self.sending);
        }
        failed.refusal(self.limits, lost)
    }
}
