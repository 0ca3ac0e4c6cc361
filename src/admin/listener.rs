//! The admin port's accept loop. `axum::serve` limits neither connections nor how long a client may
//! take for a request, and every process that shares the loopback can reach the port.

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
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::clients::{AdminClient, AdminConnectionPlace, AdminConnections, Conduct};
use super::peer::AdminPeer;
use super::stream::{self, AdminSocket, Deadlined};
use super::{AdminState, router};
use crate::config::AdminSettings;
use crate::metrics::Metrics;

/// How long a client may take for a head, including the idle time between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// The bytes that the server buffers for one connection in each direction. A head has to fit.
const BUFFER: usize = 64 << 10;
/// How long answers may go on once the shutdown has begun.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// The pause after a failed accept, which mostly means that no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The admin port's listener, bound by the caller.
#[derive(Debug)]
pub enum AdminListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Serves until `shutdown` resolves. Then running answers have 2 seconds to end.
pub async fn serve(
    listener: AdminListener,
    state: AdminState,
    shutdown: impl Future<Output = ()> + Send,
) {
    if let AdminListener::Tcp(listener) = &listener
        && let Err(error) = stream::bound_buffers(listener)
    {
        tracing::warn!("the admin port's kernel buffers cannot be bounded: {error}");
    }
    let mut shutdown = pin!(shutdown);
    let port = Arc::new(Port {
        connections: Arc::new(AdminConnections::new(Arc::clone(&state.metrics))),
        metrics: Arc::clone(&state.metrics),
        settings: state.settings.clone(),
        router: router(state),
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
    });
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = port.accept(&listener) => accepted,
        };
        if let Err(error) = accepted {
            tracing::warn!("the admin port cannot accept a connection: {error}");
            tokio::time::sleep(ACCEPT_PAUSE).await;
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
    connections: Arc<AdminConnections>,
    metrics: Arc<Metrics>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Port {
    /// Takes the next connection, and serves it in a task of its own.
    async fn accept(self: &Arc<Self>, listener: &AdminListener) -> io::Result<()> {
        match listener {
            AdminListener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let client = AdminClient::of(address.ip());
                let to = stream.local_addr()?;
                let peer = AdminPeer {
                    text: address.to_string().into(),
                    client,
                    local: [client, AdminClient::of(to.ip())] == [AdminClient::Loopback; 2],
                    conduct: Conduct::default(),
                };
                self.spawn(stream, peer);
            }
            AdminListener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                // The kernel vouches for the user id of the other end.
                let user = stream.peer_cred().ok().map(|credentials| credentials.uid());
                let text = user.map(|uid| format!("unix, uid {uid}").into());
                let peer = AdminPeer {
                    text: text.unwrap_or_else(|| "unix".into()),
                    client: AdminClient::User(user),
                    local: true,
                    conduct: Conduct::default(),
                };
                self.spawn(stream, peer);
            }
        }
        Ok(())
    }

    fn spawn<S: AdminSocket>(self: &Arc<Self>, stream: S, mut peer: AdminPeer) {
        let place = self.connections.enter(peer.client, Instant::now());
        peer.conduct = place.conduct();
        let stream = Deadlined::new(stream, place.closed(), Arc::clone(&self.metrics));
        let port = Arc::clone(self);
        self.tasks.spawn(async move {
            let closed = place.closed();
            tokio::select! {
                biased;
                () = closed.cancelled() => {
                    tracing::debug!("a connection of the admin port made room for another one");
                }
                () = port.serve(stream, &peer, &place) => {}
            }
        });
    }

    /// Does the TLS handshake, if the port has TLS, with the current certificate.
    async fn serve<S: AdminSocket>(
        &self,
        stream: Deadlined<S>,
        peer: &AdminPeer,
        place: &AdminConnectionPlace,
    ) {
        let tls = self.settings.borrow().tls.clone();
        let Some(tls) = tls else {
            return self.http(stream, peer, place).await;
        };
        let accepting = TlsAcceptor::from(tls.config).accept(stream);
        let accepted = tokio::select! {
            accepted = timeout(HEAD_TIMEOUT, accepting) => accepted,
            () = self.stopping.cancelled() => return,
        };
        match accepted {
            Ok(Ok(stream)) => self.http(stream, peer, place).await,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake of the admin port failed");
            }
            Err(_) => tracing::debug!("a TLS handshake of the admin port took too long"),
        }
    }

    async fn http<S>(&self, stream: S, peer: &AdminPeer, place: &AdminConnectionPlace)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            let answer = self.router.clone().oneshot(request);
            async move {
                let _at_work = place.begin();
                answer.await
            }
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
