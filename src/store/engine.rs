//! [`Engine`]: the part of a store that differs between `SQLite` and Postgres beneath
//! [`Instances`](super::Instances) and [`Administration`](super::Administration). Both are written
//! once, over this. Their statements have the same text for both engines, except those in
//! [`Texts`].

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, PgConnection, Postgres, Sqlite, SqliteConnection};

use super::counting::Counting;
use super::rows::{self, Failure};
use super::texts::Texts;

use crate::store::StoreError;

/// A store's way to run statements.
pub(super) trait Engine: Send + Sync + 'static {
    const TEXTS: Texts;
    /// See [`Instances::shared`](super::Instances::shared).
    const SHARED: bool;

    /// Runs work at a connection, within the timeout. After an error, or if the future is dropped,
    /// the connection is in doubt and closed.
    fn run<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl Work<T>,
    ) -> impl Future<Output = Result<T, StoreError>> + Send;

    /// Runs one statement, and converts every row of its answer.
    fn fetch<R: Row, T: Send + 'static>(
        &self,
        turn: Turn,
        sql: &'static str,
        values: Vec<Value>,
        convert: fn(R) -> Result<T, StoreError>,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send {
        self.run(turn, move |mut session| {
            Box::pin(async move { Ok(rows::all(session.rows(sql, values).await?, convert)?) })
        })
    }

    /// Runs one statement that writes; returns how many rows it has changed.
    fn change(
        &self,
        turn: Turn,
        sql: &'static str,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        self.run(turn, move |mut session| {
            Box::pin(async move { session.execute(sql, values).await })
        })
    }

    /// What an instance of this process records as the column `place`.
    fn place(&self) -> impl Future<Output = Result<String, StoreError>> + Send;

    /// The place of this process, if it is known yet.
    fn known_place(&self) -> String;

    /// The count of the namespace's marks.
    fn counting(&self) -> &Arc<Counting>;
}

/// The use of a connection, which decides which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
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

impl Turn {
    pub(super) fn only_reads(self) -> bool {
        matches!(self, Self::Look | Self::Read | Self::Watch)
    }
}

/// Work at a connection.
pub(super) trait Work<T>:
    for<'c> FnOnce(Session<'c>) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static
{
}

impl<T, F> Work<T> for F where
    F: for<'c> FnOnce(Session<'c>) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static
{
}

/// A parameter of a statement. Lists are arrays in Postgres, and JSON in `SQLite`.
pub(super) enum Value {
    Number(i64),
    MaybeNumber(Option<i64>),
    Text(String),
    MaybeText(Option<String>),
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

/// A row of an answer, of either engine.
pub(super) trait Row:
    for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin + 'static
{
}

impl<R> Row for R where
    R: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin + 'static
{
}

/// A connection, in a namespace.
pub(super) struct Session<'c> {
    pub namespace: &'c str,
    pub connection: Connection<'c>,
}

pub(super) enum Connection<'c> {
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
    /// The connection of a store that is a file.
    pub(super) fn sqlite(&mut self) -> &mut SqliteConnection {
        match &mut self.connection {
            Connection::Sqlite(connection) => connection,
            Connection::Postgres(_) => unreachable!("only the SQLite store asks"),
        }
    }

    /// Runs a statement to its end, and returns its rows.
    pub(super) async fn rows<R: Row>(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<R>, Failure> {
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
    pub(super) async fn one<R: Row>(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<R, Failure> {
        Ok(rows::only(self.rows(sql, values).await?)?)
    }

    /// Runs a statement, and returns how many rows it has changed.
    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<u64, Failure> {
        Ok(match &mut self.connection {
            Connection::Postgres(connection) => {
                let query = sqlx::query::<Postgres>(sql);
                let query = bound!(query, self.namespace, values, std::convert::identity);
                query.execute(&mut **connection).await?.rows_affected()
            }
            Connection::Sqlite(connection) => {
                let query = sqlx::query::<Sqlite>(sql);
                let query = bound!(query, self.namespace, values, |list| json(&list));
                query.execute(&mut **connection).await?.rows_affected()
            }
        })
    }
}

/// JSON as one parameter of a statement. Texts and numbers can always be written; an empty text is
/// not JSON, and the statement would refuse it.
pub(super) fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
