//! The upstream of the matrix: notes exactly what arrives, and answers with the bytes of the case.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cases::Case;
use crate::support::wait::soon;
use crate::support::wire::{Framing, Head, Io, Wire};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub head: Head,
    pub framing: Framing,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

/// The server. Ends when dropped.
pub struct Scribe {
    pub address: SocketAddr,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    _tasks: JoinSet<()>,
}

impl Scribe {
    pub async fn start(cases: Arc<Vec<Case>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let (note, arrivals) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let wire = Wire::new(Io::Tcp(stream));
                connections.spawn(serve(wire, Arc::clone(&cases), note.clone()));
            }
        });
        Self {
            address,
            arrivals,
            _tasks: tasks,
        }
    }

    /// The next arrival.
    pub async fn arrival(&mut self) -> Arrival {
        let arrival = soon("an arrival", self.arrivals.recv()).await;
        arrival.expect("the server runs as long as this")
    }

    /// Asserts that nothing else has arrived.
    #[track_caller]
    pub fn assert_no_more(&mut self) {
        assert!(self.arrivals.try_recv().is_err(), "one arrival too many");
    }
}

async fn serve(mut wire: Wire, cases: Arc<Vec<Case>>, note: mpsc::UnboundedSender<Arrival>) {
    while let Ok(Some(head)) = wire.head().await {
        let Some(case) = Case::of(&cases, head.word(1)) else {
            return;
        };
        let framing = head.request_framing();
        if !head.all("expect").is_empty()
            && wire.send(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err()
        {
            return;
        }
        let mut body = Vec::new();
        let read = wire.body(framing, |piece| body.extend_from_slice(piece));
        let Ok(trailers) = read.await else { return };
        let _ = note.send(Arrival {
            head,
            framing,
            body,
            trailers,
        });
        if wire.send(&case.answer).await.is_err() || case.closes {
            return;
        }
    }
}
