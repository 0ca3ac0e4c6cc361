//! The limits of a response head from the upstream.

use crate::wire::head::HeadLimits;

/// The limits of a response's head. None of it passes before it is whole. No setting: a larger
/// one is a fault of the upstream that somebody has to look at.
pub(super) const RESPONSE_LIMITS: HeadLimits = HeadLimits {
    bytes: 60 << 10,
    fields: 100,
    target: 0,
};
