//! Connections of a test's own to the database of a store, past every proxy.

use std::path::Path;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, SqliteConnection};

use super::wait::Must;

/// A session on the Postgres at this URL.
pub async fn shell(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().expect("a URL of Postgres");
    options.connect().must().await
}

/// A connection to the file of an embedded store, which is made if it is not there.
pub async fn open_file(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path);
    let options = options.busy_timeout(Duration::from_secs(20));
    options.create_if_missing(true).connect().must().await
}

/// Runs statements.
pub async fn sql(shell: &mut PgConnection, statements: &str) {
    let run = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    let ran = run.execute(shell).await;
    ran.unwrap_or_else(|error| panic!("{statements}: {error}"));
}

/// Runs statements over a connection to a file.
pub async fn sqlite(file: &mut SqliteConnection, statements: &str) {
    let run = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    let ran = run.execute(file).await;
    ran.unwrap_or_else(|error| panic!("{statements}: {error}"));
}

/// The number that a query of Postgres answers.
pub async fn number(shell: &mut PgConnection, query: &str) -> i64 {
    let asked = sqlx::query_scalar(AssertSqlSafe(query.to_owned()));
    let answer = asked.fetch_one(shell).await;
    answer.unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// Looks until a count of the server's is not 0.
pub async fn until(shell: &mut PgConnection, what: &str, query: &str) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while number(shell, query).await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
