//! TLS of the data port: the handshake, and the client's certificate. The handshake runs in the
//! connection's own task and within `limits.head_timeout`, so that a client that stalls in it
//! delays no other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::config::TlsSettings;
use crate::metrics::{HandshakeError, Limit, Metrics};
use crate::proxy::{Client, ClientNames};
use crate::timed_socket::TimedSocket;

/// How long a connection with a client certificate accepts new requests, since a certificate may be
/// revoked meanwhile. Its requests then have as long again to end; its tunnels are closed.
pub(super) const CLIENT_MAX_AGE: Duration = Duration::from_hours(1);

/// A client's connection, without TLS or with it.
pub(super) type ClientIo = Either<TimedSocket, Box<TlsStream<TimedSocket>>>;

/// Does the handshake within `limit`, and notes in `client` the certificate that it has. ALPN tells
/// the client which versions of HTTP there are; its first bytes tell which one it speaks. `None`: the
/// handshake failed, which is counted.
pub(super) async fn accept(
    tls: TlsSettings,
    socket: TimedSocket,
    limit: Duration,
    client: &mut Client,
    metrics: &Metrics,
) -> Option<ClientIo> {
    let accepting = TlsAcceptor::from(tls.config).accept(socket);
    let accepted = timeout(limit, accepting).await;
    let accepted = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            let reason = reason(&error);
            metrics.series.tls_handshake_errors.of(reason).inc();
            if reason == HandshakeError::Timeout {
                metrics.limit(Limit::HeadTimeout);
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
    client.mutual = tls.clients.is_some();
    let certified = client.identity.as_ref();
    client.until = certified.map(|_| Instant::now() + CLIENT_MAX_AGE);
    Some(Either::Right(Box::new(stream)))
}

fn reason(error: &io::Error) -> HandshakeError {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)) => {
            HandshakeError::ClientCertificate
        }
        Some(rustls::Error::AlertReceived(_)) => HandshakeError::RefusedByClient,
        Some(_) => HandshakeError::Protocol,
        None if error.kind() == io::ErrorKind::TimedOut => HandshakeError::Timeout,
        None => HandshakeError::Closed,
    }
}
