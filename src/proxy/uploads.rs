//! Slow uploads: requests whose clients are behind with their bodies. Where places become few, they
//! make room.
//!
//! A client that announces a body and sends none has a place for as long as its patience lasts, at
//! the price of a few bytes. Shares bound what one connection and one address can take in this way,
//! and not what many do. So nothing keeps a place that waits for its client, once others need it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How far a client is behind before its request makes room, in milliseconds. A client with a lossy
/// connection is not, at a rate that any connection has.
const AT_LEAST: u64 = 1000;
/// How often they are looked through.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// All uploads whose clients were waited for.
#[derive(Default)]
pub(crate) struct SlowUploads(Mutex<Members>);

/// Held for a look, never across an await.
#[derive(Default)]
struct Members {
    next: u64,
    open: HashMap<u64, Arc<Upload>>,
    looked: Option<Instant>,
}

#[derive(Default)]
struct Upload {
    /// How far its client is behind, in milliseconds.
    behind: AtomicU64,
    crowded: CancellationToken,
}

/// An upload that is known here until this is dropped.
#[must_use]
pub(super) struct SlowUpload {
    all: Arc<SlowUploads>,
    number: u64,
    upload: Arc<Upload>,
}

impl SlowUploads {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Self>) -> SlowUpload {
        let upload = Arc::<Upload>::default();
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        members.open.insert(number, Arc::clone(&upload));
        drop(members);
        SlowUpload {
            all: Arc::clone(self),
            number,
            upload,
        }
    }

    /// Has up to `most` of them make room, those first that are furthest behind.
    pub(super) fn make_room(&self, most: usize, now: Instant) {
        let mut members = self.members();
        let lately = |looked| now.saturating_duration_since(looked) < LOOK_AGAIN;
        if members.looked.is_some_and(lately) {
            return;
        }
        members.looked = Some(now);
        let behind = members.open.iter().filter_map(|(number, upload)| {
            let behind = upload.behind.load(Ordering::Relaxed);
            (behind >= AT_LEAST).then_some((behind, *number))
        });
        let mut behind: Vec<_> = behind.collect();
        behind.sort_unstable_by(|one, other| other.cmp(one));
        behind.truncate(most);
        for (_, number) in behind {
            if let Some(upload) = members.open.remove(&number) {
                upload.crowded.cancel();
            }
        }
    }
}

impl SlowUpload {
    pub(super) fn behind(&self) -> &AtomicU64 {
        &self.upload.behind
    }

    /// Cancelled when it has to make room.
    pub(super) fn crowded(&self) -> CancellationToken {
        self.upload.crowded.clone()
    }
}

impl Drop for SlowUpload {
    fn drop(&mut self) {
        self.all.members().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_that_are_furthest_behind_make_room_and_no_other() {
        let all: Arc<SlowUploads> = Arc::default();
        let uploads = [AT_LEAST - 1, AT_LEAST + 1, AT_LEAST, 9000].map(|behind| {
            let upload = all.add();
            upload.behind().store(behind, Ordering::Relaxed);
            upload
        });
        let told = || [0, 1, 2, 3].map(|at: usize| uploads[at].crowded().is_cancelled());
        all.make_room(2, Instant::now());
        assert_eq!(told(), [false, true, false, true]);
        all.make_room(2, Instant::now());
        assert_eq!(told(), [false, true, false, true], "just looked");
        tokio::time::sleep(LOOK_AGAIN).await;
        all.make_room(2, Instant::now());
        assert_eq!(told(), [false, true, true, true]);
        drop(uploads);
        assert!(all.members().open.is_empty());
    }
}
