//! The loopback port that the command sends its requests to. It speaks HTTP/1.1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::ensure;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio_util::sync::CancellationToken;

use super::forward::Forwarder;
use crate::app::listen::{self, PRIVATE};
use crate::config::{Listen, Settings};
use crate::socket::Listener;

/// Binds the port, on the loopback or on a Unix socket. Returns its address, too.
pub(super) async fn bind(settings: &Settings) -> anyhow::Result<(Listener, String)> {
    if let Listen::Tcp(address) = &settings.listen {
        let ip: Option<SocketAddr> = address.parse().ok();
        ensure!(
            ip.is_some_and(|ip| ip.ip().is_loopback()),
            "--listen {address}: whoever reaches the port writes with your token, so it must be \
             a loopback address, such as 127.0.0.1:7079, or unix:/path"
        );
    }
    // Everyone who may connect writes with the token.
    listen::bind(&settings.listen, PRIVATE).await
}

/// Accepts until `stop`, and returns once the last request has ended.
pub(super) async fn serve(listener: Listener, forwarder: Arc<Forwarder>, stop: CancellationToken) {
    let connections = GracefulShutdown::new();
    while let Some((socket, _)) = stop.run_until_cancelled(listener.next(|| {})).await {
        let forwarder = Arc::clone(&forwarder);
        let service = service_fn(move |request| {
            let forwarder = Arc::clone(&forwarder);
            async move { Ok::<_, Infallible>(forwarder.handle(request).await) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);
    connections.shutdown().await;
}
