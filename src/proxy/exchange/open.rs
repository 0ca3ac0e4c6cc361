//! [`OpenExchange`]: a fenced exchange that has begun, and how it ends.

use std::sync::Arc;

use http::StatusCode;

use super::FenceTerms;
use super::conclusion::Doubt;
use super::cuts::{Cuts, ExchangeFailure};
use crate::fencing::permit::Sending;
use crate::metrics::{InFlightGuard, Outcome};
use crate::proxy::limits::InFlightPermit;
use crate::proxy::refusal::{Refusal, Why};

/// An exchange that has begun. The response, and with it the connection, must be dropped before its
/// permit ends: the drop resets what the upstream has not taken, and the settling starts after that.
pub(super) struct OpenExchange {
    pub sending: Sending,
    /// Counts the exchange as in flight, and keeps the in-flight permit of its request.
    pub counted: (InFlightGuard, InFlightPermit),
    pub terms: FenceTerms,
}

/// How an exchange has ended whose answer has begun.
pub(super) enum End {
    Whole,
    /// The answer is whole, and leaves open what became of the request.
    Doubt(Doubt),
    /// It broke off, or was cut.
    Broken(Refusal),
}

/// An exchange that got no answer.
pub(super) struct Unanswered {
    pub refusal: Refusal,
    pub terms: FenceTerms,
}

impl Unanswered {
    /// Its client is not there to get the refusal: an unknown outcome is reported here.
    pub(super) fn report(&self) {
        if self.refusal.outcome() == Outcome::OutcomeUnknown {
            self.terms.ended(None, Some(&self.refusal));
        }
    }
}

impl OpenExchange {
    pub(super) fn cuts(&self) -> Cuts<'_> {
        Cuts::of(&self.sending, self.terms.limits())
    }

    /// Ends the permit of an exchange whose connection was given back or dropped.
    pub(super) fn conclude(self, status: StatusCode, end: End) {
        let unknown = match end {
            End::Whole => None,
            End::Doubt(doubt) => {
                let said = "The answer leaves open what became of the request";
                Some(Refusal::Broken(Why::of(said, &doubt)))
            }
            End::Broken(refusal) => Some(refusal),
        };
        match unknown {
            None => self.sending.settled(),
            Some(_) => drop(self.sending),
        }
        drop(self.counted);
        self.terms.ended(Some(status), unknown.as_ref());
    }

    /// The same for an answer that cannot be handed on.
    pub(super) fn broken(self, refusal: Refusal) -> Unanswered {
        drop(self.sending);
        let terms = self.terms;
        Unanswered { refusal, terms }
    }

    /// Ends the permit of a request that got no answer.
    pub(super) async fn unanswered(mut self, failed: ExchangeFailure) -> Unanswered {
        let mut lost = false;
        if failed.is_without_effect() {
            let (key, token) = (self.sending.key().clone(), self.sending.token());
            let fencing = Arc::clone(self.sending.fencing());
            self.sending.settled();
            if let Some(name) = self.terms.spend.take() {
                lost = !fencing.give_back(&key, token, name).await;
            }
        } else {
            drop(self.sending);
        }
        let (refusal, terms) = (failed.refusal(self.terms.limits(), lost), self.terms);
        Unanswered { refusal, terms }
    }
}
