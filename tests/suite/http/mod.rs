//! HTTP: what is refused, what passes byte for byte, and the limits of both.

pub mod addresses;
pub mod classify;
pub mod discarded;
pub mod discretion;
pub mod echo;
pub mod edge;
pub mod grpc;
pub mod headers;
pub mod http2;
pub mod limits;
pub mod load;
pub mod loops;
pub mod named_clients;
pub mod responses;
pub mod reuse;
pub mod strict_http1;
pub mod tls;
pub mod unfenced_bodies;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::UnboundedSender;

use crate::support::{Config, Proxy, Store};

/// A route of each mode.
const MODES: &str = "
routes:
  - { path: '/orders/{id}', resource: 'order:{id}' }
  - { path: '/seen/{id}', resource: 'seen:{id}', mode: observe }
  - { path: '/open/{id}', mode: bypass }";

/// A proxy before a URL, with a store of its own.
async fn before(url: &str, more: &str) -> Proxy {
    Proxy::start(&Config::to(url, &Store::sqlite()).with(more)).await
}

/// A request over HTTP/2: its head, its content, its trailers.
type SeenRequest = (http::request::Parts, Vec<u8>, Option<http::HeaderMap>);

/// Serves a connection over HTTP/2 by a library: the peer of [`crate::support::http2`] reads no
/// fields of a request.
async fn serve_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: UnboundedSender<SeenRequest>,
) {
    let mut connection = h2::server::handshake(stream).await.expect("a preface");
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let seen = seen.clone();
        // The connection goes on only while it is asked for the next one.
        tokio::spawn(async move {
            let (head, mut body) = request.into_parts();
            let mut content = Vec::new();
            while let Some(data) = body.data().await {
                content.extend_from_slice(&data.expect("data"));
            }
            let trailers = body.trailers().await.expect("a whole request");
            let answered = respond.send_response(http::Response::new(()), true);
            answered.expect("it is open");
            let _ = seen.send((head, content, trailers));
        });
    }
}
