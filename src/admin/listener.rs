//! The admin port's accept loop. `axum::serve` has no limit on how long a client may take over a
//! request's head, nor on connections, and the port is reachable by whoever shares the loopback.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

use super::Peer;

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// How long a client may take over a head, the idle time between two requests included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// How long answers may go on once the shutdown has begun.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The pause after a failed accept (no file descriptors left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where the admin port listens; bound by the caller.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Serves until `shutdown` ends, then lets the answers that run end within 2 seconds.
pub async fn serve(listener: Listener, router: Router, shutdown: impl Future<Output = ()> + Send) {
    let mut shutdown = pin!(shutdown);
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((Stream::Tcp(stream), peer, slot)) => {
                spawn(stream, peer, slot, router.clone(), &graceful);
            }
            Ok((Stream::Unix(stream), peer, slot)) => {
                spawn(stream, peer, slot, router.clone(), &graceful);
            }
            Err(error) => {
                tracing::warn!("the admin port cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(LAST_ANSWERS, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::info!("connections of the admin port were cut at shutdown");
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &Listener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(Stream, Peer, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            // Answers are small; waiting to fill a packet only delays them.
            stream.set_nodelay(true)?;
            Ok((Stream::Tcp(stream), Peer(address.to_string()), slot))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            // The kernel vouches for the user id of whoever holds the other end.
            let peer = match stream.peer_cred() {
                Ok(credentials) => format!("unix, uid {}", credentials.uid()),
                Err(_) => "unix".to_owned(),
            };
            Ok((Stream::Unix(stream), Peer(peer), slot))
        }
    }
}

fn spawn<I>(
    stream: I,
    peer: Peer,
    slot: OwnedSemaphorePermit,
    router: Router,
    graceful: &GracefulShutdown,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = router.map_request(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        request
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        let _slot = slot;
        if let Err(error) = connection.await {
            tracing::debug!("a connection of the admin port broke: {error}");
        }
    });
}
