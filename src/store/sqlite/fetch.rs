//! Turns the rows of an answer, and its errors, into what was asked for.

use serde_json::json;

use crate::routing::ResourceKey;
use crate::store::StoreError;
use crate::store::rows::Failure;

/// Every row, turned; the first that cannot be is the error.
pub(super) fn all<R, T>(
    rows: Vec<R>,
    turn: impl Fn(R) -> Result<T, StoreError>,
) -> Result<Vec<T>, Failure> {
    rows.into_iter()
        .map(turn)
        .collect::<Result<_, _>>()
        .map_err(Failure::from)
}

/// Translates a failure for the callers of the store.
pub(super) fn error_of(failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        Failure::Sql(sqlx::Error::Database(error)) => StoreError::Statement(error.to_string()),
        Failure::Sql(error) => StoreError::Connection(error.to_string()),
    }
}

/// The keys as one JSON array, which a statement takes as a single parameter.
pub(super) fn keys_json(resources: &[ResourceKey]) -> serde_json::Value {
    json!(
        resources
            .iter()
            .map(ResourceKey::as_str)
            .collect::<Vec<_>>()
    )
}
