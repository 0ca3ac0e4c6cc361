//! The data port: accept loop, limits on connections, drain. One connection is [`connection`]'s;
//! HTTP/1 is read and written here ([`http1`]), HTTP/2 is hyper's ([`http2`]).

mod accept;
mod connection;
mod connection_limit;
mod connection_state;
mod deadline_timer;
pub(crate) mod descriptors;
mod http1;
mod http2;
mod idle_connections;
mod signals;
mod stalled_streams;
mod tls;
mod workers;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::accept::Acceptor;
use self::connection::DataConnections;
use self::connection_limit::ConnectionLimit;
use self::idle_connections::IdleConnections;
pub(crate) use self::signals::DrainPhases;
use self::signals::Signal;
pub(crate) use self::workers::Workers;
use crate::config::LimitSettings;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::socket::Listener;

/// Accepts connections until the drain begins. Then waits until all connections have ended their
/// requests.
pub(crate) async fn serve(
    listener: Listener,
    proxy: Arc<Proxy>,
    limits: LimitSettings,
    metrics: Arc<Metrics>,
    drain: DrainPhases,
    workers: Arc<Workers>,
) {
    let limit = Arc::new(ConnectionLimit::new(&limits, Arc::clone(&metrics)));
    let idle: Arc<IdleConnections> = Arc::default();
    let signals = tokio::spawn(broadcast(drain.clone(), Arc::clone(&idle)));
    let _signals = AbortOnDropHandle::new(signals);
    let mut acceptor = Acceptor::new(
        listener,
        limit,
        Arc::clone(&idle),
        Arc::clone(&proxy),
        Arc::clone(&metrics),
    );
    let connections = DataConnections::new(proxy, limits, metrics, drain.clone(), idle);
    let connections = Arc::new(connections);
    loop {
        let (stream, permit) = tokio::select! {
            () = drain.now.cancelled() => break,
            accepted = acceptor.next() => accepted,
        };
        connections.serve(stream, permit, workers.next());
    }
    drop(acceptor);
    connections.ended().await;
}

/// Sends the phases of the drain to all connections, so that none of them watches shared state.
async fn broadcast(drain: DrainPhases, connections: Arc<IdleConnections>) {
    let send = |phase: CancellationToken, signal| {
        let connections = &connections;
        async move {
            phase.cancelled().await;
            connections.signal(signal);
        }
    };
    tokio::join!(
        send(drain.announced, Signal::Announced),
        send(drain.now, Signal::Leave),
        send(drain.cut, Signal::Cut),
    );
}
