//! Waiting for a condition, with a deadline: the suite never sleeps in the hope that something has
//! happened meanwhile.

use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything that ought to happen soon may take on a crowded machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Polls until `probe` yields something.
///
/// # Panics
/// After [`DEADLINE`], naming what was waited for.
pub async fn eventually<T, F>(what: &str, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "waited {DEADLINE:?} in vain for: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Awaits `future`, which ought to end soon.
///
/// # Panics
/// After [`DEADLINE`], naming what was waited for.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("waited {DEADLINE:?} in vain for: {what}"))
}
