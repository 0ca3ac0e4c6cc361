//! [`Session`]: the turn at the connection. It runs a call's work, in a transaction if the work
//! writes, and keeps the connection only after success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use super::batch::{self, BatchJson, LogLength};
use super::connection::HeldConnection;
use super::count;
use super::errors::error_of;
use super::file::{FileLock, blocking};
use crate::boot_clock::BootClock;
use crate::store::rows::Failure;
use crate::store::{Batched, InstanceId, StoreError};

/// State that is known without a turn at the connection.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) namespace: Box<str>,
    /// See the column of that name.
    pub(super) boot: Box<str>,
    pub(super) clock: BootClock,
    /// When the latest heartbeat that is on the disk began, in nanoseconds of the clock; 0: none.
    pub(super) proven: AtomicU64,
    /// The number of marks of the namespace.
    pub(super) marks: AtomicU64,
    /// How many marks the current transaction adds.
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
    /// The instance whose heartbeats are written: the one that renewed last.
    pub(super) instance: Option<InstanceId>,
    /// When the latest heartbeat began, by the clock.
    pub(super) beat: Duration,
    /// The least count of heartbeats that the file has without its log.
    pub(super) base: i32,
    /// How many transactions the file has had. Known to be on the disk.
    pub(super) commits: i64,
    /// The file has another number: another program has overwritten it.
    pub(super) overwritten: bool,
    /// The age of the latest heartbeat at which a batch of requests carries the next one. Longer
    /// than the pause between two renewals: a heartbeat is late only if the disk is slow.
    pub(super) late: Duration,
}

/// Work at the connection, in a namespace.
pub(super) trait Work<T>:
    for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>
    + Send
    + 'static
{
}

impl<T, F> Work<T> for F where
    F: for<'c> FnOnce(&'c mut SqliteConnection, &'c str) -> BoxFuture<'c, Result<T, Failure>>
        + Send
        + 'static
{
}

