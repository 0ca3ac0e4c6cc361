//! An upstream that keeps nothing: it counts what it gets, and sends as many bytes as the query asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::wire::{Io, Wire};

pub struct Plain {
    pub url: String,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Plain {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has free ports");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let counts = Arc::<Counts>::default();
        let seen = Arc::clone(&counts);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accepting works");
                let _ = stream.set_nodelay(true);
                let seen = Arc::clone(&seen);
                connections.spawn(async move {
                    let _ = serve(Wire::new(Io::Tcp(stream)), &seen).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            url,
            counts,
            _tasks: tasks,
        }
    }

    /// Bytes of bodies that have arrived.
    pub fn received(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }
}

async fn serve(mut wire: Wire, counts: &Counts) -> std::io::Result<()> {
    let piece = vec![b'd'; 64 << 10];
    while let Some(head) = wire.head().await? {
        counts.requests.fetch_add(1, Ordering::Relaxed);
        let sink = |bytes: &[u8]| {
            counts
                .bytes
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        };
        wire.body(head.request_framing(), sink).await?;
        let size = head
            .word(1)
            .split_once("size=")
            .and_then(|(_, size)| size.parse().ok());
        let mut left: usize = size.unwrap_or(0);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n");
        wire.send(answer.as_bytes()).await?;
        while left > 0 {
            let now = left.min(piece.len());
            wire.send(&piece[..now]).await?;
            left -= now;
        }
    }
    Ok(())
}
