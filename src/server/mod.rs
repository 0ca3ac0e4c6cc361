//! The data port: accept loop, limits on connections, drain. One connection is [`connection`]'s.
//!
//! `axum::serve` has no head timeout and no limits, so the loop is written here, over hyper-util.

mod connection;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use self::connection::Connections;
use crate::config::LimitSettings;
use crate::proxy::{Peer, Proxy, keep_alive};

/// The pause after an accept that failed (no file descriptor left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    /// With its client's address: a socket whose client has left since does not tell any more.
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

/// Accepts until `stop`, then lets the connections end their requests; returns when all have.
pub(crate) async fn serve(
    listener: Listener,
    proxy: Arc<Proxy>,
    limits: LimitSettings,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let connections = Connections::new(proxy, limits);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match stream {
            Stream::Tcp(stream, ip) => {
                let _ = stream.set_nodelay(true);
                keep_alive(&stream);
                connections.serve(stream, peer(Some(ip)), slot, &graceful);
            }
            Stream::Unix(stream) => {
                connections.serve(stream, peer(None), slot, &graceful);
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

fn peer(ip: Option<IpAddr>) -> Peer {
    let text = ip.map_or_else(|| "unix".into(), |ip| ip.to_string().into());
    Peer { ip, text }
}

/// The next connection, once there is a place for it; more wait in the kernel's queue.
async fn accept(
    listener: &Listener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(Stream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let stream = match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            Stream::Tcp(stream, address.ip().to_canonical())
        }
        Listener::Unix(listener) => Stream::Unix(listener.accept().await?.0),
    };
    Ok((stream, slot))
}
