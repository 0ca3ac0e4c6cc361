//! The state that the parts of a connection share: its requests, and the latest [signal](Signal) that
//! it has got.
//!
//! Everything is an atomic, and there is one waker: that of the connection's own task, which a signal
//! and the end of the last request of HTTP/2 wake.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::proxy::{Client, Proxy};
use crate::timed_socket::TimedSocket;

/// The surroundings of a connection that speaks HTTP.
pub(super) struct Site<'a> {
    pub proxy: &'a Arc<Proxy>,
    pub peer: Arc<Client>,
    pub state: &'a Arc<ConnectionState>,
}

/// A client's connection, without TLS or with it.
pub(super) type ClientIo = Either<TimedSocket, Box<TlsStream<TimedSocket>>>;

/// A signal to a connection. Each has the force of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// See [`DrainPhases::announced`](super::DrainPhases::announced).
    Announced = 1,
    /// See [`DrainPhases::now`](super::DrainPhases::now).
    Leave = 2,
    /// See [`DrainPhases::cut`](super::DrainPhases::cut).
    Cut = 3,
}

/// The requests and signals of a connection.
pub(super) struct ConnectionState {
    /// The requests of HTTP/2.
    open: AtomicUsize,
    /// The strongest one, or 0.
    signal: AtomicU8,
    /// The connection's task.
    task: AtomicWaker,
}

impl ConnectionState {
    /// `signal`: the strongest one that all connections have got so far, or 0.
    pub(super) fn new(signal: u8) -> Self {
        Self {
            open: AtomicUsize::new(0),
            signal: AtomicU8::new(signal),
            task: AtomicWaker::new(),
        }
    }

    /// Sends a signal to the connection, and wakes its task.
    pub(super) fn signal(&self, signal: Signal) {
        self.signal.fetch_max(signal as u8, Ordering::AcqRel);
        self.task.wake();
    }

    /// True if the connection has got this signal, or a stronger one.
    pub(super) fn is(&self, signal: Signal) -> bool {
        self.signal.load(Ordering::Acquire) >= signal as u8
    }

    /// Resolves once the connection has got this signal. Only its own task may await this: the task
    /// then wakes for all signals and ends of requests.
    pub(super) async fn signalled(&self, signal: Signal) {
        poll_fn(|cx| {
            self.task.register(cx.waker());
            if self.is(signal) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// True if there is no request of HTTP/2.
    pub(super) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }
}

/// A request of an HTTP/2 connection, until its answer has been handed over or dropped.
#[must_use]
pub(super) struct ActiveStream(Arc<ConnectionState>);

impl ActiveStream {
    /// A request has arrived.
    pub(super) fn begin(state: &Arc<ConnectionState>) -> Self {
        state.open.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(state))
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_a_request_is_not_idle() {
        let state = Arc::new(ConnectionState::new(0));
        assert!(state.is_idle());
        let streams = [(); 2].map(|()| ActiveStream::begin(&state));
        let [first, last] = streams;
        drop(first);
        assert!(!state.is_idle());
        drop(last);
        assert!(state.is_idle());
    }

    #[test]
    fn a_signal_has_the_force_of_those_before_it() {
        let state = ConnectionState::new(Signal::Announced as u8);
        assert!(state.is(Signal::Announced) && !state.is(Signal::Leave));
        state.signal(Signal::Cut);
        state.signal(Signal::Leave);
        assert!(state.is(Signal::Leave) && state.is(Signal::Cut));
    }
}
