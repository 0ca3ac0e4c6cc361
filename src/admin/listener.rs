//! The admin port's accept loop. `axum::serve` limits neither connections nor how long a client may
//! take for a request, and every process that shares the loopback can reach the port.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tower::ServiceExt;

use super::auth::AdminPeer;
use super::{AdminState, router};
use crate::config::TlsSettings;
use crate::metrics::{AdminRefusal, Metrics};
use crate::socket::Listener;
use crate::timed_socket::TimedSocket;

/// Connections at once.
const CONNECTIONS: usize = 128;
/// A client has this long for a TLS handshake and for a head, including the idle time between two
/// requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// The time in which a client has to take something of an answer that waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// The bytes that the server buffers for one connection in each direction. A head has to fit.
const BUFFER: usize = 64 << 10;
/// Answers may go on for this long once the shutdown has begun.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// The open connections, the oldest first.
#[derive(Default)]
struct Connections(VecDeque<AbortHandle>);

impl Connections {
    /// Serves a new connection. If there are too many, the oldest is closed: so no client can keep
    /// the probes out by opening connections.
    fn spawn(&mut self, metrics: &Metrics, serve: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
            metrics.admin_refused(AdminRefusal::Connections);
        }
        self.0.push_back(tokio::spawn(serve).abort_handle());
    }
}

/// Serves until `shutdown` resolves. Then running answers have 2 seconds to end.
pub async fn serve(
    listener: Listener,
    state: AdminState,
    shutdown: impl Future<Output = ()> + Send,
) {
    let mut shutdown = pin!(shutdown);
    let (metrics, loaded) = (Arc::clone(&state.metrics), state.loaded.clone());
    let (router, graceful) = (router(state), GracefulShutdown::new());
    let mut connections = Connections::default();
    loop {
        let (socket, _) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.next(|| {}) => accepted,
        };
        let peer = AdminPeer::of(&socket);
        let counter = Arc::clone(&metrics);
        let socket = TimedSocket::new(socket, WRITE_TIMEOUT, move || {
            counter.admin_refused(AdminRefusal::WriteTimeout);
        });
        // A reload may have changed the certificate.
        let tls = loaded.borrow().settings.admin.tls.clone();
        let served = requests(socket, peer, tls, router.clone(), graceful.watcher());
        connections.spawn(&metrics, async move {
            if let Err(error) = served.await {
                tracing::debug!("a connection of the admin port broke: {error}");
            }
        });
        // Under a flood, each connection has its turn before it is closed for a newer one.
        tokio::task::yield_now().await;
    }
    drop(listener);
    if timeout(LAST_ANSWERS, graceful.shutdown()).await.is_err() {
        tracing::info!("connections of the admin port were cut at shutdown");
        connections.0.iter().for_each(AbortHandle::abort);
    }
}

/// Serves the requests of a connection, after a TLS handshake if the port has TLS.
async fn requests(
    socket: TimedSocket,
    peer: io::Result<AdminPeer>,
    tls: Option<TlsSettings>,
    router: Router,
    watcher: Watcher,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let peer = peer?;
    let stream = match tls {
        None => Either::Left(socket),
        Some(tls) => {
            let accepting = TlsAcceptor::from(tls.config).accept(socket);
            Either::Right(timeout(HEAD_TIMEOUT, accepting).await??)
        }
    };
    let service = service_fn(|request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    Ok(watcher.watch(connection).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_of_too_many_makes_room() {
        let metrics = Metrics::new(&[]);
        let mut connections = Connections::default();
        let (ends, ended) = tokio::sync::oneshot::channel::<()>();
        connections.spawn(&metrics, std::future::pending());
        connections.spawn(&metrics, async { drop(ended.await) });
        for _ in 2..CONNECTIONS {
            connections.spawn(&metrics, std::future::pending());
        }
        let all: Vec<_> = connections.0.iter().cloned().collect();
        // One that ended makes room as well.
        ends.send(()).expect("it waits");
        tokio::task::yield_now().await;
        connections.spawn(&metrics, std::future::pending());
        tokio::task::yield_now().await;
        assert!(!all[0].is_finished());
        for _ in 0..2 {
            connections.spawn(&metrics, std::future::pending());
        }
        tokio::task::yield_now().await;
        let closed: Vec<_> = (0..all.len()).filter(|at| all[*at].is_finished()).collect();
        assert_eq!(closed, [0, 1, 2]);
    }
}
