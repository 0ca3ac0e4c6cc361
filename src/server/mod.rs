//! The data port: accept loop, limits on connections, drain. One connection is [`connection`]'s;
//! HTTP/1 is read and written here ([`http1`]), HTTP/2 is hyper's ([`http2`]).

mod accept;
mod connection;
mod connection_limit;
mod connection_state;
mod http1;
mod http2;
mod tls;
mod workers;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use self::accept::Acceptor;
pub(crate) use self::accept::provide_descriptors;
use self::connection::Shared;
use self::connection_limit::ConnectionLimit;
use self::connection_state::Signal;
pub(crate) use self::workers::Workers;
use crate::config::LimitSettings;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::socket::Listener;

/// The phases of the process's stop. Each is cancelled when it begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct DrainPhases {
    /// It will stop: clients are told so, and are still served.
    pub announced: CancellationToken,
    /// No new connection, and no new request on the open ones.
    pub now: CancellationToken,
    /// The remaining requests of all connections are cut.
    pub cut: CancellationToken,
}

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
    let signals = tokio::spawn(broadcast(drain.clone(), Arc::clone(&limit)));
    let _signals = AbortOnDropHandle::new(signals);
    let shared = Arc::new(Shared {
        proxy,
        limits,
        metrics,
    });
    let mut acceptor = Acceptor {
        listener,
        limit,
        shared: Arc::clone(&shared),
        reported: None,
    };
    let open = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = drain.now.cancelled() => break,
            accepted = acceptor.next() => accepted,
        };
        // In a task of its own, which stays with this worker.
        let serving = connection::serve(Arc::clone(&shared), accepted);
        open.spawn_on(serving, workers.next());
    }
    drop(acceptor);
    open.close();
    open.wait().await;
}

/// Sends the phases of the drain to all connections, so that none of them watches shared state.
async fn broadcast(drain: DrainPhases, connections: Arc<ConnectionLimit>) {
    let send = async |phase: &CancellationToken, signal| {
        phase.cancelled().await;
        connections.signal(signal);
    };
    tokio::join!(
        send(&drain.announced, Signal::Announced),
        send(&drain.now, Signal::Leave),
        send(&drain.cut, Signal::Cut),
    );
}
