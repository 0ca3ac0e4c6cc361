//! Connections that are given up in the middle of a fenced request.
//!
//! An unknown outcome settles from the moment at which nothing more is sent. To drop a request's future is not enough for
//! that: hyper first flushes what it has buffered, for as long as the upstream takes to make room, and the kernel goes on
//! sending what it has taken, long after a close in good order. An upstream that was out of reach for
//! longer than `barrier.settle` would get the old request beside the new one. So a connection that is given up is
//! written to no more, and closed with a reset, which empties the kernel's buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use http::{Extensions, Request};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, capture_connection};

/// Has a fenced connection reset. It comes with every connection, among its extras.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetSwitch(Arc<Switch>);

#[derive(Debug, Default)]
struct Switch {
    thrown: AtomicBool,
    /// Who waits for room to write.
    writer: AtomicWaker,
}

impl ResetSwitch {
    /// Of a connection that hyper-util knows.
    pub(crate) fn of(connected: &Connected) -> Option<Self> {
        let mut extras = Extensions::new();
        connected.get_extras(&mut extras);
        extras.remove()
    }

    /// From here on nothing is written, and the close is a reset.
    pub(crate) fn throw(&self) {
        self.0.thrown.store(true, Ordering::Release);
        self.0.writer.wake();
    }

    pub(crate) fn is_thrown(&self) -> bool {
        self.0.thrown.load(Ordering::Acquire)
    }

    /// Woken by [`Self::throw`]. To be called before the last look at [`Self::is_thrown`].
    pub(crate) fn register(&self, writer: &Waker) {
        self.0.writer.register(writer);
    }
}

/// The connection that a fenced request goes over. Dropped, it is reset; let be, it is not.
#[must_use = "dropped, it resets the connection"]
pub(crate) struct Hold {
    /// `None` where requests share a connection (HTTP/2): there a stream is reset, and not the connection.
    connection: Option<CaptureConnection>,
}

impl Hold {
    pub(crate) fn on<B>(request: &mut Request<B>, h2: bool) -> Self {
        Self {
            connection: (!h2).then(|| capture_connection(request)),
        }
    }

    /// The exchange is over, and what the connection is fit for hyper decides.
    pub(crate) fn let_be(mut self) {
        self.connection = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection
            && let Some(connected) = connection.connection_metadata().as_ref()
            && let Some(reset) = ResetSwitch::of(connected)
        {
            reset.throw();
        }
    }
}
