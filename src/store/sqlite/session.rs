//! [`Session`]: the turn at the connection. It runs a call's work, in a transaction if the work
//! writes, and keeps the connection only after success.

use std::sync::Arc;

use super::batch::{self, BatchJson};
use super::connection::{HeldConnection, error_of};
use super::count;
use super::epochs::WORDS;
use super::file::{FileLock, blocking};
use super::note::Heartbeats;
use crate::store::engine::{self, Connection, Turn, Work};
use crate::store::rows::Failure;
use crate::store::{Found, StoreError};

/// The turn at the connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) namespace: Box<str>,
    /// `None`: the store was closed.
    pub(super) lock: Option<Arc<FileLock>>,
    /// `None`: to be opened by the next call.
    pub(super) connection: Option<HeldConnection>,
    /// How many transactions the file has had. Known to be on the disk.
    pub(super) commits: i64,
    /// The file has another number: another program has overwritten it.
    pub(super) overwritten: bool,
}

impl Session {
    /// Runs work.
    pub(super) async fn run(&mut self, turn: Turn, work: Work) -> Result<(), StoreError> {
        let (lock, mut held) = self.take().await?;
        let done = async {
            if matches!(turn, Turn::Look | Turn::Read | Turn::Watch) {
                work(self.at(&mut held)?).await?;
                // Read in the state that this run has left.
                self.latest(&mut held, 0).await?;
                return Ok(());
            }
            let beats = self.transact(&mut held, turn, work).await?;
            // Checked only now: during the commit, another process may have opened the path.
            count::in_place(&lock).await?;
            if let Some(beats) = beats {
                let lock = Arc::clone(&lock);
                blocking(move || count::note(&lock, beats)).await?;
            }
            Ok(())
        };
        let done = done.await;
        self.give(&lock, held, done).await
    }

    /// Takes the connection, or opens one. It is only put back after success. Anything else closes
    /// it, a panic too.
    async fn take(&mut self) -> Result<(Arc<FileLock>, HeldConnection), StoreError> {
        let closed = || StoreError::Connection("the store was closed".to_owned());
        let lock = self.lock.clone().ok_or_else(closed)?;
        let held = self.connection.take();
        if let Some(error) = lock.lost() {
            match held {
                Some(held) => held.close().await,
                None => drop(count::in_place(&lock).await),
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

    /// Fails if the number that was found is not `least` to `most` above this run's latest: another
    /// program has overwritten the file.
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
                held.close().await;
                if self.overwritten {
                    // Not before the file was closed: it is in its place, so its log may go.
                    let lock = Arc::clone(lock);
                    let _ = blocking(move || Err::<(), _>(count::overwritten(&lock, true))).await;
                }
                Err(lock.lost().unwrap_or_else(|| error_of(failure)))
            }
        }
    }

    /// Runs a batch, in one command to the connection's thread.
    pub(super) async fn batch(&mut self, load: &BatchJson) -> Result<Vec<Found>, StoreError> {
        let (lock, mut held) = self.take().await?;
        let done = async {
            let (found, commits, log) = batch::run(held.get()?, &self.namespace, load).await?;
            held.log = log;
            self.follows(commits, 1, 1)?;
            self.commits = commits;
            // Checked only now: during the commit, another process may have opened the path.
            count::in_place(&lock).await?;
            Ok(found)
        };
        let done = done.await;
        self.give(&lock, held, done).await
    }

    /// Runs work in a transaction. Returns the count of heartbeats if it is one.
    async fn transact(
        &mut self,
        held: &mut HeldConnection,
        turn: Turn,
        work: Work,
    ) -> Result<Option<Heartbeats>, Failure> {
        // After an error the connection is closed, which rolls back.
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(held.get()?)
            .await?;
        let commits = count::next(held.get()?).await?;
        self.follows(commits, 1, 1)?;
        work(self.at(held)?).await?;
        // Without the log, all that a new instance forwards is missing.
        let beats = match turn {
            Turn::Join | Turn::Renew => Some(count::raise(held.get()?).await?),
            _ => None,
        };
        sqlx::raw_sql("COMMIT").execute(held.get()?).await?;
        held.log = None;
        self.commits = commits;
        Ok(beats)
    }

    /// The connection, as work takes it.
    fn at<'c>(&'c self, held: &'c mut HeldConnection) -> Result<engine::Session<'c>, StoreError> {
        Ok(engine::Session {
            namespace: &self.namespace,
            words: WORDS,
            connection: Connection::Sqlite(held.get()?),
        })
    }

    /// Copies the log into the file, if it is long enough. No caller waits for this.
    pub(super) async fn tidy(&mut self) {
        let Some(mut held) = self.connection.take() else {
            return;
        };
        match held.tidy().await {
            Ok(()) => self.connection = Some(held),
            Err(error) => {
                tracing::warn!(%error, "the log of the store could not be copied into its file");
                held.close().await;
            }
        }
    }
}
