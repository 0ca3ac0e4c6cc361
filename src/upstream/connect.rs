//! Opening connections to the one upstream: TCP or Unix socket, and TLS over it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::uri::Authority;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, InvalidMessage};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::socket::{LeaseGuard, TlsRecords, UpstreamSocket};
use crate::body::UploadError;
use crate::config::{UpstreamSettings, UpstreamTlsSettings, UpstreamUrl};
use crate::metrics::{ConnectFailure, InFlightGuard, Metrics};
use crate::socket;

/// How long a connection may carry new requests. The name of the upstream may have got other
/// addresses meanwhile.
pub(super) const MAX_AGE: Duration = Duration::from_mins(5);

/// When the next address of a name is tried beside those that have not answered (RFC 8305, 5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Opens connections to the one upstream, with their handshakes, within `upstream.connect_timeout`.
#[derive(Clone)]
pub(crate) struct Connecting {
    pub(super) settings: Arc<UpstreamSettings>,
    /// With the port, or `unix:` and a path.
    pub(super) address: Arc<str>,
    /// `None`: no TLS.
    pub(super) tls: Option<Tls>,
    /// `None`: for what is not fenced.
    pub(super) guard: Option<LeaseGuard>,
    pub(super) metrics: Arc<Metrics>,
}

/// TLS to the upstream.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

impl Tls {
    pub(super) fn new(
        settings: &UpstreamTlsSettings,
        authority: &Authority,
        h2: bool,
    ) -> Result<Self, String> {
        let mut config = settings.client_config().map_err(|error| {
            format!(
                "the system's root certificates cannot be read: {error}; upstream.tls.ca_file \
                 names others"
            )
        })?;
        if h2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        // Without the brackets around an IPv6 address.
        let host = authority.host().trim_matches(['[', ']']);
        let from_url = || ServerName::try_from(host.to_owned()).ok();
        let name = settings.server_name.clone().or_else(from_url);
        let missing = "the host of upstream.url is no valid name: see upstream.tls.server_name";
        Ok(Self {
            config: Arc::new(config),
            server_name: name.ok_or(missing)?,
        })
    }

    async fn handshake(&self, socket: UpstreamSocket) -> Result<UpstreamIo, String> {
        socket.lock().records = Some(TlsRecords::default());
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let connected = connector.connect(self.server_name.clone(), socket).await;
        let stream = connected.map_err(|error| match hint(&error) {
            Some(hint) => format!("{hint}: {error}"),
            None => chain(&error),
        })?;
        // An upstream without ALPN lets the handshake pass.
        let wanted = self.config.alpn_protocols.first();
        if stream.get_ref().1.alpn_protocol() != wanted.map(Vec::as_slice) {
            return Err(NO_H2.to_owned());
        }
        Ok(Either::Right(Box::new(stream)))
    }
}

impl Connecting {
    pub(super) fn new(
        settings: &UpstreamSettings,
        authority: &Authority,
        tls: Option<Tls>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let port = authority.port_u16();
        let port = port.unwrap_or(if tls.is_some() { 443 } else { 80 });
        let address = match &settings.url {
            UpstreamUrl::Unix(path) => format!("unix:{}", path.display()),
            _ => format!("{}:{port}", authority.host()),
        };
        Self {
            settings: Arc::new(settings.clone()),
            address: address.into(),
            tls,
            guard: None,
            metrics: Arc::clone(metrics),
        }
    }

    /// # Errors
    ///
    /// The address, and why it has no connection, in one line.
    pub(super) async fn open(&self) -> Result<(UpstreamSocket, UpstreamIo), String> {
        let within = self.settings.connect_timeout.0;
        let mut missing = "no connection";
        let opened = timeout(within, async {
            let socket = self.socket().await?;
            let Some(tls) = &self.tls else {
                return Ok((socket.clone(), Either::Left(socket)));
            };
            missing = "connected, but it may not speak TLS: no TLS handshake";
            let io = tls.handshake(socket.clone()).await;
            io.map(|io| (socket, io))
                .map_err(|why| (ConnectFailure::Tls, why))
        });
        let opened = opened.await;
        let opened = opened.map_err(|_| format!("{missing} within {within:?}"));
        let opened = opened.map_err(|late| (ConnectFailure::Timeout, late));
        opened.flatten().map_err(|(cause, why)| {
            self.metrics.series.upstream_connect_errors.of(cause).inc();
            format!("{}: {why}", self.address)
        })
    }

    async fn socket(&self) -> Result<UpstreamSocket, (ConnectFailure, String)> {
        let failed = |error: io::Error| (failure(&error), chain(&error));
        let io = if let UpstreamUrl::Unix(path) = &self.settings.url {
            Either::Right(UnixStream::connect(path).await.map_err(failed)?)
        } else {
            let found = lookup_host(&*self.address).await;
            let addresses = found.map_err(|error| (ConnectFailure::Dns, chain(&error)))?;
            let stream = first_to_answer(addresses.collect()).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            socket::keep_alive(&stream);
            if let Some(guard) = &self.guard {
                guard.prepare(&stream).map_err(failed)?;
            }
            Either::Left(stream)
        };
        let counted = InFlightGuard::over(&self.metrics.series.upstream_connections);
        Ok(UpstreamSocket::new(io, self.guard.clone(), counted))
    }
}

/// Connects to the first of these addresses that answers. One that answers nothing takes no more
/// than [`NEXT_ADDRESS`] from the others.
async fn first_to_answer(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut addresses = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failed = io::Error::other("the name has no address");
    loop {
        attempts.extend(addresses.next().map(TcpStream::connect));
        tokio::select! {
            attempt = attempts.next() => match attempt {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failed = error,
                None => return Err(failed),
            },
            () = tokio::time::sleep(NEXT_ADDRESS), if addresses.len() > 0 => {}
        }
    }
}

/// Why a socket was not connected.
fn failure(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => ConnectFailure::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ConnectFailure::Unreachable
        }
        io::ErrorKind::TimedOut => ConnectFailure::Timeout,
        _ => ConnectFailure::Other,
    }
}

const NO_H2: &str = "it does not offer HTTP/2 by ALPN; see upstream.http2";

const NO_TLS: &str = "it does not speak TLS; is upstream.url http:// or h2c://?";

/// The setting that a failed handshake points to.
fn hint(error: &io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Some(NO_H2),
        // It answered with something else than a record of TLS.
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(NO_TLS),
        _ => None,
    }
}

/// A connection to the upstream, without TLS or with it.
pub(crate) type UpstreamIo = Either<UpstreamSocket, Box<TlsStream<UpstreamSocket>>>;

/// Why there is no response head. Each with its causes, in one line.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing was written, and nothing will be; or the upstream says that it has not processed the
    /// request, and will not.
    NotSent(String),
    /// A byte may have been written.
    Broken(String),
    /// The client's part of the exchange broke off. A byte may have been written.
    Body(UploadError),
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) {
            return text;
        }
        text + ": " + &cause
    })
}
