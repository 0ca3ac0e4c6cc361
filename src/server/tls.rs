//! TLS of the data port: the handshake, and what it tells of a client. It happens in the connection's own
//! task and within `limits.head_timeout`, so that a client that stalls in it holds up nobody.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::metrics::HandshakeError;
use crate::proxy::PeerNames;

/// A socket, whatever its kind: one kind of TLS stream is enough, next to what encryption costs.
pub(super) trait TlsIo: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> TlsIo for S {}

/// A connection after its handshake.
pub(super) struct Secured {
    pub stream: TlsStream<Box<dyn TlsIo>>,
    /// The client has chosen HTTP/2. Without ALPN it has not (RFC 9113, section 3.3).
    pub http2: bool,
    /// The names in the certificate that it showed.
    pub names: Arc<PeerNames>,
    /// That certificate, as the upstream is told of it; `None`: it showed none.
    pub identity: Option<HeaderValue>,
}

/// Why there is no such connection.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct Failed {
    pub reason: HandshakeError,
    error: io::Error,
}

/// Shakes hands.
pub(super) async fn accept(
    config: Arc<ServerConfig>,
    socket: Box<dyn TlsIo>,
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
    let names = certificate.map(PeerNames::of).unwrap_or_default();
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
