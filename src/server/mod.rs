//! The data port: accept loop, limits on connections, drain. One connection is [`connection`]'s;
//! HTTP/1 is read and written here ([`http1`]), HTTP/2 is hyper's ([`http2`]).

mod accept;
mod activity;
mod clock;
mod connection;
mod deadline;
pub(crate) mod descriptors;
mod http1;
mod http2;
mod idle;
mod patience;
mod slots;
mod streams;
mod tls;
mod workers;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::accept::Acceptor;
pub use self::accept::DataListener;
pub(crate) use self::activity::Leave;
use self::activity::Signal;
use self::connection::DataConnections;
use self::idle::IdleConnections;
use self::slots::Slots;
pub(crate) use self::workers::Workers;
use crate::config::LimitSettings;
use crate::metrics::Metrics;
use crate::proxy::Proxy;

/// Accepts until it has to leave, then lets the connections end their requests; returns when all have.
pub(crate) async fn serve(
    listener: DataListener,
    proxy: Arc<Proxy>,
    limits: LimitSettings,
    metrics: Arc<Metrics>,
    leave: Leave,
    workers: Arc<Workers>,
) {
    let slots = Slots::new(&limits, Arc::clone(&metrics));
    let idle: Arc<IdleConnections> = Arc::default();
    let _telling = AbortOnDropHandle::new(tokio::spawn(tell(leave.clone(), Arc::clone(&idle))));
    let mut acceptor = Acceptor::new(listener, slots, Arc::clone(&idle), Arc::clone(&metrics));
    let connections =
        DataConnections::new(proxy, limits, Arc::clone(&metrics), leave.clone(), idle);
    let connections = Arc::new(connections);
    loop {
        let (stream, slot) = tokio::select! {
            () = leave.now.cancelled() => break,
            accepted = acceptor.next() => accepted,
        };
        connections.serve(stream, slot, workers.next());
    }
    drop(acceptor);
    connections.ended().await;
}

/// Tells all connections as the process leaves: none of them has to look at what all share.
async fn tell(leave: Leave, connections: Arc<IdleConnections>) {
    let told = |step: CancellationToken, signal| {
        let connections = &connections;
        async move {
            step.cancelled().await;
            connections.signal(signal);
        }
    };
    tokio::join!(
        told(leave.announced, Signal::Announced),
        told(leave.now, Signal::Leave),
        told(leave.cut, Signal::Cut),
    );
}
