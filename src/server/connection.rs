//! One connection of a client, from its first byte to its end: socket, then TLS if there is any
//! (the handshake, and the client's certificate), then HTTP of either version.

use std::io;
use std::sync::Arc;

use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented};
use socket2::SockRef;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

use super::accept::Accepted;
use super::connection_state::{ClientIo, ConnectionState, Signal, Site};
use super::{http1, http2};
use crate::config::TlsSettings;
use crate::metrics::{HandshakeError, Limit};
use crate::proxy::{Client, ClientNames, Proxy};
use crate::socket;
use crate::timed_socket::TimedSocket;

/// How many bytes may wait in the kernel before a write finds no room. By default the kernel takes
/// up to megabytes, and reports room only once a third of them has gone. A slow client that reads
/// all the time would then look like one that does not read.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// Serves a connection to its end, or until [`Signal::Cut`].
pub(super) async fn serve(proxy: Arc<Proxy>, accepted: Accepted) {
    let state = Arc::clone(&accepted.open.state);
    tokio::select! {
        biased;
        // First, so that the task is registered before anything looks for a signal.
        () = state.signalled(Signal::Cut) => {}
        () = run(&proxy, accepted, &state) => {}
    }
}

async fn run(proxy: &Arc<Proxy>, accepted: Accepted, state: &Arc<ConnectionState>) {
    let Accepted { socket, ip, open } = accepted;
    let Ok(socket) = socket::attach(socket) else {
        return tracing::debug!("a connection could not be handed over");
    };
    if let Either::Left(tcp) = &socket {
        socket::keep_alive(tcp);
        // Fails only on a closed socket.
        let _ = SockRef::from(tcp).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    }
    let limits = &proxy.limits;
    let socket = TimedSocket::new(socket, limits.write_timeout.0, move || {
        open.write_timed_out();
    });
    let mut client = Client::at(ip, limits.in_flight_per_connection());
    let stream = match proxy.tls() {
        Some(tls) => tokio::select! {
            accepted = Box::pin(handshake(tls, socket, &mut client, proxy)) => accepted,
            // There is no request yet.
            () = state.signalled(Signal::Leave) => None,
        },
        None => Some(Either::Left(socket)),
    };
    let Some(stream) = stream else { return };
    let site = Site {
        proxy,
        peer: Arc::new(client),
        state,
    };
    if let Some((stream, begun)) = http1::serve(stream, &site).await {
        // Boxed: a connection that speaks HTTP/1 does not need this memory.
        Box::pin(http2::serve(stream, begun, &site)).await;
    }
}

/// Does the handshake within `limits.head_timeout`, and notes in `client` the certificate that it
/// has. It runs in the connection's own task, so that a client that stalls in it delays no other.
/// ALPN tells the client which versions of HTTP there are; its first bytes tell which one it speaks.
/// `None`: the handshake failed, which is counted.
async fn handshake(
    tls: TlsSettings,
    socket: TimedSocket,
    client: &mut Client,
    proxy: &Proxy,
) -> Option<ClientIo> {
    let accepting = TlsAcceptor::from(tls.config).accept(socket);
    let accepted = timeout(proxy.limits.head_timeout.0, accepting).await;
    let accepted = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            let reason = reason(&error);
            proxy.metrics.series.tls_handshake_errors.of(reason).inc();
            if reason == HandshakeError::Timeout {
                proxy.metrics.limit(Limit::HeadTimeout);
            }
            tracing::debug!(%error, reason = reason.as_str(), client = &*client.text, "a TLS handshake failed");
            return None;
        }
    };
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let names = certificate.map(ClientNames::of).unwrap_or_default();
    client.identity = certificate.map(|certificate| names.identity(certificate).into());
    client.tls = Some(Arc::new(names));
    Some(Either::Right(Box::new(stream)))
}

fn reason(error: &io::Error) -> HandshakeError {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(NoCertificatesPresented | InvalidCertificate(_)) => HandshakeError::ClientCertificate,
        Some(AlertReceived(_)) => HandshakeError::RefusedByClient,
        Some(_) => HandshakeError::Protocol,
        None if error.kind() == io::ErrorKind::TimedOut => HandshakeError::Timeout,
        None => HandshakeError::Closed,
    }
}
