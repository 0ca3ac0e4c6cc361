//! The delay of this process's own tasks: the upstream can keep its promises only as far as it is
//! let.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
/// Less is nothing worth remembering.
const WORTH: Duration = Duration::from_millis(100);

/// The noise that was heard. Cheap to clone; listens for as long as the runtime lives.
#[derive(Clone)]
pub struct Noise(Arc<Mutex<Vec<(Instant, Duration)>>>);

impl Noise {
    pub fn listen() -> Self {
        let heard = Self(Arc::default());
        let noise = heard.clone();
        tokio::spawn(async move {
            loop {
                let before = Instant::now();
                tokio::time::sleep(TICK).await;
                let late = before.elapsed().saturating_sub(TICK);
                if late > WORTH {
                    let mut heard = noise.0.lock().expect("no panics under this lock");
                    heard.push((Instant::now(), late));
                }
            }
        });
        heard
    }

    /// The longest delay of a task from then to now.
    pub fn worst_since(&self, then: Instant) -> Duration {
        let heard = self.0.lock().expect("no panics under this lock");
        let since = heard.iter().rev().take_while(|(at, _)| *at >= then);
        since.map(|(_, late)| *late).max().unwrap_or_default()
    }
}
