//! The limits of one exchange.

use std::time::Duration;

/// The limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeLimits {
    /// From the last byte of the request to the response head.
    pub timeout: Duration,
    /// For the upload as a whole.
    pub upload: Duration,
    /// From the moment a newer token is known to the end of the exchange.
    pub grace: Duration,
}
