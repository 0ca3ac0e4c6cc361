//! HTTP/1, byte by byte as it comes.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{BodyEnd, HELD_UP, Handling, Order, UpstreamShared};
use crate::fencing::fire::check::NONCE;
use crate::fencing::fire::log::Event;
use crate::fencing::fire::plan::{Ending, FaultPoint, Work};
use crate::support::wire::{Framing, Head, Io, Wire};

impl UpstreamShared {
    pub(super) async fn http1(self, stream: TcpStream) {
        // What has come is read at once: a busy machine must not make an upstream of bytes that came
        // long ago.
        let mut wire = Wire::new(Io::Tcp(stream)).reading(64 << 10);
        while let Ok(true) = wire.fill().await {
            let handling = self.arrives();
            match handling.all(wire).await {
                Some(open) => wire = open,
                None => return,
            }
        }
    }
}

impl Handling {
    /// Handles it; the connection, if it goes on.
    async fn all(mut self, mut wire: Wire) -> Option<Wire> {
        let Ok(Some(head)) = wire.head().await else {
            self.end("a fragment of a head");
            return None;
        };
        let nonce = head.all(NONCE).first().map(|nonce| (*nonce).to_owned());
        self.desk.log.add(Event::Head {
            arrival: self.arrival,
            headers: head.headers.clone(),
        });
        let order = self.desk.planned(nonce.as_deref().unwrap_or_default());
        if order.work.ending == Ending::Early {
            return self.early(wire, &head, order).await;
        }
        let whole = match self.body(&mut wire, &head, order).await {
            BodyEnd::Whole => true,
            BodyEnd::Broken => false,
            BodyEnd::GivenUp => return None,
        };
        self.work(order.work).await;
        if !whole {
            self.end("the caller left halfway");
            return None;
        }
        self.respond(wire, order).await
    }

    /// Answers first. A whole answer is the upstream's own word that it is done; the body is read
    /// and thrown away.
    async fn early(&mut self, mut wire: Wire, head: &Head, order: Order) -> Option<Wire> {
        self.work(order.work).await;
        self.end("answered early");
        let answered = wire.send(&response(order.work, 0)).await.is_ok();
        let whole = self.body(&mut wire, head, order).await;
        (answered && whole == BodyEnd::Whole).then_some(wire)
    }

    async fn body(&mut self, wire: &mut Wire, head: &Head, order: Order) -> BodyEnd {
        let framing = head.request_framing();
        let length = match framing {
            Framing::Length(length) => Some(length),
            _ => None,
        };
        self.read(order, length, async |watch| {
            let read = wire.body(framing, |bytes| watch.more(bytes.len()));
            read.await.is_ok()
        })
        .await
    }

    async fn respond(&self, mut wire: Wire, order: Order) -> Option<Wire> {
        let Order { proxy, work, .. } = order;
        for nth in 0..work.pieces {
            if nth > 0 {
                self.desk.hub.pass(FaultPoint::BeforeResponseEnd, proxy);
                let next = Instant::now() + Duration::from_millis(work.between);
                tokio::time::sleep_until(next.min(self.bound())).await;
            }
            let last = nth + 1 == work.pieces;
            if last && work.ending == Ending::Reset {
                self.end("a reset");
                wire.reset();
                return None;
            }
            let piece = response(work, nth);
            // Noted before the bytes leave: what follows from them must find it in the log. A large
            // piece leaves in parts, and only its last part ends the matter.
            let (most, rest) = piece.split_at(if last { piece.len() - 8 } else { piece.len() });
            if let Err(how) = self.send(&mut wire, most, proxy).await {
                self.end(how);
                return None;
            }
            if last {
                self.end("answered");
                if wire.send(rest).await.is_err() {
                    return None;
                }
            }
        }
        Some(wire)
    }

    async fn send(&self, wire: &mut Wire, piece: &[u8], proxy: usize) -> Result<(), &'static str> {
        let mut sending = std::pin::pin!(wire.send(piece));
        tokio::select! {
            sent = &mut sending => return sent.map_err(|_| "the caller left"),
            () = tokio::time::sleep(HELD_UP) => self.desk.hub.pass(FaultPoint::BeforeRelease, proxy),
        }
        tokio::time::timeout_at(self.bound(), sending)
            .await
            .map_err(|_| "nobody reads the answer")?
            .map_err(|_| "the caller left")
    }
}

/// The nth piece of the response, its head before the first.
fn response(work: Work, nth: usize) -> Vec<u8> {
    let (status, length) = Handling::answer(work);
    let mut bytes = Vec::new();
    if nth == 0 {
        let head = format!("HTTP/1.1 {status} \r\nContent-Length: {length}\r\n\r\n");
        bytes.extend_from_slice(head.as_bytes());
    }
    bytes.resize(bytes.len() + work.piece, b'.');
    bytes
}
