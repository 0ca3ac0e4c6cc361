//! HTTP/2 by prior knowledge, with a limit on the streams of a connection, and now and then a
//! goodbye.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;

use super::{Caller, PromptUpstream};
use crate::fencing::fire::fault::FaultPoint;
use crate::fencing::fire::plan::{Conduct, Goodbye};

impl PromptUpstream {
    pub(super) async fn http2(self, stream: TcpStream, streams: u32, bye: Option<(u32, Goodbye)>) {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(streams);
        let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
            return;
        };
        let (mut taken, kept) = (0, Arc::new(AtomicU32::new(0)));
        while let Some(Ok((request, respond))) = connection.accept().await {
            let mut handling = self.arrives();
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
            let headers = request.headers().iter();
            let headers = headers.map(|(name, value)| (name.to_string(), text(value)));
            handling.has_head(headers.collect());
            let kept = Arc::clone(&kept);
            let keeps = handling.order.conduct == Conduct::Drip;
            // Requests that keep their streams are all there is then.
            if keeps && kept.fetch_add(1, Ordering::Relaxed) + 1 == streams {
                handling.passes(FaultPoint::OutOfStreams);
            }
            self.at_work.spawn(async move {
                let body = request.into_body();
                let length = body.is_end_stream().then_some(0);
                let mut caller = Http2(body, respond, None);
                handling.handle(length, &mut caller).await;
                if keeps {
                    kept.fetch_sub(1, Ordering::Relaxed);
                }
            });
            taken += 1;
            if let Some((after, way)) = bye
                && after == taken
            {
                let told = format!("the upstream says goodbye: {way:?}");
                self.clients.log.note(told);
                match way {
                    Goodbye::Graceful => connection.graceful_shutdown(),
                    Goodbye::Abrupt => connection.abrupt_shutdown(Reason::NO_ERROR),
                }
            }
        }
    }
}

/// The body of the request, the response, and its body, behind its head.
struct Http2(RecvStream, SendResponse<Bytes>, Option<SendStream<Bytes>>);

impl Caller for Http2 {
    async fn body(&mut self, more: UnboundedSender<usize>) -> bool {
        while let Some(piece) = self.0.data().await {
            let Ok(piece) = piece else { return false };
            let _ = more.send(piece.len());
            // A stream that is over needs no room.
            let _ = self.0.flow_control().release_capacity(piece.len());
        }
        true
    }

    async fn head(&mut self, status: u16, length: usize) -> bool {
        let head = Response::builder().status(status);
        let head = head.header("content-length", length).body(());
        self.2 = self.1.send_response(head.expect("a response"), false).ok();
        self.2.is_some()
    }

    async fn send(&mut self, mut left: usize, last: bool) -> bool {
        let Some(send) = &mut self.2 else {
            return false;
        };
        while left > 0 {
            send.reserve_capacity(left.min(64 << 10));
            let Some(Ok(room)) = poll_fn(|cx| send.poll_capacity(cx)).await else {
                return false;
            };
            let room = room.min(left);
            left -= room;
            let piece = vec![b'.'; room].into();
            if send.send_data(piece, last && left == 0).is_err() {
                return false;
            }
        }
        true
    }

    fn reset(&mut self) {
        match &mut self.2 {
            Some(send) => send.send_reset(Reason::INTERNAL_ERROR),
            None => self.1.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}
