//! A request's body, sent as the upstream's windows allow.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use tokio_util::sync::CancellationToken;

use super::pool::Reservation;
use crate::proxy::body::UpstreamBody;

/// Sends the body as the upstream's windows allow, and resets the stream if the body breaks off.
/// Holds the reservation meanwhile, and returns the stream.
pub(super) async fn send_body(
    mut body: UpstreamBody,
    mut stream: SendStream<Bytes>,
    stop: CancellationToken,
    (_reservation, upload_timeout): (Arc<Reservation>, UploadTimeout),
) -> SendStream<Bytes> {
    let sent = tokio::select! {
        biased;
        () = stop.cancelled() => false,
        sent = pour(&mut body, &mut stream, &upload_timeout) => sent,
    };
    if !sent {
        stream.send_reset(Reason::CANCEL);
    }
    stream
}

/// The timeout of an upload after its answer is whole.
pub(super) struct UploadTimeout {
    /// The answer is whole.
    pub answered: CancellationToken,
    /// How long the upstream may take nothing of it then. `None`: the exchange has its own timeout.
    pub limit: Option<Duration>,
}

impl UploadTimeout {
    /// Resolves when the upstream has taken nothing for too long.
    async fn is_over(&self) {
        let Some(limit) = self.limit else {
            return std::future::pending().await;
        };
        self.answered.cancelled().await;
        tokio::time::sleep(limit).await;
    }
}

/// Sends the whole body. `false`: the body broke off, or the upstream takes nothing. Where the
/// upstream has reset the stream, nothing is left to do.
async fn pour(
    body: &mut UpstreamBody,
    stream: &mut SendStream<Bytes>,
    upload_timeout: &UploadTimeout,
) -> bool {
    loop {
        let frame = poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut *body).poll_frame(cx).map(Some)
        });
        let frame = match frame.await {
            None => return true,
            Some(None) => return stream.send_data(Bytes::new(), true).is_ok(),
            Some(Some(Err(_))) => return false,
            Some(Some(Ok(frame))) => frame,
        };
        let taken = match frame.into_data() {
            Ok(mut data) => {
                let last = body.is_end_stream();
                // Piece by piece, as the windows allow, so that nothing is queued in the library.
                while !data.is_empty() {
                    let room = tokio::select! {
                        room = room(stream, data.len()) => room,
                        () = upload_timeout.is_over() => return false,
                    };
                    let Some(room) = room else {
                        return true;
                    };
                    let piece = data.split_to(room);
                    let ends = last && data.is_empty();
                    if stream.send_data(piece, ends).is_err() || ends {
                        return true;
                    }
                }
                if !last {
                    continue;
                }
                stream.send_data(Bytes::new(), true).is_ok()
            }
            // `Received` yields no other frames.
            Err(_) => continue,
        };
        return taken;
    }
}

/// The most that is reserved at once: the frame size that every peer accepts (RFC 9113, 4.2).
const PIECE: usize = 16 << 10;

/// Waits until the upstream's windows have room for some of `wanted` bytes, and returns for how
/// many. `None`: the stream is closed.
async fn room(stream: &mut SendStream<Bytes>, wanted: usize) -> Option<usize> {
    // Only once there is something to send: a reservation is taken from the connection's window,
    // which the other streams share.
    stream.reserve_capacity(wanted.min(PIECE));
    poll_fn(|cx| {
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(0)) => {}
                Some(Ok(_)) => break,
                Some(Err(_)) | None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(stream.capacity().min(wanted)))
    })
    .await
}
