//! Translates Postgres errors to [`StoreError`]s.

use std::time::Duration;

use futures_util::FutureExt as _;

use crate::store::StoreError;
use crate::store::rows::Failure;

/// Translates a failure for the callers of the store. Never holds a password: sqlx's messages do not.
pub(super) fn error_of(failure: impl Into<Failure>) -> StoreError {
    let error = match failure.into() {
        Failure::Store(error) => return error,
        Failure::Sql(error) => error,
    };
    let sqlx::Error::Database(error) = error else {
        let said = error.to_string();
        // The driver's message continues with a character of the password.
        return if said.contains("saslprep password") {
            StoreError::Unfit("the password has a character that passwords cannot have".to_owned())
        } else {
            StoreError::Connection(said)
        };
    };
    let code = error.code().unwrap_or_default().into_owned();
    let said = error.message().to_owned();
    match code.as_str() {
        // lock_not_available, deadlock_detected, serialization_failure
        "55P03" | "40P01" | "40001" => StoreError::LockTimeout(said),
        // invalid_catalog_name
        "3D000" => StoreError::Unfit(format!("{said}: create it first")),
        // read_only_sql_transaction, too_many_connections: a failover, or too many clients
        "25006" | "53300" => StoreError::Connection(said),
        // connection exceptions; operator intervention (a shutdown, a crash, starting up)
        code if code.starts_with("08") || code.starts_with("57P") => StoreError::Connection(said),
        // invalid authorization
        code if code.starts_with("28") => {
            StoreError::Unfit(format!("{said}: see user and password in store.url"))
        }
        // insufficient_privilege
        "42501" => StoreError::Statement(format!(
            "{said} (SQLSTATE {code}): the role of store.url lacks a right. To make the tables it needs GRANT USAGE, \
             CREATE ON SCHEMA; to serve, the rights on the tables that their owner grants (docs/postgres.md, \"Two roles\")"
        )),
        // invalid_schema_name; a schema without USAGE counts as none
        "3F000" => StoreError::Unfit(format!(
            "{said}: the search_path of the role leads to no schema that it may use; create one, GRANT USAGE, CREATE \
             ON SCHEMA, or ALTER ROLE … SET search_path"
        )),
        _ => StoreError::Statement(format!("{said} (SQLSTATE {code})")),
    }
}

/// Bounds work by a timeout.
pub(super) fn bounded<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> impl Future<Output = Result<T, StoreError>> {
    let late = move |_| Err(StoreError::Timeout(timeout));
    tokio::time::timeout(timeout, work).map(move |done| done.unwrap_or_else(late))
}
