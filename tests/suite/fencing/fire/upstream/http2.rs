//! HTTP/2 by prior knowledge, with a limit on the streams of a connection, and now and then a
//! goodbye.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{BodyEnd, HELD_UP, Handling, Order, UpstreamShared};
use crate::fencing::fire::check::NONCE;
use crate::fencing::fire::log::Event;
use crate::fencing::fire::plan::{Ending, FaultPoint, Goodbye};

const LEFT: &str = "the caller left";

impl UpstreamShared {
    pub(super) async fn http2(
        self,
        stream: TcpStream,
        streams: u32,
        goodbye: Option<(u32, Goodbye)>,
    ) {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(streams);
        let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
            return;
        };
        let (mut taken, kept) = (0, Arc::new(AtomicU32::new(0)));
        while let Some(Ok((request, respond))) = connection.accept().await {
            let handling = self.arrives();
            let order = handling.head(&request);
            let kept = Arc::clone(&kept);
            // Requests that keep their streams are all there is then.
            if order.keeps && kept.fetch_add(1, Ordering::Relaxed) + 1 == streams {
                self.hub.pass(FaultPoint::OutOfStreams, order.proxy);
            }
            let handled = async move {
                handling.stream(request.into_body(), respond, order).await;
                if order.keeps {
                    kept.fetch_sub(1, Ordering::Relaxed);
                }
            };
            self.at_work.lock().expect("no panics").spawn(handled);
            taken += 1;
            match goodbye {
                Some((after, Goodbye::Graceful)) if after == taken => {
                    self.log.note("the upstream says goodbye");
                    connection.graceful_shutdown();
                }
                Some((after, Goodbye::Abrupt)) if after == taken => {
                    self.log.note("the upstream says goodbye, and is gone");
                    connection.abrupt_shutdown(Reason::NO_ERROR);
                }
                _ => {}
            }
        }
    }
}

impl Handling {
    /// Notes the head.
    fn head(&self, request: &Request<RecvStream>) -> Order {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
        let headers = request.headers().iter();
        let headers: Vec<(String, String)> = headers
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect();
        let nonce = headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(NONCE));
        let order = self
            .desk
            .planned(nonce.map(|(_, nonce)| &**nonce).unwrap_or_default());
        let arrival = self.arrival;
        self.desk.log.add(Event::Head { arrival, headers });
        order
    }

    async fn stream(mut self, mut body: RecvStream, respond: SendResponse<Bytes>, order: Order) {
        if order.work.ending == Ending::Early {
            return self.answer_early(body, respond, order).await;
        }
        let whole = match self.upload(&mut body, order).await {
            BodyEnd::Whole => true,
            BodyEnd::Broken => false,
            BodyEnd::GivenUp => return,
        };
        self.work(order.work).await;
        if whole {
            self.respond_over(respond, order).await;
        } else {
            self.end("the caller left halfway");
        }
    }

    /// Answers first. A whole answer is the upstream's own word that it is done; the body is read
    /// and thrown away.
    async fn answer_early(
        &mut self,
        mut body: RecvStream,
        mut respond: SendResponse<Bytes>,
        order: Order,
    ) {
        self.work(order.work).await;
        self.end("answered early");
        let (head, length) = head(order);
        if let Ok(mut send) = respond.send_response(head, false) {
            let _ = send.send_data(vec![b'.'; length].into(), true);
        }
        self.upload(&mut body, order).await;
    }

    async fn upload(&mut self, body: &mut RecvStream, order: Order) -> BodyEnd {
        let length = body.is_end_stream().then_some(0);
        self.read(order, length, async |watch| {
            while let Some(piece) = body.data().await {
                let Ok(piece) = piece else { return false };
                watch.more(piece.len());
                // A stream that is over needs no room.
                let _ = body.flow_control().release_capacity(piece.len());
            }
            true
        })
        .await
    }

    async fn respond_over(&self, mut respond: SendResponse<Bytes>, order: Order) {
        let Order { proxy, work, .. } = order;
        let Ok(mut send) = respond.send_response(head(order).0, false) else {
            return self.end(LEFT);
        };
        for nth in 0..work.pieces {
            if nth > 0 {
                self.desk.hub.pass(FaultPoint::BeforeResponseEnd, proxy);
                let next = Instant::now() + Duration::from_millis(work.between);
                tokio::time::sleep_until(next.min(self.bound())).await;
            }
            let last = nth + 1 == work.pieces;
            if last && work.ending == Ending::Reset {
                self.end("a reset");
                send.send_reset(Reason::INTERNAL_ERROR);
                return;
            }
            // Noted before the last bytes leave: what follows from them must find it in the log.
            let most = work.piece - if last { 8 } else { 0 };
            if let Err(how) = self.push(&mut send, most, proxy).await {
                return self.end(how);
            }
            if last {
                self.end("answered");
                let _ = send.send_data(vec![b'.'; 8].into(), true);
            }
        }
    }

    /// Sends this many bytes, as far as there is room for them.
    async fn push(
        &self,
        send: &mut SendStream<Bytes>,
        mut left: usize,
        proxy: usize,
    ) -> Result<(), &'static str> {
        let mut passed = false;
        while left > 0 {
            send.reserve_capacity(left.min(64 << 10));
            let room = poll_fn(|cx| send.poll_capacity(cx));
            let limit = if passed {
                self.bound()
            } else {
                Instant::now() + HELD_UP
            };
            let room = match tokio::time::timeout_at(limit, room).await {
                Ok(Some(Ok(room))) => room.min(left),
                Ok(_) => return Err(LEFT),
                Err(_) if passed => return Err("nobody reads the answer"),
                Err(_) => {
                    passed = true;
                    self.desk.hub.pass(FaultPoint::BeforeRelease, proxy);
                    continue;
                }
            };
            left -= room;
            send.send_data(vec![b'.'; room].into(), false)
                .map_err(|_| LEFT)?;
        }
        Ok(())
    }
}

/// The head of the response, and how long its body is in all.
fn head(order: Order) -> (Response<()>, usize) {
    let (status, length) = Handling::answer(order.work);
    let head = Response::builder()
        .status(status)
        .header("content-length", length)
        .body(())
        .expect("a response");
    (head, length)
}
