//! [`Signals`]: the signals of the process that a part of it waits for.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals, each with its meaning.
#[derive(Debug)]
pub(crate) struct Signals<T>(Vec<(Signal, T)>);

impl<T: Copy> Signals<T> {
    /// From this call on, none of them ends the process by itself.
    pub(crate) fn catch(kinds: impl IntoIterator<Item = (SignalKind, T)>) -> io::Result<Self> {
        let caught = kinds
            .into_iter()
            .map(|(kind, meaning)| Ok((signal(kind)?, meaning)));
        caught.collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> T {
        poll_fn(|context| {
            for (signal, meaning) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*meaning);
                }
            }
            Poll::Pending
        })
        .await
    }
}
