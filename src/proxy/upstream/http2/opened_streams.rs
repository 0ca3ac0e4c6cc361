//! The streams that a connection has opened toward the upstream, as the transport records them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;

/// The newest opened stream, and whether writes are blocked.
#[derive(Debug, Default)]
pub(super) struct OpenedStreams {
    /// Set before the write.
    pub(super) possibly: AtomicU32,
    /// Set after the write.
    pub(super) surely: AtomicU32,
    /// The last write or flush has not finished.
    blocked: AtomicBool,
}

impl OpenedStreams {
    /// Whether the head of this stream's HEADERS may have been written.
    pub(super) fn possibly(&self, stream: u32) -> bool {
        self.possibly.load(Ordering::Acquire) >= stream
    }

    /// Whether it has certainly been written.
    pub(super) fn surely(&self, stream: u32) -> bool {
        self.surely.load(Ordering::Acquire) >= stream
    }

    /// Whether something waits to be written.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// Records whether the last write or flush has finished.
    pub(super) fn tried<T>(&self, polled: &Poll<T>) {
        self.blocked.store(polled.is_pending(), Ordering::Release);
    }
}
