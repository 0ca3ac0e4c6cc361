//! Signals to connections: from the process as it stops, and from the acceptor that needs room.

use tokio_util::sync::CancellationToken;

/// The phases of the process's stop. Each is cancelled when it begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct DrainPhases {
    /// It will stop: clients are told so, and are still served.
    pub announced: CancellationToken,
    /// No new connection, and no new request on the open ones.
    pub now: CancellationToken,
    /// The remaining requests of all connections are cut.
    pub cut: CancellationToken,
}

/// A signal to a connection, as one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// See [`DrainPhases::announced`].
    Announced = 1,
    /// See [`DrainPhases::now`].
    Leave = 2,
    /// See [`DrainPhases::cut`].
    Cut = 4,
    /// Close for another connection, after a request that has begun.
    MakeRoom = 8,
}
