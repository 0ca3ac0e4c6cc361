//! Named points: each passage is reported, and a fault that waits for it strikes then.

use std::sync::Mutex;

use tokio::sync::oneshot;

use super::plan::FaultPoint;

/// The waiters for each point of each proxy's requests.
#[derive(Default)]
pub struct Hub {
    /// Short sections, never across an await.
    armed: Mutex<Vec<(FaultPoint, usize, oneshot::Sender<()>)>>,
}

impl Hub {
    /// Resolves when a request by way of `proxy` passes the point the next time.
    pub fn arm(&self, point: FaultPoint, proxy: usize) -> oneshot::Receiver<()> {
        let (passed, when) = oneshot::channel();
        let mut armed = self.armed.lock().expect("no panics under this lock");
        armed.push((point, proxy, passed));
        when
    }

    pub fn pass(&self, point: FaultPoint, proxy: usize) {
        let mut armed = self.armed.lock().expect("no panics under this lock");
        let waits = armed
            .iter()
            .position(|(p, of, _)| (*p, *of) == (point, proxy));
        if let Some(at) = waits {
            // A waiter that has given up does not mind.
            let _ = armed.swap_remove(at).2.send(());
        }
    }
}
