//! The runtimes that serve connections: one for each core, on a thread of its own. A connection
//! stays with its worker, and what it spawns does too, so that no request is handed from core to
//! core.
//!
//! One acceptor hands the sockets out in turn. Listeners of each worker's own (`SO_REUSEPORT`)
//! would spread few connections unevenly. The limits on connections need one place. And a second
//! process could bind the same port unnoticed.
//!
//! Main lanes run here too, one on a worker each. Everything else (admin, lease, what blocks) runs on other
//! threads, so that neither starves the other.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::worker;

/// The pause after which each worker wakes by itself.
const TICK: Duration = Duration::from_secs(1);

/// Keeps a timer that is due soon. A new timer that is due before all others makes tokio wake the
/// thread with a system call, even from the same thread. Without this timer, each request's timeout
/// would do that where no older request waits.
async fn tick() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}

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
        runtime.block_on(stop.run_until_cancelled_owned(tick()));
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
