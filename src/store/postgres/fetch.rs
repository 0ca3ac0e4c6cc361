//! Turns the rows of an answer into what was asked for.

use crate::store::StoreError;
use crate::store::rows::Failure;

/// The one row of a statement that always returns one.
pub(super) fn only<T>(rows: Vec<T>) -> Result<T, Failure> {
    let mut rows = rows.into_iter();
    match (rows.next(), rows.next()) {
        (Some(row), None) => Ok(row),
        _ => Err(StoreError::Statement("not the one row that was asked for".to_owned()).into()),
    }
}

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
