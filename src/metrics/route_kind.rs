//! [`RouteKind`]: which series of a route can ever count, so that the others are not made.

use super::labels::{DecidedBy, Outcome};
use crate::config::settings::Mode;

/// The kind of a `route` label, as far as it decides what can happen under the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteKind {
    /// A route of the configuration.
    Route(Mode),
    /// Claims: judged, and never forwarded.
    Claim,
    /// Requests that no route matches: never judged.
    Unmatched,
}

impl RouteKind {
    /// Returns true if a request can be refused by the fence: for its token, or for the barrier.
    pub(super) fn is_fenced(self) -> bool {
        matches!(self, Self::Route(Mode::Enforce) | Self::Claim)
    }

    /// Returns true if a request can go upstream.
    pub(super) fn is_forwarded(self) -> bool {
        self != Self::Claim
    }

    /// Returns true if a request can go upstream under a permit.
    pub(super) fn holds_permits(self) -> bool {
        self.is_fenced() && self.is_forwarded()
    }

    /// Returns true if a stale token can be found by this.
    pub(super) fn can_be_stale(self, decided_by: DecidedBy) -> bool {
        match decided_by {
            DecidedBy::Memory | DecidedBy::Store | DecidedBy::Barrier => self.is_fenced(),
        }
    }

    /// Returns true if a request can end with this outcome.
    pub(super) fn can_end(self, outcome: Outcome) -> bool {
        use Outcome as O;
        match outcome {
            O::Advanced | O::Current => {
                matches!(self, Self::Route(Mode::Enforce | Mode::Observe))
            }
            O::StaleToken
            | O::TokenRequired
            | O::MalformedToken
            | O::ImplausibleToken
            | O::StoreUnavailable
            | O::OlderInFlight
            | O::UpgradeRefused => self.is_fenced(),
            O::LoopDetected | O::TargetTooLong | O::VersionNotSupported => self == Self::Unmatched,
            // A claim names a request that may be one of no route, or of a method that is refused.
            O::NoRoute => matches!(self, Self::Unmatched | Self::Claim),
            O::MethodNotAllowed => self.is_fenced() || self == Self::Unmatched,
            // Heads are refused before a route is known; trailers afterwards.
            O::HeadTooLarge
            | O::AmbiguousRequest
            | O::ContentTooLarge
            | O::Overloaded
            | O::RequestTimeout => true,
            O::UpstreamUnreachable | O::OutcomeUnknown | O::Unfenced | O::Answered => {
                self.is_forwarded()
            }
            O::ClientRefused => self != Self::Unmatched,
            O::Unauthorized | O::Claimed => self == Self::Claim,
            O::ObservedStaleToken
            | O::ObservedTokenRequired
            | O::ObservedMalformedToken
            | O::ObservedImplausibleToken
            | O::ObservedOverloaded
            | O::ObservedAmbiguousRequest
            | O::ObservedMethodNotAllowed
            | O::ObservedContentTooLarge
            | O::ObservedStoreUnavailable
            | O::ObservedUpgradeRefused => self == Self::Route(Mode::Observe),
        }
    }
}
