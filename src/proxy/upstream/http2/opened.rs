//! Which streams of a connection have been opened toward the upstream, as the transport notes it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;

/// The newest stream that has been opened, and whether the way is free.
#[derive(Debug, Default)]
pub(super) struct OpenedStreams {
    /// Noted before the write.
    pub(super) possibly: AtomicU32,
    /// Noted after it.
    pub(super) surely: AtomicU32,
    /// The last write, or flush, has not come to its end.
    blocked: AtomicBool,
}

impl OpenedStreams {
    /// Whether the head of this stream's HEADERS may have been written.
    pub(super) fn possibly(&self, stream: u32) -> bool {
        self.possibly.load(Ordering::Acquire) >= stream
    }

    /// Whether it has been.
    pub(super) fn surely(&self, stream: u32) -> bool {
        self.surely.load(Ordering::Acquire) >= stream
    }

    /// Whether something waits to be written.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// Notes whether the latest write or flush came to its end.
    pub(super) fn tried<T>(&self, polled: &Poll<T>) {
        self.blocked.store(polled.is_pending(), Ordering::Release);
    }
}
