//! [`Session`]: the turn at the connection. It runs a call's work, in a transaction if the work
//! writes, and keeps the connection only after success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::batch::{self, BatchJson, LogLength};
use super::connection::HeldConnection;
use super::count;
use super::errors::error_of;
use super::file::{FileLock, blocking};
use crate::store::engine::{self, Connection, Work};
use crate::store::rows::Failure;
use crate::store::{Found, StoreError};

/// State that is known without a turn at the connection.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) namespace: Box<str>,
    /// See the column `place`.
    pub(super) boot: Box<str>,
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
    /// The least count of heartbeats that the file has without its log.
    pub(super) base: i32,
    /// How many transactions the file has had. Known to be on the disk.
    pub(super) commits: i64,
    /// The file has another number: another program has overwritten it.
    pub(super) overwritten: bool,
}

/// What a turn at the connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    /// In a transaction.
    Write,
    /// In a transaction that counts as a heartbeat.
    Heartbeat,
}

impl Session {
    /// Runs work.
    pub(super) async fn run<T>(
        &mut self,
        known: &Known,
        kind: Kind,
        work: impl Work<T>,
    ) -> Result<T, StoreError> {
        let (lock, mut held) = self.take(known).await?;
        let done = if kind == Kind::Read {
            self.look(&mut held, known, work).await
        } else {
            let done = self.transact(&mut held, known, kind, work).await;
            // Checked only now: during the commit, another process may have opened the path.
            match (done, count::in_place(&lock).await) {
                (Ok((done, beats)), Ok(())) => {
                    if let Some(beats) = beats {
                        let (lock, base) = (Arc::clone(&lock), self.base);
                        blocking(move || {
                            count::note(&lock, beats, base);
                            Ok(())
                        })
                        .await?;
                    }
                    known.committed();
                    Ok(done)
                }
                (Ok(_), Err(error)) => Err(error.into()),
                (Err(failure), _) => Err(failure),
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
        let done = work(session(held, known)?).await?;
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
                    return Err(count::overwritten(lock));
                }
                Err(lock.lost().unwrap_or_else(|| error_of(failure)))
            }
        }
    }

    /// Runs a batch, in one command to the connection's thread. Returns the length of the log too,
    /// for [`Self::tidy`].
    pub(super) async fn batch(
        &mut self,
        known: &Known,
        load: BatchJson,
    ) -> Result<(Vec<Found>, LogLength), StoreError> {
        let (lock, mut held) = self.take(known).await?;
        let done = async {
            let (found, commits, log) = batch::run(held.get()?, &known.namespace, &load).await?;
            self.follows(commits, 1, 1)?;
            self.commits = commits;
            // Checked only now: during the commit, another process may have opened the path.
            let file = Arc::clone(&lock);
            blocking(move || file.check()).await?;
            known.adds(load.made(&found));
            known.committed();
            Ok((found, log))
        };
        let done = done.await;
        self.give(known, &lock, held, done).await
    }

    /// Runs work in a transaction. Returns the count of heartbeats if it is one.
    async fn transact<T>(
        &mut self,
        held: &mut HeldConnection,
        known: &Known,
        kind: Kind,
        work: impl Work<T>,
    ) -> Result<(T, Option<count::Heartbeats>), Failure> {
        // After an error the connection is closed, which rolls back.
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(held.get()?)
            .await?;
        let commits = count::next(held.get()?).await?;
        self.follows(commits, 1, 1)?;
        let done = work(session(held, known)?).await?;
        let mut beats = None;
        if kind == Kind::Heartbeat {
            let raised = count::raise(held.get()?).await?;
            if std::mem::take(&mut held.whole) {
                self.base = raised.count - 1;
            }
            beats = Some(raised);
        }
        sqlx::raw_sql("COMMIT").execute(held.get()?).await?;
        self.commits = commits;
        Ok((done, beats))
    }

    /// Copies the log into the file, if it is long enough. No caller waits for this. `log`: its
    /// length, if known.
    pub(super) async fn tidy(&mut self, log: LogLength) {
        let Some(mut held) = self.connection.take() else {
            return;
        };
        match held.tidy(log).await {
            Ok(()) => self.connection = Some(held),
            Err(error) => {
                tracing::warn!(%error, "the log of the store could not be copied into its file");
                held.close().await;
            }
        }
    }
}

fn session<'c>(
    held: &'c mut HeldConnection,
    known: &'c Known,
) -> Result<engine::Session<'c>, StoreError> {
    Ok(engine::Session {
        namespace: &known.namespace,
        connection: Connection::Sqlite(held.get()?),
    })
}

impl Known {
    /// A transaction adds this many marks.
    pub(super) fn adds(&self, new: usize) {
        self.uncommitted.store(new as u64, Ordering::Release);
    }

    /// A transaction is on the disk.
    fn committed(&self) {
        let new = self.uncommitted.swap(0, Ordering::AcqRel);
        self.marks.fetch_add(new, Ordering::AcqRel);
    }

    /// A transaction failed. The marks that it would have added may exist all the same.
    fn in_doubt(&self) {
        self.uncommitted.store(0, Ordering::Release);
        self.miscounted.store(true, Ordering::Release);
    }
}
