//! [`Session`]: the turn at the connection. It runs a call's work, in a transaction where it writes,
//! and keeps the connection only after success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use super::connection::HeldConnection;
use super::fetch::error_of;
use super::file::{FileLock, blocking};
use super::statements::{self, BatchJson};
use super::{count, life};
use crate::boot_clock::BootClock;
use crate::store::rows::Failure;
use crate::store::{Batched, InstanceId, StoreError};

/// What is known without a turn at the connection.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) namespace: Box<str>,
    /// See the column of that name.
    pub(super) boot: Box<str>,
    pub(super) clock: BootClock,
    /// When the latest heartbeat began that is on the disk, in nanoseconds of the clock; 0: none
    /// is.
    pub(super) proven: AtomicU64,
    /// The marks of the namespace.
    pub(super) marks: AtomicU64,
    /// Those that the transaction under way adds.
    pub(super) uncommitted: AtomicU64,
    /// A write failed that may have added marks all the same.
    pub(super) miscounted: AtomicBool,
}

/// The turn at the connection.
#[derive(Debug)]
pub(super) struct Session {
    /// `None`: the store was closed.
    pub(super) lock: Option<Arc<FileLock>>,
    /// `None`: to be opened by the next call.
    pub(super) connection: Option<HeldConnection>,
    /// Whose heartbeats are written: who renewed last.
    pub(super) instance: Option<InstanceId>,
    /// When the latest heartbeat began, by the clock.
    pub(super) beat: Duration,
    /// The count of heartbeats that the file has without its log, at least.
    pub(super) base: i32,
    /// How long ago that may be before a batch of requests carries the next one. Longer than the
    /// pause between two renewals: it is late only where the disk is slow.
    pub(super) late: Duration,
}

/// What a transaction carries beside its work.
pub(super) enum Beat {
    /// No heartbeat.
    None,
    /// One of the instance that renewed last, if it is late.
    Late,
    /// One of this instance, with the number of its renewal.
    Of(InstanceId, i64),
}

/// A heartbeat that was written.
struct WrittenBeat {
    /// By the clock.
    began: Duration,
    /// The count of the database with it.
    count: count::Heartbeats,
}

