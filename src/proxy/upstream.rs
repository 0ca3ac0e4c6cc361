//! The way to the upstream: sockets that look at the lease before every write, and the clients over them.
//!
//! Two clients, two pools. The *fenced* one writes only under the lease of the generation its
//! connection was opened in: an instance that was stopped in the middle of a body, and wakes up after
//! its peers have declared it dead, finds the lease lapsed at the very next write, and the
//! connection is reset instead. The *plain* one carries what nobody fences, and works without a lease.
//!
//! hyper-util's pool retries a request that hyper hands back as never begun (a kept-alive connection
//! that the upstream closed in the meantime). That is the one retry there is, and it happens under the
//! same permit; a request of which a byte may have been written is never sent again (G5).

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{
    FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream,
};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

use super::body::{BoxError, UpstreamBody};
use super::reset::ResetSwitch;
use super::tunnel;
use super::watched::Watch;
use crate::config::{HostPolicy, UpstreamSettings, UpstreamUrl};
use crate::marks::lease::Lease;

/// Why the upstream cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("upstream.url: {0} is not an authority: {1}")]
    Authority(String, http::uri::InvalidUri),
    #[error(
        "the system's root certificates cannot be read: {0}; upstream.tls.ca_file names others"
    )]
    Roots(io::Error),
    #[error("the lease under which this request was admitted has ended")]
    Ended,
}

/// What hyper may hold of one HTTP/1 connection in each direction, and so the longest head of a response, and
/// the longest piece of one.
const BUFFER: usize = 64 << 10;

type HttpClient = Client<Watch<Connecting>, UpstreamBody>;

/// The upstream, and the two ways to reach it.
pub(crate) struct Upstream {
    scheme: Scheme,
    authority: Authority,
    /// The upstream speaks HTTP/2, by prior knowledge or ALPN: the authority takes the place of Host.
    pub h2: bool,
    host: HostPolicy,
    setup: Setup,
    lease: Arc<Lease>,
    /// For requests with a permit: of the generation beside it. Short sections, never across an await.
    fenced: Mutex<(u64, HttpClient)>,
    /// For what is not fenced.
    pub plain: HttpClient,
}

/// What a client is made of.
struct Setup {
    /// `None`: no TLS.
    tls: Option<ClientConfig>,
    /// In place of the URL's host.
    server_name: Option<ServerName<'static>>,
    h2: bool,
    socket: Option<PathBuf>,
    connect_timeout: Duration,
    idle_timeout: Duration,
}

impl Setup {
    fn client(&self, guard: Option<LeaseGuard>) -> HttpClient {
        let sockets = Connector {
            socket: self.socket.clone(),
            guard,
        };
        let connector = Connecting {
            way: match &self.tls {
                None => Way::Plain(sockets),
                Some(config) => Way::Tls(self.secured(config.clone(), sockets), self.h2),
            },
            timeout: self.connect_timeout,
        };
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(self.idle_timeout)
            .http2_only(self.h2)
            // There are services that know `Content-Type` and not `content-type`.
            .http1_preserve_header_case(true)
            .http1_title_case_headers(true)
            .http1_max_buf_size(BUFFER)
            // Only what hyper hands back as never begun; see the module's page.
            .retry_canceled_requests(true)
            .build(Watch::new(connector, self.h2))
    }

    fn secured(&self, config: ClientConfig, sockets: Connector) -> HttpsConnector<Connector> {
        let mut builder = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only();
        if let Some(name) = &self.server_name {
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
        }
        if self.h2 {
            builder.enable_http2().wrap_connector(sockets)
        } else {
            builder.enable_http1().wrap_connector(sockets)
        }
    }
}

impl Upstream {
    pub(crate) fn new(
        settings: &UpstreamSettings,
        lease: &Arc<Lease>,
    ) -> Result<Self, UpstreamError> {
        let (scheme, authority, h2, socket) = match &settings.url {
            UpstreamUrl::Http(authority) => (Scheme::HTTP, authority.as_str(), false, None),
            UpstreamUrl::Https(authority) => {
                (Scheme::HTTPS, authority.as_str(), settings.http2, None)
            }
            UpstreamUrl::H2c(authority) => (Scheme::HTTP, authority.as_str(), true, None),
            UpstreamUrl::Unix(path) => (Scheme::HTTP, "localhost", false, Some(path.clone())),
        };
        let authority: Authority = authority
            .parse()
            .map_err(|error| UpstreamError::Authority(authority.to_owned(), error))?;
        let tls = (scheme == Scheme::HTTPS)
            .then(|| settings.tls.client_config())
            .transpose()
            .map_err(UpstreamError::Roots)?;
        let setup = Setup {
            tls,
            server_name: settings.tls.server_name.clone(),
            h2,
            socket,
            connect_timeout: settings.connect_timeout,
            idle_timeout: settings.idle_timeout,
        };
        let generation = lease.generation();
        let fenced = setup.client(Some(LeaseGuard::new(lease, generation)));
        let plain = setup.client(None);
        Ok(Self {
            scheme,
            authority,
            h2,
            host: settings.host.clone(),
            setup,
            lease: Arc::clone(lease),
            fenced: Mutex::new((generation, fenced)),
            plain,
        })
    }

