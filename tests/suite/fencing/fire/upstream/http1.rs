//! HTTP/1, byte by byte as it comes.

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;

use super::{Caller, PromptUpstream};
use crate::support::wire::{Framing, Wire};

impl PromptUpstream {
    pub(super) async fn http1(self, stream: TcpStream) {
        // What has come is read at once: a busy machine must not make an upstream of bytes that
        // came long ago.
        let mut wire = Wire::new(stream).reading(64 << 10);
        while let Ok(true) = wire.fill().await {
            let mut handling = self.arrives();
            let Ok(Some(head)) = wire.head().await else {
                return handling.end("a fragment of a head");
            };
            let framing = head.request_framing();
            let length = match framing {
                Framing::Length(length) => Some(length),
                _ => None,
            };
            handling.has_head(head.headers);
            let mut caller = Http1(&mut wire, framing);
            if !handling.handle(length, &mut caller).await {
                return;
            }
        }
    }
}

struct Http1<'a>(&'a mut Wire, Framing);

impl Caller for Http1<'_> {
    async fn body(&mut self, more: UnboundedSender<usize>) -> bool {
        let read = self.0.body(self.1, |bytes| {
            let _ = more.send(bytes.len());
        });
        read.await.is_ok()
    }

    async fn head(&mut self, status: u16, length: usize) -> bool {
        let head = format!("HTTP/1.1 {status} \r\nContent-Length: {length}\r\n\r\n");
        self.0.send(head.as_bytes()).await.is_ok()
    }

    async fn send(&mut self, bytes: usize, _last: bool) -> bool {
        self.0.send(&vec![b'.'; bytes]).await.is_ok()
    }

    fn reset(&mut self) {
        self.0.end_by_reset();
    }
}
