//! [`Session`]: the turn at the connection. It runs a call's work, in a transaction if the work
//! writes, and keeps the connection only after success.

use std::sync::Arc;

use super::batch::{self, BatchJson, LogLength};
use super::connection::HeldConnection;
use super::count;
use super::errors::error_of;
use super::file::{FileLock, blocking};
use crate::store::counting::Counting;
use crate::store::engine::{self, Connection, Turn, Work};
use crate::store::rows::Failure;
use crate::store::{Found, StoreError};

/// The turn at the connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) namespace: Box<str>,
    pub(super) counting: Arc<Counting>,
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

impl Session {
    /// Runs work.
    pub(super) async fn run<T>(&mut self, turn: Turn, work: impl Work<T>) -> Result<T, StoreError> {
        let (lock, mut held) = self.take().await?;
        let done = async {
            if turn.only_reads() {
                let done = work(self.at(&mut held)?).await?;
                // Read in the state that this run has left.
                self.latest(&mut held, 0).await?;
                return Ok(done);
            }
            let (done, beats) = self.transact(&mut held, turn, work).await?;
            // Checked only now: during the commit, another process may have opened the path.
            count::in_place(&lock).await?;
            if let Some(beats) = beats {
                let (lock, base) = (Arc::clone(&lock), self.base);
                blocking(move || {
                    count::note(&lock, beats, base);
                    Ok(())
                })
                .await?;
            }
            Ok(done)
        };
        let done = done.await;
        self.give(&lock, held, done).await
    }

    /// Takes the connection, or opens one. It is only put back after success. Anything else closes
    /// it, a panic too.
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
            Err(failure) => self.give(&lock, held, Err(failure)).await,
        }
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
                // A call that failed may still have made marks.
                self.counting.doubt();
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
        load: &BatchJson,
    ) -> Result<(Vec<Found>, LogLength), StoreError> {
        let (lock, mut held) = self.take().await?;
        let done = async {
            let (found, commits, log) = batch::run(held.get()?, &self.namespace, load).await?;
            self.follows(commits, 1, 1)?;
            self.commits = commits;
            // Checked only now: during the commit, another process may have opened the path.
            let file = Arc::clone(&lock);
            blocking(move || file.check()).await?;
            self.counting.made(load.made(&found));
            Ok((found, log))
        };
        let done = done.await;
        self.give(&lock, held, done).await
    }

    /// Runs work in a transaction. Returns the count of heartbeats if it is one.
    async fn transact<T>(
        &mut self,
        held: &mut HeldConnection,
        turn: Turn,
        work: impl Work<T>,
    ) -> Result<(T, Option<count::Heartbeats>), Failure> {
        // After an error the connection is closed, which rolls back.
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(held.get()?)
            .await?;
        let commits = count::next(held.get()?).await?;
        self.follows(commits, 1, 1)?;
        let done = work(self.at(held)?).await?;
        let mut beats = None;
        // Without the log, all that a new instance forwards is missing.
        if matches!(turn, Turn::Join | Turn::Renew) {
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

    /// The connection, as work takes it.
    fn at<'c>(&'c self, held: &'c mut HeldConnection) -> Result<engine::Session<'c>, StoreError> {
        Ok(engine::Session {
            namespace: &self.namespace,
            connection: Connection::Sqlite(held.get()?),
        })
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