    /// The client for permits of `generation`. After a rejoin the connections of the generation before
    /// can carry nothing new, so the pool starts afresh; and a permit of the generation before gets
    /// no client at all, since the sockets of the new one would let it write.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Ended`] for an earlier generation than the latest seen.
    pub(crate) fn fenced(&self, generation: u64) -> Result<HttpClient, UpstreamError> {
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        if fenced.0 > generation {
            return Err(UpstreamError::Ended);
        }
        if fenced.0 < generation {
            let guard = LeaseGuard::new(&self.lease, generation);
            *fenced = (generation, self.setup.client(Some(guard)));
        }
        Ok(fenced.1.clone())
    }

    /// The URI of a request whose target is `target`, byte for byte.
    pub(crate) fn uri(&self, target: PathAndQuery) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(target);
        Uri::from_parts(parts).unwrap_or_else(|_| unreachable!("all three parts are there"))
    }

    /// The Host that the upstream sees, given the client's.
    pub(crate) fn host(&self, client: Option<&HeaderValue>) -> Option<HeaderValue> {
        let rewritten = || HeaderValue::from_str(self.authority.as_str()).ok();
        match &self.host {
            HostPolicy::Preserve => client.cloned().or_else(rewritten),
            HostPolicy::Rewrite => rewritten(),
            HostPolicy::Literal(host) => HeaderValue::from_str(host).ok(),
        }
    }
}

/// Opens connections to the one upstream, with their handshakes, within `upstream.connect_timeout`.
#[derive(Clone)]
pub(crate) struct Connecting {
    way: Way,
    timeout: Duration,
}

#[derive(Clone)]
enum Way {
    Plain(Connector),
    /// Whether HTTP/2 has to be agreed on.
    Tls(HttpsConnector<Connector>, bool),
}

impl Service<Uri> for Connecting {
    type Response = MaybeHttpsStream<Socket>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { way, timeout } = self.clone();
        Box::pin(async move {
            let connect = async {
                match way {
                    Way::Plain(mut sockets) => Ok(MaybeHttpsStream::Http(sockets.call(uri).await?)),
                    Way::Tls(mut connector, h2) => match connector.call(uri).await {
                        Err(error) if h2 && agrees_on_nothing(&*error) => Err(NO_H2.into()),
                        // One that knows no ALPN has let the handshake pass.
                        Ok(stream) if h2 && !speaks_h2(&stream) => Err(NO_H2.into()),
                        called => called,
                    },
                }
            };
            tokio::time::timeout(timeout, connect)
                .await
                .unwrap_or_else(|_| {
                    let message = format!("no connection within {timeout:?}");
                    Err(io::Error::new(io::ErrorKind::TimedOut, message).into())
                })
        })
    }
}

const NO_H2: &str = "it does not offer HTTP/2 by ALPN; see upstream.http2";

fn agrees_on_nothing(error: &(dyn std::error::Error + 'static)) -> bool {
    let tls = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let nothing = AlertDescription::NoApplicationProtocol;
    matches!(tls, Some(rustls::Error::AlertReceived(alert)) if *alert == nothing)
}

fn speaks_h2(stream: &MaybeHttpsStream<Socket>) -> bool {
    match stream {
        MaybeHttpsStream::Https(stream) => {
            stream.inner().get_ref().1.alpn_protocol() == Some(b"h2")
        }
        MaybeHttpsStream::Http(_) => false,
    }
}

/// Opens sockets to the one upstream, whatever the URI says.
#[derive(Clone)]
pub(crate) struct Connector {
    socket: Option<PathBuf>,
    /// The generation is that of the permits whose client this is, not the one of the moment of the
    /// connect: a permit of an earlier generation must not get a socket of a later one.
    guard: Option<LeaseGuard>,
}

impl Service<Uri> for Connector {
    type Response = Socket;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let guard = connector.guard;
            if let Some(path) = &connector.socket {
                let stream = UnixStream::connect(path).await?;
                return Ok(Socket::new(Io::Unix(TokioIo::new(stream)), guard));
            }
            let host = uri.host().unwrap_or("localhost");
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let default = if uri.scheme() == Some(&Scheme::HTTPS) {
                443
            } else {
                80
            };
            let port = uri.port_u16().unwrap_or(default);
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            tunnel::keep_alive(&stream);
            Ok(Socket::new(Io::Tcp(TokioIo::new(stream)), guard))
        })
    }
}

