//! The data port: accept loop, limits on connections, drain. One connection is [`connection`]'s;
//! HTTP/1 is read and written here ([`http1`]), HTTP/2 is hyper's ([`http2`]).
//!
//! Workers serve the connections: a runtime for each core, on a thread of its own. A connection
//! stays with its worker, and what it spawns does too, so that no request is handed from core to
//! core.
//!
//! One acceptor hands the sockets out in turn. Listeners of each worker's own (`SO_REUSEPORT`)
//! would spread few connections unevenly. The limits on connections need one place. And a second
//! process could bind the same port unnoticed.
//!
//! Main lanes run here too, one on a worker each. Everything else (admin, lease, what blocks) runs
//! on other threads, so that neither starves the other.

mod accept;
mod connection;
mod connection_state;
mod http1;
mod http2;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::accept::ConnectionLimit;
use self::connection_state::Signal;
use crate::proxy::Proxy;
use crate::socket::Listener;
use crate::worker;

/// The phases of the process's stop, in their order. Each is cancelled when it begins.
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
    drain: DrainPhases,
    workers: Arc<Workers>,
) {
    let limit = ConnectionLimit::new(&proxy.limits, Arc::clone(&proxy.metrics));
    let limit = Arc::new(limit);
    let open = TaskTracker::new();
    // The signals go to all connections, so that none of them watches shared state.
    let announcing = async {
        drain.announced.cancelled().await;
        limit.signal(Signal::Announced);
        drain.now.cancelled().await;
    };
    let accepting = accept::accept_all(listener, &limit, &proxy, |accepted| {
        // In a task of its own, which stays with this worker.
        let serving = connection::serve(Arc::clone(&proxy), accepted);
        open.spawn_on(serving, workers.next());
    });
    tokio::select! {
        () = announcing => {}
        () = accepting => {}
    }
    limit.signal(Signal::Leave);
    open.close();
    if drain.cut.run_until_cancelled(open.wait()).await.is_none() {
        limit.signal(Signal::Cut);
        open.wait().await;
    }
}

/// The pause after which each worker wakes by itself.
const TICK: Duration = Duration::from_secs(1);

/// The workers. They end when this is dropped, together with all tasks that run there.
pub(crate) struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    _stop: DropGuard,
}

impl Workers {
    /// Starts one for each core that this process may use.
    pub(crate) fn start() -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let handles = (0..count).map(|index| start_one(index, stop.clone()));
        Ok(Self {
            handles: handles.collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
            _stop: guard,
        })
    }

    /// The workers' runtimes, in the order of their numbers.
    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// The worker of the next connection.
    pub(super) fn next(&self) -> &Handle {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.handles[next % self.handles.len()]
    }
}

fn start_one(index: usize, stop: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let name = format!("worker-{index}");
    thread::Builder::new().name(name).spawn(move || {
        worker::set_index(index);
        // A new timer that is due before all others makes tokio wake the thread with a system call,
        // even from the same thread. Without this one, each request's timeout would do that where no
        // older request waits.
        let ticking = async {
            loop {
                tokio::time::sleep(TICK).await;
            }
        };
        runtime.block_on(stop.run_until_cancelled_owned(ticking));
        // Does not wait for blocking tasks on other threads.
        runtime.shutdown_background();
    })?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn connections_are_handed_out_in_turn() {
        let workers = Workers::start().expect("threads");
        let count = workers.handles.len();
        let mut seen = Vec::new();
        for _ in 0..count * 2 {
            let index = workers.next().spawn(async { worker::index() });
            seen.push(index.await.expect("it runs"));
        }
        let all: HashSet<usize> = seen[..count].iter().copied().collect();
        assert_eq!(all, (0..count).collect());
        assert_eq!(seen[..count], seen[count..]);
        // A connection's tasks stay with its worker.
        let spawned = workers.next().spawn(async {
            let own = worker::index();
            (own, tokio::spawn(async { worker::index() }).await)
        });
        let (own, of_task) = spawned.await.expect("it runs");
        assert_eq!(of_task.expect("it runs"), own);
    }
}
