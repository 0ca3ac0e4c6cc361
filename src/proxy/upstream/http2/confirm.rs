//! Confirmations: the upstream has read all that was sent of some streams.
//!
//! Frames are read in the order in which they are written (RFC 9113, 4.1), so the answer to a PING says
//! so of what was written before it. h2 writes a PING before all that its streams have queued, their
//! resets included. So a PING is asked of it only when nothing is queued that could be written.

use std::task::{Context, Poll};

use h2::{Ping, PingPong};
use tokio::sync::{mpsc, oneshot};

/// Told when the upstream has confirmed; dropped, it has not.
type Asking = oneshot::Sender<()>;

/// Sends a PING for those that ask, one at a time, and tells them when it was answered.
pub(super) struct Confirmations {
    ping_pong: PingPong,
    asking: mpsc::UnboundedReceiver<Asking>,
    /// They wait for the next PING: they may have written since the one that is under way.
    waiting: Vec<Asking>,
    /// They wait for the answer to the PING that is under way.
    sent: Vec<Asking>,
}

impl Confirmations {
    pub(super) fn new(ping_pong: PingPong, asking: mpsc::UnboundedReceiver<Asking>) -> Self {
        Self {
            ping_pong,
            asking,
            waiting: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Takes in those that ask. What they have queued before is written by the connection's next poll.
    pub(super) fn collect(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(asking)) = self.asking.poll_recv(cx) {
            self.waiting.push(asking);
        }
    }

    /// `written`: the connection has been polled since [`Self::collect`], and nothing is left that it
    /// could write. `true`: the connection is to be polled again, for a PING.
    pub(super) fn proceed(&mut self, cx: &mut Context<'_>, written: bool) -> bool {
        if !self.sent.is_empty() {
            match self.ping_pong.poll_pong(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(_)) => {
                    for asking in self.sent.drain(..) {
                        let _ = asking.send(());
                    }
                }
                // The connection ends by itself.
                Poll::Ready(Err(_)) => self.sent.clear(),
            }
        }
        self.waiting.retain(|asking| !asking.is_closed());
        if self.waiting.is_empty() || !written {
            return false;
        }
        if self.ping_pong.send_ping(Ping::opaque()).is_err() {
            self.waiting.clear();
            return false;
        }
        self.sent.append(&mut self.waiting);
        true
    }
}