impl Session {
    /// Runs work; in a transaction if there is a [`Beat`].
    pub(super) async fn run<T, F>(
        &mut self,
        known: &Known,
        beat: Option<Beat>,
        work: F,
    ) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let (lock, mut held) = self.take().await?;
        let done = match beat {
            None => work(held.get()?, &known.namespace).await,
            Some(beat) => {
                let done = self.transact(&mut held, known, beat, work).await;
                // Only now: while the commit was under way, another process may have come by the path.
                match (done, lock.check_aside().await) {
                    (Ok((done, proof)), Ok(())) => {
                        if let Some(proof) = &proof {
                            let (lock, heartbeats) = (Arc::clone(&lock), proof.count);
                            let base = self.base;
                            blocking(move || {
                                count::note(&lock, heartbeats, base);
                                Ok(())
                            })
                            .await?;
                        }
                        known.committed(proof.map(|proof| proof.began));
                        Ok(done)
                    }
                    (Ok(_), Err(error)) => Err(error.into()),
                    (Err(failure), _) => Err(failure),
                }
            }
        };
        self.give(known, &lock, held, done).await
    }

    /// Takes the connection, or makes one. It is only put back after success: whatever else happens, a
    /// panic included, closes it.
    async fn take(&mut self) -> Result<(Arc<FileLock>, HeldConnection), StoreError> {
        let Some(lock) = self.lock.clone() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let held = self.connection.take();
        if let Some(error) = lock.lost() {
            if let Some(held) = held {
                held.close().await;
            }
            return Err(error);
        }
        let held = if let Some(held) = held {
            held
        } else {
            // As after each copy of the log: see `count`.
            self.beat = Duration::ZERO;
            HeldConnection::open(&lock).await?
        };
        Ok((lock, held))
    }

    /// Puts the connection back after success.
    async fn give<T>(
        &mut self,
        known: &Known,
        lock: &FileLock,
        held: HeldConnection,
        done: Result<T, Failure>,
    ) -> Result<T, StoreError> {
        match done {
            Ok(done) => {
                self.connection = Some(held);
                Ok(done)
            }
            Err(failure) => {
                held.close().await;
                known.in_doubt();
                Err(lock.lost().unwrap_or_else(|| error_of(failure)))
            }
        }
    }

    /// Runs a batch: in one command to the connection's thread, unless a heartbeat is due as well. The
    /// second answer is for [`Self::tidy_if`].
    pub(super) async fn batch(
        &mut self,
        known: &Arc<Known>,
        load: BatchJson,
    ) -> Result<(Batched, Option<(i64, i64)>), StoreError> {
        let (lock, mut held) = self.take().await?;
        if let Err(failure) = held.take_batches().await {
            return self.give(known, &lock, held, Err(failure)).await;
        }
        if self.instance.is_some() && self.beat_is_late(known.clock.now()) {
            self.connection = Some(held);
            return self.batch_with_beat(known, load).await;
        }
        let done = async {
            let done = statements::batch(held.get()?, &known.namespace, &load).await?;
            // Only now: while the commit was under way, another process may have come by the path. Here, since
            // the look takes microseconds, as long as a switch to another thread; requests are served elsewhere.
            lock.check()?;
            known.adds(load.made(&done.found));
            known.committed(None);
            Ok(done)
        };
        let done = done.await;
        let done = self.give(known, &lock, held, done).await?;
        let batched = Batched {
            found: done.found,
            epochs: Ok(done.epochs),
            lost: Vec::new(),
            told: false,
        };
        Ok((batched, done.log))
    }

    async fn batch_with_beat(
        &mut self,
        known: &Arc<Known>,
        load: BatchJson,
    ) -> Result<(Batched, Option<(i64, i64)>), StoreError> {
        let keys = load.second_read();
        let known_too = Arc::clone(known);
        let found = self
            .run(known, Some(Beat::Late), move |connection, namespace| {
                Box::pin(async move {
                    let found = statements::batch_within(connection, namespace, &load).await?;
                    known_too.adds(load.made(&found));
                    Ok(found)
                })
            })
            .await?;
        let epochs = self
            .run(known, None, move |connection, namespace| {
                Box::pin(statements::epochs(connection, namespace, keys))
            })
            .await;
        let batched = Batched {
            found,
            epochs,
            lost: Vec::new(),
            told: false,
        };
        self.tidy().await;
        Ok((batched, None))
    }

    fn beat_is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.beat) >= self.late
    }

    /// Runs work in a transaction, with a heartbeat if one is wanted.
    async fn transact<T, F>(
        &mut self,
        held: &mut HeldConnection,
        known: &Known,
        beat: Beat,
        work: F,
    ) -> Result<(T, Option<WrittenBeat>), Failure>
    where
        F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let began = known.clock.now();
        let (instance, renewals) = match beat {
            Beat::None => (None, 0),
            Beat::Late if !self.beat_is_late(began) => (None, 0),
            // The counter stays as it is: its numbers are the lease's.
            Beat::Late => (self.instance.clone(), 0),
            Beat::Of(instance, renewals) => (Some(instance), renewals),
        };
        let connection = held.get()?;
        // After an error the connection is closed, which rolls back.
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(&mut *connection)
            .await?;
        let done = work(&mut *connection, &known.namespace).await?;
        let mut proof = None;
        if let Some(instance) = instance
            && life::beat(&mut *connection, &known.namespace, &instance, renewals).await?
        {
            let count = count::raise(&mut *connection).await?;
            if std::mem::take(&mut held.whole) {
                self.base = count.count - 1;
            }
            proof = Some(WrittenBeat { began, count });
            self.beat = began;
            self.instance = Some(instance);
        }
        sqlx::raw_sql("COMMIT").execute(held.get()?).await?;
        Ok((done, proof))
    }

    /// [`Self::tidy`], where a batch has brought along how long the log is.
    pub(super) async fn tidy_if(&mut self, log: Option<(i64, i64)>) {
        if let Some(log) = log {
            self.tidied(Some(log)).await;
        }
    }

    /// Copies the log into the file, if there is enough of it. Nobody waits for this.
    pub(super) async fn tidy(&mut self) {
        self.tidied(None).await;
    }

    async fn tidied(&mut self, log: Option<(i64, i64)>) {
        let Some(mut held) = self.connection.take() else {
            return;
        };
        match held.tidy(log).await {
            Ok(copied) => {
                if copied {
                    // The next batch carries a heartbeat: see `count`.
                    self.beat = Duration::ZERO;
                }
                self.connection = Some(held);
            }
            Err(error) => {
                tracing::warn!(%error, "the log of the store could not be copied into its file");
                held.close().await;
            }
        }
    }
}

impl Known {
    /// A transaction adds so many marks.
    fn adds(&self, new: usize) {
        self.uncommitted.store(new as u64, Ordering::Release);
    }

    /// A transaction is on the disk, with a heartbeat that began then.
    fn committed(&self, proof: Option<Duration>) {
        let new = self.uncommitted.swap(0, Ordering::AcqRel);
        self.marks.fetch_add(new, Ordering::AcqRel);
        if let Some(began) = proof {
            let began = u64::try_from(began.as_nanos()).unwrap_or(u64::MAX);
            self.proven.fetch_max(began, Ordering::AcqRel);
        }
    }

    /// What it would have added may be there all the same.
    fn in_doubt(&self) {
        self.uncommitted.store(0, Ordering::Release);
        self.miscounted.store(true, Ordering::Release);
    }
}
