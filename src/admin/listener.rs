//! The admin port's accept loop. `axum::serve` limits neither connections nor how long a client may
//! take for a request, and every process that shares the loopback can reach the port.

use std::collections::VecDeque;
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::peer::AdminPeer;
use super::{AdminState, router, stream};
use crate::config::AdminSettings;
use crate::metrics::{AdminRefusal, Metrics};
use crate::socket::Listener;
use crate::timed_socket::TimedSocket;

/// Connections at once.
const CONNECTIONS: usize = 128;
/// A client has this long for a head, including the idle time between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// The bytes that the server buffers for one connection in each direction. A head has to fit.
const BUFFER: usize = 64 << 10;
/// Answers may go on for this long once the shutdown has begun.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The pause after a failed accept, which mostly means that no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The open connections, the oldest first. A token is cancelled when its connection has ended, or
/// must end.
#[derive(Default)]
struct OpenConnections(VecDeque<CancellationToken>);

impl OpenConnections {
    /// Adds a new connection. If there are too many, the oldest must end: so no client can keep the
    /// probes out by opening connections.
    fn add(&mut self, metrics: &Metrics) -> CancellationToken {
        self.0.retain(|connection| !connection.is_cancelled());
        if self.0.len() >= CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.cancel();
            metrics.admin_refused(AdminRefusal::Connections);
        }
        let ended = CancellationToken::new();
        self.0.push_back(ended.clone());
        ended
    }
}

/// Serves until `shutdown` resolves. Then running answers have 2 seconds to end.
pub async fn serve(
    listener: Listener,
    state: AdminState,
    shutdown: impl Future<Output = ()> + Send,
) {
    if let Listener::Tcp(listener) = &listener
        && let Err(error) = stream::bound_buffers(listener)
    {
        tracing::warn!("the admin port's kernel buffers cannot be bounded: {error}");
    }
    let mut shutdown = pin!(shutdown);
    let port = Arc::new(Port {
        metrics: Arc::clone(&state.metrics),
        settings: state.settings.clone(),
        router: router(state),
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
    });
    let mut open = OpenConnections::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = port.accept(&listener, &mut open) => accepted,
        };
        match accepted {
            // Under a flood, each connection has its turn before it is closed for a newer one.
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => {
                tracing::warn!("the admin port cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    port.stopping.cancel();
    port.tasks.close();
    if timeout(LAST_ANSWERS, port.tasks.wait()).await.is_err() {
        tracing::info!("connections of the admin port were cut at shutdown");
    }
}

/// Shared by all connections.
struct Port {
    router: Router,
    settings: watch::Receiver<AdminSettings>,
    metrics: Arc<Metrics>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Port {
    /// Takes the next connection, and serves it in a task of its own.
    async fn accept(
        self: &Arc<Self>,
        listener: &Listener,
        open: &mut OpenConnections,
    ) -> io::Result<()> {
        let (socket, peer) = match listener {
            Listener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let peer = AdminPeer::by_tcp(address, stream.local_addr()?);
                (Either::Left(stream), peer)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().ok().map(|credentials| credentials.uid());
                (Either::Right(stream), AdminPeer::by_socket(user))
            }
        };
        let ended = open.add(&self.metrics);
        let mut stream = stream::timed(socket, &self.metrics);
        let port = Arc::clone(self);
        self.tasks.spawn(async move {
            let _ended = ended.clone().drop_guard();
            tokio::select! {
                biased;
                () = ended.cancelled() => {}
                () = port.serve(&mut stream, &peer) => return,
            }
            tracing::debug!("a connection of the admin port was closed for a newer one");
            stream.reset();
        });
        Ok(())
    }

    /// Does the TLS handshake, if the port has TLS, with the current certificate.
    async fn serve(&self, stream: &mut TimedSocket, peer: &AdminPeer) {
        let tls = self.settings.borrow().tls.clone();
        let Some(tls) = tls else {
            return self.http(stream, peer).await;
        };
        let accepting = TlsAcceptor::from(tls.config).accept(stream);
        let accepted = tokio::select! {
            accepted = timeout(HEAD_TIMEOUT, accepting) => accepted,
            () = self.stopping.cancelled() => return,
        };
        match accepted {
            Ok(Ok(stream)) => self.http(stream, peer).await,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake of the admin port failed");
            }
            Err(_) => tracing::debug!("a TLS handshake of the admin port took too long"),
        }
    }

    async fn http<S>(&self, stream: S, peer: &AdminPeer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            self.router.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let served = tokio::select! {
            served = &mut connection => served,
            () = self.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!("a connection of the admin port broke: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_too_many_makes_room() {
        let metrics = Metrics::new(&[]);
        let mut open = OpenConnections::default();
        let mut all: Vec<_> = (0..CONNECTIONS).map(|_| open.add(&metrics)).collect();
        // One that ended makes room as well.
        all[1].cancel();
        all.push(open.add(&metrics));
        assert!(!all[0].is_cancelled());
        all.extend([open.add(&metrics), open.add(&metrics)]);
        let closed: Vec<_> = (0..all.len())
            .filter(|at| all[*at].is_cancelled())
            .collect();
        assert_eq!(closed, [0, 1, 2]);
    }
}
