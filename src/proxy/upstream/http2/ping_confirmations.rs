//! Confirms by PING that the upstream has read everything that was sent of some streams.
//!
//! Frames are read in the order in which they are written (RFC 9113, 4.1). So the answer to a PING
//! confirms all frames before it. h2 writes a PING before the queued frames of its streams, resets
//! included. So a PING is requested only when nothing that could be written is queued.

use std::task::{Context, Poll};

use h2::{Ping, PingPong};
use tokio::sync::{mpsc, oneshot};

/// Gets a message when the upstream has confirmed. It is dropped otherwise.
type ConfirmRequest = oneshot::Sender<()>;

/// Sends one PING at a time for all requests, and reports its answer to them.
pub(super) struct PingConfirmations {
    ping_pong: PingPong,
    asking: mpsc::UnboundedReceiver<ConfirmRequest>,
    /// These wait for the next PING, since they may have written after the current one.
    waiting: Vec<ConfirmRequest>,
    /// These wait for the answer to the current PING.
    sent: Vec<ConfirmRequest>,
}

impl PingConfirmations {
    pub(super) fn new(
        ping_pong: PingPong,
        asking: mpsc::UnboundedReceiver<ConfirmRequest>,
    ) -> Self {
        Self {
            ping_pong,
            asking,
            waiting: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Receives new requests. The connection's next poll writes what they have queued before.
    pub(super) fn collect(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(asking)) = self.asking.poll_recv(cx) {
            self.waiting.push(asking);
        }
    }

    /// `written`: the connection has been polled since [`Self::collect`], and has nothing left to
    /// write. `true`: the connection must be polled again, to write a PING.
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;

    /// The kinds of the frames that have come, behind the preface.
    async fn kinds(far: &mut DuplexStream) -> Vec<u8> {
        let mut kinds = Vec::new();
        let mut head = [0; 9];
        while futures_util::poll!(Box::pin(far.read_exact(&mut head))).is_ready() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            far.read_exact(&mut payload).await.expect("whole frames");
            kinds.push(head[3]);
        }
        kinds
    }

    #[tokio::test]
    async fn a_ping_waits_until_all_before_it_is_written() {
        let (mut far, near) = duplex(1 << 16);
        let (sender, mut connection) = h2::client::handshake(near).await.expect("room");
        let ping_pong = connection.ping_pong().expect("it is taken once");
        let (ask, asking) = mpsc::unbounded_channel();
        let mut confirmations = PingConfirmations::new(ping_pong, asking);
        far.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
            .await
            .expect("room");
        let mut preface = [0; 24];
        far.read_exact(&mut preface).await.expect("it was sent");
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut poll = |cx: &mut Context<'_>| {
            let polled = Future::poll(Pin::new(&mut connection), cx);
            assert!(polled.is_pending(), "{polled:?}");
        };
        poll(&mut cx);
        let mut sender = sender.ready().await.expect("open");
        let (_response, mut stream) = sender
            .send_request(http::Request::new(()), false)
            .expect("open");
        poll(&mut cx);
        kinds(&mut far).await;

        stream.send_reset(h2::Reason::CANCEL);
        let (tx, mut told) = oneshot::channel();
        ask.send(tx).expect("it listens");
        confirmations.collect(&mut cx);
        assert!(!confirmations.proceed(&mut cx, false), "not written yet");
        poll(&mut cx);
        assert_eq!(kinds(&mut far).await, [RST_STREAM]);
        assert!(confirmations.proceed(&mut cx, true));
        poll(&mut cx);
        assert_eq!(kinds(&mut far).await, [PING]);
        assert!(!confirmations.proceed(&mut cx, true), "one at a time");
        assert!(told.try_recv().is_err(), "nobody has answered");
        stream
            .send_data(Bytes::new(), true)
            .expect_err("it is reset");
    }
}