/// The heartbeat that a transaction carries beside its work.
pub(super) enum Beat {
    /// No heartbeat.
    None,
    /// A heartbeat of the instance that renewed last, if it is late.
    Late,
    /// A heartbeat of this instance, with the number of its renewal.
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
    pub(super) async fn run<T>(
        &mut self,
        known: &Known,
        beat: Option<Beat>,
        work: impl Work<T>,
    ) -> Result<T, StoreError> {
        let (lock, mut held) = self.take(known).await?;
        let done = match beat {
            None => self.look(&mut held, known, work).await,
            Some(beat) => {
                let done = self.transact(&mut held, known, beat, work).await;
                // Checked only now: during the commit, another process may have opened the path.
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

    /// Takes the connection, or opens one. It is only put back after success. Anything else closes
    /// it, a panic too.
    async fn take(&mut self, known: &Known) -> Result<(Arc<FileLock>, HeldConnection), StoreError> {
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
        if let Some(held) = held {
            return Ok((lock, held));
        }
        // As after each copy of the log: see `count`.
        self.beat = Duration::ZERO;
        let mut held = HeldConnection::open(&lock).await?;
        // A transaction that failed may be on the disk all the same.
        match self.latest(&mut held, 1).await {
            Ok(commits) => {
                self.commits = commits;
                Ok((lock, held))
            }
            Err(failure) => self.give(known, &lock, held, Err(failure)).await,
        }
    }

    /// Runs work that only reads, in the state that this run has left.
    async fn look<T>(
        &mut self,
        held: &mut HeldConnection,
        known: &Known,
        work: impl Work<T>,
    ) -> Result<T, Failure> {
        let done = work(held.get()?, &known.namespace).await?;
        self.latest(held, 0).await?;
        Ok(done)
    }

    /// The number of the file's latest transaction, if it is this run's latest, or one of the next
    /// `more`.
    async fn latest(&mut self, held: &mut HeldConnection, more: i64) -> Result<i64, Failure> {
        let found = count::latest(held.get()?).await?;
        self.follows(found, 0, more)?;
        Ok(found)
    }

    /// Fails if the number that was found is not `least` to `most` above this run's latest.
    fn follows(&mut self, found: i64, least: i64, most: i64) -> Result<(), StoreError> {
        if (self.commits + least..=self.commits + most).contains(&found) {
            return Ok(());
        }
        self.overwritten = true;
        Err(StoreError::Unfit("the file was overwritten".to_owned()))
    }

    /// Puts the connection back after success.
    async fn give<T>(
        &mut self,
        known: &Known,
        lock: &Arc<FileLock>,
        held: HeldConnection,
        done: Result<T, Failure>,
    ) -> Result<T, StoreError> {
        match done {
            Ok(done) => {
                self.connection = Some(held);
                Ok(done)
            }
            Err(failure) => {
                if self.overwritten {
                    let lock = Arc::clone(lock);
                    // A failure is a panic in there.
                    let _ = blocking(move || {
                        count::disown(&lock);
                        Ok(())
                    })
                    .await;
                }
                held.close().await;
                known.in_doubt();
                if self.overwritten {
                    // Not before the file was closed: it is in its place, so its log may go.
                    return Err(lock.lose(&format!(
                        "{} was overwritten by another program (a backup that was restored into it?)",
                        lock.path().display()
                    )));
                }
                Err(lock.lost().unwrap_or_else(|| error_of(failure)))
            }
        }
    }

    /// Runs a batch: in one command to the connection's thread, unless a heartbeat is due as well.
    /// Returns the length of the log too, for [`Self::tidy_if`].
    pub(super) async fn batch(
        &mut self,
        known: &Arc<Known>,
        load: BatchJson,
    ) -> Result<(Batched, LogLength), StoreError> {
        let (lock, mut held) = self.take(known).await?;
        if let Err(failure) = held.take_batches().await {
            return self.give(known, &lock, held, Err(failure)).await;
        }
        if self.instance.is_some() && self.beat_is_late(known.clock.now()) {
            self.connection = Some(held);
            return self.batch_with_beat(known, load).await;
        }
        let done = async {
            let (batched, commits, log) = batch::run(held.get()?, &known.namespace, &load).await?;
            self.follows(commits, 1, 1)?;
            self.commits = commits;
            // Checked only now: during the commit, another process may have opened the path. On
            // this thread, since the check takes microseconds, like a switch to another thread.
            // Requests are served elsewhere.
            lock.check()?;
            known.adds(load.made(&batched.found));
            known.committed(None);
            Ok((batched, log))
        };
        let done = done.await;
        self.give(known, &lock, held, done).await
    }

    async fn batch_with_beat(
        &mut self,
        known: &Arc<Known>,
        load: BatchJson,
    ) -> Result<(Batched, LogLength), StoreError> {
        let keys = load.second_read();
        let known_too = Arc::clone(known);
        let found = self
            .run(known, Some(Beat::Late), move |connection, namespace| {
                Box::pin(async move {
                    let found = batch::run_within(connection, namespace, &load).await?;
                    known_too.adds(load.made(&found));
                    Ok(found)
                })
            })
            .await?;
        let epochs = self
            .run(known, None, move |connection, namespace| {
                Box::pin(async move { batch::epochs(connection, namespace, &keys).await })
            })
            .await;
        self.tidy().await;
        Ok((batch::batched(found, epochs), None))
    }

    fn beat_is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.beat) >= self.late
    }

    /// Runs work in a transaction, with a heartbeat if one is wanted.
    async fn transact<T>(
        &mut self,
        held: &mut HeldConnection,
        known: &Known,
        beat: Beat,
        work: impl Work<T>,
    ) -> Result<(T, Option<WrittenBeat>), Failure> {
        let began = known.clock.now();
        let (instance, renewals) = match beat {
            Beat::None => (None, 0),
            Beat::Late if !self.beat_is_late(began) => (None, 0),
            // The counter stays as it is: only renewals raise it.
            Beat::Late => (self.instance.clone(), 0),
            Beat::Of(instance, renewals) => (Some(instance), renewals),
        };
        let connection = held.get()?;
        // After an error the connection is closed, which rolls back.
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(&mut *connection)
            .await?;
        let commits = count::next(&mut *connection).await?;
        self.follows(commits, 1, 1)?;
        let done = work(&mut *connection, &known.namespace).await?;
        let mut proof = None;
        if let Some(instance) = instance
            && write_beat(&mut *connection, &known.namespace, &instance, renewals).await?
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
        self.commits = commits;
        Ok((done, proof))
    }

    /// [`Self::tidy`], if a batch has returned the length of the log.
    pub(super) async fn tidy_if(&mut self, log: LogLength) {
        if let Some(log) = log {
            self.tidied(Some(log)).await;
        }
    }

    /// Copies the log into the file, if it is long enough. No caller waits for this.
    pub(super) async fn tidy(&mut self) {
        self.tidied(None).await;
    }

    async fn tidied(&mut self, log: LogLength) {
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

/// Raises the instance's counter to `renewals`, unless it is dead or unknown. Returns true if it is
/// neither. The row changes each time, whatever the number, so that the commit is written and
/// synced.
async fn write_beat(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: &InstanceId,
    renewals: i64,
) -> Result<bool, Failure> {
    let update = sqlx::query(
        "UPDATE instances SET renewals = max(renewals, ?3), beats = beats + 1 \
         WHERE namespace = ?1 AND id = ?2 AND NOT dead",
    )
    .bind(namespace)
    .bind(instance.as_str())
    .bind(renewals);
    Ok(update.execute(connection).await?.rows_affected() > 0)
}

impl Known {
    /// A transaction adds this many marks.
    fn adds(&self, new: usize) {
        self.uncommitted.store(new as u64, Ordering::Release);
    }

    /// A transaction is on the disk, with a heartbeat that began at `proof`.
    fn committed(&self, proof: Option<Duration>) {
        let new = self.uncommitted.swap(0, Ordering::AcqRel);
        self.marks.fetch_add(new, Ordering::AcqRel);
        if let Some(began) = proof {
            let began = u64::try_from(began.as_nanos()).unwrap_or(u64::MAX);
            self.proven.fetch_max(began, Ordering::AcqRel);
        }
    }

    /// A transaction failed. The marks that it would have added may exist all the same.
    fn in_doubt(&self) {
        self.uncommitted.store(0, Ordering::Release);
        self.miscounted.store(true, Ordering::Release);
    }
}
