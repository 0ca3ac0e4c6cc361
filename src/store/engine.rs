//! [`Engine`]: the part of a store that differs between `SQLite` and Postgres beneath
//! [`Instances`](super::Instances), [`Administration`](super::Administration) and
//! [`Operations`](super::Operations). Their statements have the same text for both engines, except
//! for words that differ.

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Postgres, Sqlite, SqliteConnection};
use tokio::sync::oneshot;

use super::rows::{self, Failure};

use crate::store::StoreError;

/// A store's way to run statements.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// See [`Instances::shared`](super::Instances::shared).
    fn shared(&self) -> bool;

    /// Runs work at a connection, within the timeout. After an error, or if the future is dropped,
    /// the connection is in doubt and closed.
    async fn work(&self, turn: Turn, work: Work) -> Result<(), StoreError>;

    /// The value of the column `place` for an instance of this process.
    async fn place(&self) -> Result<String, StoreError>;

    /// The place of this process, if it is known yet.
    fn known_place(&self) -> String;
}

impl dyn Engine + '_ {
    /// Runs work that has an answer.
    pub async fn run<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl for<'c> FnOnce(Session<'c>) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |session| {
            Box::pin(async move {
                // Without a caller the sending fails, but the work is done.
                let _ = answer.send(work(session).await?);
                Ok(())
            })
        });
        self.work(turn, work).await?;
        answered
            .await
            .map_err(|_| StoreError::Connection("the work has no answer".to_owned()))
    }

    /// Runs one statement, and converts every row of its answer.
    pub async fn fetch<R: Row, T>(
        &self,
        turn: Turn,
        sql: &'static str,
        values: Vec<Value>,
        convert: fn(R) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let found = self.run(turn, move |mut session| {
            Box::pin(async move { session.rows(sql, values).await })
        });
        found.await?.into_iter().map(convert).collect()
    }

    /// Runs one statement that returns a row for each that it has changed; returns how many.
    pub async fn change(
        &self,
        turn: Turn,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<u64, StoreError> {
        let changed = self.fetch(turn, sql, values, |()| Ok(()));
        Ok(changed.await?.len() as u64)
    }
}

/// The use of a connection, which decides which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Reads for a request.
    Look,
    /// Reads for an operator, or for the start.
    Read,
    /// Writes. With Postgres each statement is committed by itself.
    Write,
    /// All statements in one transaction.
    Transaction,
    /// All statements in one transaction, at the connection of the renewals. With `SQLite` it counts
    /// as a heartbeat, and so does [`Turn::Renew`].
    Join,
    /// Writes at the connection of the renewals.
    Renew,
    /// Reads the counters of the instances, at that connection.
    Watch,
    /// Writes at that connection, if it is the one that the counters were read over.
    Declare,
    /// Writes that other instances wait for, and tokens that are given back.
    Cede,
    /// Writes about operations.
    Operate,
    /// Notifies other instances.
    Notify,
}

/// Work at a connection.
pub type Work = Box<dyn for<'c> FnOnce(Session<'c>) -> BoxFuture<'c, Result<(), Failure>> + Send>;

/// A parameter of a statement. Lists are arrays in Postgres, and JSON in `SQLite`.
pub enum Value {
    Number(i64),
    MaybeNumber(Option<i64>),
    Text(String),
    MaybeText(Option<String>),
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

/// A row of an answer, of either engine.
pub trait Row:
    for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin + 'static
{
}

impl<R> Row for R where
    R: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin + 'static
{
}

/// A connection, in a namespace.
pub struct Session<'c> {
    pub namespace: &'c str,
    pub words: Words,
    pub connection: Connection<'c>,
}

/// The words of a statement, each in braces, and what the engine says for them.
pub type Words = &'static [(&'static str, &'static str)];

pub enum Connection<'c> {
    Postgres(&'c mut PgConnection),
    Sqlite(&'c mut SqliteConnection),
}

/// Binds the namespace and the values to a query. `$list` turns a list into what the engine takes.
macro_rules! bound {
    ($query:expr, $namespace:expr, $values:expr, $list:expr) => {{
        let mut query = $query.bind($namespace);
        for value in $values {
            query = match value {
                Value::Number(number) => query.bind(number),
                Value::MaybeNumber(number) => query.bind(number),
                Value::Text(text) => query.bind(text),
                Value::MaybeText(text) => query.bind(text),
                Value::Numbers(numbers) => query.bind($list(numbers)),
                Value::Texts(texts) => query.bind($list(texts)),
            };
        }
        query
    }};
}

impl Session<'_> {
    /// Runs a statement to its end, and returns its rows.
    pub async fn rows<R: Row>(&mut self, sql: &str, values: Vec<Value>) -> Result<Vec<R>, Failure> {
        // A replacement may contain words that stand later in the list.
        let say = |sql: String, (word, said): &(&str, &str)| {
            if sql.contains(word) {
                sql.replace(word, said)
            } else {
                sql
            }
        };
        let sql = AssertSqlSafe(self.words.iter().fold(sql.to_owned(), say));
        Ok(match &mut self.connection {
            Connection::Postgres(connection) => {
                let query = sqlx::query_as::<Postgres, R>(sql);
                let query = bound!(query, self.namespace, values, std::convert::identity);
                query.fetch_all(&mut **connection).await?
            }
            Connection::Sqlite(connection) => {
                let query = sqlx::query_as::<Sqlite, R>(sql);
                let query = bound!(query, self.namespace, values, |list| json(&list));
                query.fetch_all(&mut **connection).await?
            }
        })
    }

    /// The same for a statement that always returns one row.
    pub async fn one<R: Row>(&mut self, sql: &str, values: Vec<Value>) -> Result<R, Failure> {
        Ok(rows::only(self.rows(sql, values).await?)?)
    }

    /// The same for a statement without an answer.
    pub async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Result<(), Failure> {
        self.rows::<()>(sql, values).await.map(drop)
    }
}

/// JSON as one parameter of a statement. Texts and numbers can always be written; an empty text is
/// not JSON, and the statement would refuse it.
pub(super) fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
