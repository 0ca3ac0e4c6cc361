//! Opening connections to the one upstream: TCP or Unix socket, and TLS over it.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_rustls::{
    FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

use super::socket::{Io, LeaseGuard, Socket};
use crate::proxy::body::BoxError;
use crate::proxy::tunnel;

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

/// TLS to the upstream.
#[derive(Clone)]
pub(super) struct Tls {
    pub config: ClientConfig,
    /// In place of the URL's host.
    pub server_name: Option<ServerName<'static>>,
    pub h2: bool,
}

impl Connecting {
    pub(super) fn new(sockets: Connector, tls: Option<&Tls>, timeout: Duration) -> Self {
        let way = match tls {
            None => Way::Plain(sockets),
            Some(tls) => Way::Tls(tls.connector(sockets), tls.h2),
        };
        Self { way, timeout }
    }
}

impl Tls {
    fn connector(&self, sockets: Connector) -> HttpsConnector<Connector> {
        let mut builder = HttpsConnectorBuilder::new()
            .with_tls_config(self.config.clone())
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
    pub(super) socket: Option<PathBuf>,
    /// `None`: for what is not fenced.
    pub(super) guard: Option<LeaseGuard>,
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
            if let Some(guard) = &guard {
                guard.prepare(&stream)?;
            }
            Ok(Socket::new(Io::Tcp(TokioIo::new(stream)), guard))
        })
    }
}
