//! The data port: accept loop, connection limits, head timeout, drain.
//!
//! `axum::serve` has no head timeout and no limits, so the loop is written here, over hyper-util.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::config::LimitSettings;
use crate::proxy::{Peer, Proxy};

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
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout);
    builder.http2().timer(TokioTimer::new());
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
                connection(stream, peer(Some(ip)), slot, &proxy, &builder, &graceful);
            }
            Stream::Unix(stream) => {
                connection(stream, peer(None), slot, &proxy, &builder, &graceful);
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

fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: Peer,
    slot: OwnedSemaphorePermit,
    proxy: &Arc<Proxy>,
    builder: &auto::Builder<TokioExecutor>,
    graceful: &GracefulShutdown,
) {
    let proxy = Arc::clone(proxy);
    let service = service_fn(move |request: Request<Incoming>| {
        let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(proxy.handle(request, &peer).await) }
    });
    let serving = builder
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .into_owned();
    let serving = graceful.watch(serving);
    tokio::spawn(async move {
        let _slot = slot;
        if let Err(error) = serving.await {
            tracing::debug!(%error, "a connection ended early");
        }
    });
}