/// What a fenced socket looks at before every write.
#[derive(Clone)]
pub(crate) struct LeaseGuard {
    lease: Arc<Lease>,
    generation: u64,
}

impl LeaseGuard {
    fn new(lease: &Arc<Lease>, generation: u64) -> Self {
        Self {
            lease: Arc::clone(lease),
            generation,
        }
    }
}

/// A connection to the upstream.
pub(crate) struct Socket {
    io: Io,
    guard: Option<LeaseGuard>,
    reset: ResetSwitch,
}

enum Io {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
}

impl Drop for Socket {
    fn drop(&mut self) {
        // What nobody fences may arrive at any time.
        if self.guard.is_some()
            && self.reset.is_thrown()
            && let Io::Tcp(stream) = &self.io
        {
            let _ = stream.inner().set_zero_linger();
        }
    }
}

impl Socket {
    fn new(io: Io, guard: Option<LeaseGuard>) -> Self {
        Self {
            io,
            guard,
            reset: ResetSwitch::default(),
        }
    }

    /// Refuses a write under a lapsed lease, or of a request that was given up. hyper then drops the connection.
    fn may_write(&self) -> io::Result<()> {
        match &self.guard {
            Some(_) if self.reset.is_thrown() => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the request was given up; nothing more is written upstream",
            )),
            Some(guard) if !guard.lease.holds(guard.generation) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the lease has lapsed; nothing more is written upstream",
            )),
            _ => Ok(()),
        }
    }

    /// A write that waits for room ends once the request is given up.
    fn wrote<T>(&self, cx: &Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() && self.guard.is_some() {
            self.reset.register(cx.waker());
            self.may_write()?;
        }
        written
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.reset.clone())
    }
}

impl Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl Write for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.may_write()?;
        let this = self.get_mut();
        let written = match &mut this.io {
            Io::Tcp(io) => Pin::new(io).poll_write(cx, buf),
            Io::Unix(io) => Pin::new(io).poll_write(cx, buf),
        };
        this.wrote(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_flush(cx),
            Io::Unix(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Io::Unix(io) => Pin::new(io).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.may_write()?;
        let this = self.get_mut();
        let written = match &mut this.io {
            Io::Tcp(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Io::Unix(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        };
        this.wrote(cx, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::InstanceId;
    use crate::marks::lease::Clock;
    use crate::proxy::body::Upload;
    use crate::proxy::headers::trailers::TrailerRules;
    use http::Request;
    use tokio::io::AsyncReadExt as _;
    use tokio_util::sync::CancellationToken;

    fn lease() -> Arc<Lease> {
        let clock = Clock::from_fn(|| Duration::ZERO);
        let term = Some(Duration::from_secs(5));
        let lease = Lease::new(clock, term, InstanceId::from_bits(1));
        lease.renewed(Duration::ZERO);
        Arc::new(lease)
    }

    fn upstream(address: &str, lease: &Arc<Lease>) -> Upstream {
        let settings = UpstreamSettings {
            url: UpstreamUrl::Http(address.to_owned()),
            host: HostPolicy::Preserve,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(5),
            undelivered: Duration::from_secs(5),
            unknown_statuses: std::sync::Arc::new([502, 504]),
            http2: false,
            tls: crate::config::UpstreamTlsSettings::default(),
        };
        Upstream::new(&settings, lease).expect("an upstream")
    }

    fn request(upstream: &Upstream) -> Request<UpstreamBody> {
        let body = Upload::empty().send(TrailerRules::default(), CancellationToken::new());
        let mut request = Request::new(body);
        *request.uri_mut() = upstream.uri(PathAndQuery::from_static("/"));
        request
    }

    #[test]
    fn a_permit_of_an_earlier_generation_gets_no_client_of_a_later_one() {
        let lease = lease();
        let upstream = upstream("127.0.0.1:1", &lease);
        assert!(upstream.fenced(0).is_ok());
        lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
        assert!(upstream.fenced(1).is_ok());
        assert!(matches!(upstream.fenced(0), Err(UpstreamError::Ended)));
    }

    #[tokio::test]
    async fn a_connection_that_is_made_after_a_rejoin_writes_nothing_for_an_earlier_permit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let lease = lease();
        let upstream = upstream(&address, &lease);
        let client = upstream.fenced(0).expect("a client");
        lease.rejoined(InstanceId::from_bits(2), Duration::ZERO);
        let sent = tokio::spawn(client.request(request(&upstream)));
        let (mut socket, _) = listener.accept().await.expect("a connection");
        let mut read = Vec::new();
        let _ = socket.read_to_end(&mut read).await;
        assert!(read.is_empty(), "{}", String::from_utf8_lossy(&read));
        assert!(sent.await.expect("no panic").is_err());
    }
}
