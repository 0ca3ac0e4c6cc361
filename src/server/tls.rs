//! TLS of the data port: the handshake, and the client's certificate. The handshake runs in the
//! connection's own task and within `limits.head_timeout`, so that a client that stalls in it
//! delays no other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::metrics::HandshakeError;
use crate::proxy::ClientNames;
use crate::timed_socket::TimedSocket;

/// A client's connection, without TLS or with it.
pub(super) type ClientIo = Either<TimedSocket, Box<TlsStream<TimedSocket>>>;

/// A connection after its handshake.
pub(super) struct Secured {
    pub stream: TlsStream<TimedSocket>,
    /// The client has chosen HTTP/2. That takes ALPN (RFC 9113, section 3.3).
    pub http2: bool,
    /// The names in its certificate.
    pub names: Arc<ClientNames>,
    /// The certificate as the upstream gets it. `None`: there is none.
    pub identity: Option<HeaderValue>,
}

/// The reason why the handshake failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct Failed {
    pub reason: HandshakeError,
    error: io::Error,
}

/// Does the handshake.
pub(super) async fn accept(
    config: Arc<ServerConfig>,
    socket: TimedSocket,
    limit: Duration,
) -> Result<Secured, Failed> {
    let accepting = TlsAcceptor::from(config).accept(socket);
    let stream = match tokio::time::timeout(limit, accepting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let reason = reason(&error);
            return Err(Failed { reason, error });
        }
        Err(_) => {
            return Err(Failed {
                reason: HandshakeError::Timeout,
                error: io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no handshake within limits.head_timeout",
                ),
            });
        }
    };
    let (_, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let names = certificate.map(ClientNames::of).unwrap_or_default();
    let identity = certificate.and_then(|certificate| names.identity(certificate));
    Ok(Secured {
        http2,
        names: Arc::new(names),
        identity,
        stream,
    })
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
        None => HandshakeError::Closed,
    }
}
