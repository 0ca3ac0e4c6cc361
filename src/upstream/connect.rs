//! Opening connections to the one upstream: TCP or Unix socket, and TLS over it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::uri::Authority;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, InvalidMessage};
use tokio::io::AsyncWrite as _;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::socket::{LeaseGuard, TlsRecords, UpstreamSocket};
use crate::body::BoxError;
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
    pub(super) address: Address,
    /// `None`: no TLS.
    pub(super) tls: Option<Tls>,
    /// `None`: for what is not fenced.
    pub(super) guard: Option<LeaseGuard>,
    pub(super) timeout: Duration,
    /// `upstream.header_bytes`.
    pub(super) header_bytes: usize,
    pub(super) metrics: Arc<Metrics>,
}

/// Where the upstream listens.
#[derive(Clone)]
pub(super) enum Address {
    Tcp(Arc<str>, u16),
    Unix(PathBuf),
}

/// TLS to the upstream.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    /// `None`: the URL's host is no name that a certificate could have.
    server_name: Option<ServerName<'static>>,
}

impl Address {
    pub(super) fn tcp(authority: &Authority, tls: bool) -> Self {
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Self::Tcp(host(authority).into(), port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The host without the brackets around an IPv6 address.
fn host(authority: &Authority) -> &str {
    let host = authority.host();
    host.trim_start_matches('[').trim_end_matches(']')
}

impl Tls {
    /// `server_name`: in place of the URL's host.
    pub(super) fn new(
        mut config: ClientConfig,
        server_name: Option<ServerName<'static>>,
        authority: &Authority,
        h2: bool,
    ) -> Self {
        if h2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        let from_url = || ServerName::try_from(host(authority).to_owned()).ok();
        Self {
            config: Arc::new(config),
            server_name: server_name.or_else(from_url),
        }
    }

    async fn handshake(&self, mut socket: UpstreamSocket) -> Result<UpstreamIo, BoxError> {
        let name = self.server_name.clone();
        let name = name.ok_or("the host of upstream.url is no valid name; see server_name")?;
        socket.records = Some(TlsRecords::default());
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let connected = connector.connect(name, socket).await;
        let stream = connected.map_err(|error| match hint(&error) {
            Some(hint) => format!("{hint}: {error}").into(),
            None => BoxError::from(error),
        })?;
        // An upstream without ALPN lets the handshake pass.
        let wanted = self.config.alpn_protocols.first();
        if stream.get_ref().1.alpn_protocol() != wanted.map(Vec::as_slice) {
            return Err(NO_H2.into());
        }
        Ok(Either::Right(Box::new(stream)))
    }
}

impl Connecting {
    /// # Errors
    ///
    /// The address, and why it has no connection, in one line.
    pub(super) async fn open(&self) -> Result<UpstreamIo, String> {
        let opened = self.connected().await;
        opened.map_err(|(cause, why)| {
            self.metrics.series.upstream_connect_errors.of(cause).inc();
            format!("{}: {why}", self.address)
        })
    }

    async fn connected(&self) -> Result<UpstreamIo, (ConnectFailure, String)> {
        let timeout = self.timeout;
        let deadline = Instant::now() + timeout;
        let late = |why: String| (ConnectFailure::Timeout, why);
        let socket = match timeout_at(deadline, self.socket()).await {
            Ok(socket) => socket?,
            Err(_) => return Err(late(format!("no connection within {timeout:?}"))),
        };
        let Some(tls) = &self.tls else {
            return Ok(Either::Left(socket));
        };
        match timeout_at(deadline, tls.handshake(socket)).await {
            Ok(stream) => stream.map_err(|error| (ConnectFailure::Tls, chain(&*error))),
            Err(_) => Err(late(format!(
                "connected, and no TLS handshake within {timeout:?}; does it speak TLS?"
            ))),
        }
    }

    async fn socket(&self) -> Result<UpstreamSocket, (ConnectFailure, String)> {
        let failed = |error: io::Error| (failure(&error), chain(&error));
        let io = match &self.address {
            Address::Unix(path) => Either::Right(UnixStream::connect(path).await.map_err(failed)?),
            Address::Tcp(host, port) => {
                let found = lookup_host((&**host, *port)).await;
                let addresses = found.map_err(|error| (ConnectFailure::Dns, chain(&error)))?;
                let stream = first_to_answer(addresses.collect()).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                socket::keep_alive(&stream);
                if let Some(guard) = &self.guard {
                    guard.prepare(&stream).map_err(failed)?;
                }
                Either::Left(stream)
            }
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

/// The socket below TLS.
pub(super) fn socket_of(io: &UpstreamIo) -> &UpstreamSocket {
    match io {
        Either::Left(socket) => socket,
        Either::Right(stream) => stream.get_ref().0,
    }
}

/// As [`socket_of`].
pub(super) fn socket_of_mut(io: &mut UpstreamIo) -> &mut UpstreamSocket {
    match io {
        Either::Left(socket) => socket,
        Either::Right(stream) => stream.get_mut().0,
    }
}

/// Sends TLS's `close_notify`, where there is TLS and the socket takes it at once.
pub(super) fn notify_close(io: &mut UpstreamIo) {
    if let Either::Right(stream) = io {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(stream).poll_shutdown(&mut cx);
    }
}

/// Why the upstream cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("upstream.url: {0} is not an authority: {1}")]
    Authority(String, http::uri::InvalidUri),
    #[error(
        "the system's root certificates cannot be read: {0}; upstream.tls.ca_file names others"
    )]
    Roots(io::Error),
}

/// Why there is no response head. Each with its causes, in one line.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing was written, and nothing will be.
    NotSent(String),
    /// The upstream says that it has not processed the request, and will not.
    Refused(String),
    /// A byte may have been written.
    Broken(String),
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
