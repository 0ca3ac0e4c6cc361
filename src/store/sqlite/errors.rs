//! Translates `SQLite` errors to [`StoreError`]s.

use crate::store::StoreError;
use crate::store::rows::Failure;

/// Translates a failure for the callers of the store.
pub(super) fn error_of(failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        Failure::Sql(sqlx::Error::Database(error)) => StoreError::Statement(error.to_string()),
        Failure::Sql(error) => StoreError::Connection(error.to_string()),
    }
}
