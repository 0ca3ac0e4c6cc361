//! A request's body, sent as the upstream's windows allow.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http_body::Body as _;

use crate::body::{RequestBody, UploadError};

/// A piece of a body that h2 has, and has not written. h2 drops it once it is encoded.
struct Piece(
    Bytes,
    #[expect(dead_code, reason = "it is counted")] Arc<()>,
);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Sends the whole body. `false`: the upstream takes no more of it. `unwritten`: the pieces that h2
/// has are other owners of it.
///
/// # Errors
///
/// The body broke off.
pub(super) async fn pour(
    mut body: RequestBody,
    mut stream: SendStream<Bytes>,
    unwritten: Arc<()>,
) -> Result<bool, UploadError> {
    loop {
        let frame = poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut body).poll_frame(cx).map(Some)
        });
        let frame = match frame.await {
            None => return Ok(false),
            Some(None) => return Ok(stream.send_data(Bytes::new(), true).is_ok()),
            Some(Some(frame)) => frame?,
        };
        // `Received` yields no other frames.
        let Ok(mut data) = frame.into_data() else {
            continue;
        };
        let last = body.is_end_stream();
        // Piece by piece, as the windows allow, so that h2 queues nothing that it could not send.
        while !data.is_empty() {
            let Some(room) = room(&mut stream, data.len()).await else {
                return Ok(false);
            };
            let piece = Piece(data.split_to(room), Arc::clone(&unwritten));
            let ends = last && data.is_empty();
            let sent = stream.send_data(Bytes::from_owner(piece), ends);
            if sent.is_err() || ends {
                return Ok(sent.is_ok());
            }
        }
        if last {
            return Ok(stream.send_data(Bytes::new(), true).is_ok());
        }
    }
}

/// The most that is reserved at once: the frame size that every peer accepts (RFC 9113, 4.2).
const PIECE: usize = 16 << 10;

/// Waits until the upstream's windows have room for some of `wanted` bytes, and returns for how
/// many. `None`: the stream is closed.
async fn room(stream: &mut SendStream<Bytes>, wanted: usize) -> Option<usize> {
    // Only once there is something to send: a reservation is taken from the connection's window,
    // which other streams may share.
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
