//! [`Session`]: the turn at the connection. It runs a call's work, in a transaction where it writes,
//! and keeps the connection only after success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use super::connection::Held;
use super::file::{FileLock, blocking};
use super::{count, error_of, life};
use crate::marks::lease::Clock;
use crate::marks::rows::Failure;
use crate::marks::store::{InstanceId, StoreError};

/// What is known without a turn at the connection.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) namespace: Box<str>,
    /// See the column of that name.
    pub(super) boot: Box<str>,
    pub(super) clock: Clock,
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
    pub(super) connection: Option<Held>,
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
struct Proof {
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
        let Some(lock) = self.lock.clone() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        // Taken out while in use, and only put back after success: whatever else happens, a panic
        // included, closes it.
        let held = self.connection.take();
        if let Some(error) = lock.lost() {
            if let Some(held) = held {
                held.close().await;
            }
            return Err(error);
        }
        let mut held = if let Some(held) = held {
            held
        } else {
            // As after each copy of the log: see `count`.
            self.beat = Duration::ZERO;
            Held::open(&lock).await?
        };
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

    /// Runs work in a transaction, with a heartbeat if one is wanted.
    async fn transact<T, F>(
        &mut self,
        held: &mut Held,
        known: &Known,
        beat: Beat,
        work: F,
    ) -> Result<(T, Option<Proof>), Failure>
    where
        F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let began = known.clock.now();
        let (instance, renewals) = match beat {
            Beat::None => (None, 0),
            Beat::Late if began.saturating_sub(self.beat) < self.late => (None, 0),
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
            proof = Some(Proof { began, count });
            self.beat = began;
            self.instance = Some(instance);
        }
        sqlx::raw_sql("COMMIT").execute(held.get()?).await?;
        Ok((done, proof))
    }

    /// Copies the log into the file, if there is enough of it. Nobody waits for this.
    pub(super) async fn tidy(&mut self) {
        let Some(mut held) = self.connection.take() else {
            return;
        };
        match held.tidy().await {
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
