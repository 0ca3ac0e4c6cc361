//! [`Operations`]: what is known of the operations of routes that remember outcomes (`outcome`).
//!
//! A row says which one *attempt* may send an operation, or what came of it. An attempt has a name that
//! is never used again, and every change of a row but its first compares the name. So a statement that
//! commits late changes nothing of another attempt.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::engine::Value::{MaybeText, Number, Text};
use super::engine::{Engine, Turn, Value};
use super::instances::Instances;
use super::records::{InstanceId, StoreError};
use super::rows;
use crate::json_values::moment;
use crate::routing::{ResourceKey, Token};

/// The most outcomes that one statement forgets.
const PIECE: i64 = 1000;

/// The most unknown outcomes that are counted.
const MOST_COUNTED: i64 = 1000;

/// One try to carry out an operation, by its names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptKey {
    pub resource: ResourceKey,
    pub operation: String,
    /// Its own name, which no other attempt has.
    pub attempt: String,
}

/// An attempt, as its instance asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub key: AttemptKey,
    /// The digest of the request.
    pub digest: String,
    pub token: Token,
    pub instance: InstanceId,
}

/// An operation, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The attempt that may send it or has sent it.
    pub attempt: String,
    pub digest: String,
    pub token: Token,
    pub state: OperationState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// The attempt may be in flight. True: its instance has settled, so it is not.
    Sent(bool),
    /// The attempt is in flight no more, and nobody knows what came of it.
    Settled,
    /// The answer, as a JSON document.
    Known(String),
}

/// The end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd<'a> {
    /// It has this answer, a JSON document that is remembered for so long.
    Known(&'a str, Duration),
    /// It is in flight no more, and nobody knows what came of it.
    Settled,
    /// It has had no effect: its row is deleted.
    Undone,
}

/// An operation whose outcome is not known, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownOperation {
    #[serde(flatten)]
    pub key: AttemptKey,
    pub token: Token,
    /// The instance that made the attempt.
    pub instance: String,
    /// Nothing of it can be in flight any more.
    pub settled: bool,
    #[serde(rename = "since", with = "moment")]
    pub since_ms: i64,
}

/// The operations whose outcome is unknown and has settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnknownCount {
    /// At most [`MOST_COUNTED`].
    pub operations: u64,
    /// The time at which the oldest of them was sent or settled, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
}

/// True for a row `o` whose attempt is in flight no more. Where the state is 2, it says nothing.
macro_rules! settled {
    () => {
        "(o.state = 1 OR COALESCE((SELECT i.state = 2 FROM instances AS i \
             WHERE i.namespace = $1 AND i.id = o.instance), false))"
    };
}

/// The rows of operations. Each call is one statement.
#[async_trait]
pub trait Operations: Instances {
    /// Records that an attempt is about to send its operation, unless something is known of that
    /// already. Returns the row, with the name of the attempt if it may send.
    ///
    /// The row is written even if nothing changes, so that what is read is as durable as a commit.
    async fn begin_operation(&self, attempt: &Attempt) -> Result<Operation, StoreError> {
        let sql = "INSERT INTO operations (namespace, resource, operation, attempt, digest, token, \
                 instance, state, since) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, {now_ms}) \
             ON CONFLICT (namespace, resource, operation) DO UPDATE SET since = operations.since \
             RETURNING attempt, digest, token, state, answer, COALESCE((SELECT i.state = 2 \
                 FROM instances AS i WHERE i.namespace = $1 AND i.id = instance), false)";
        let found = self
            .engine()
            .fetch(Turn::Operate, sql, attempt.values(), begun);
        rows::only(found.await?)
    }

    /// Puts an attempt in the place of the one called `from`, whose outcome is not known. Says
    /// whether it has.
    async fn retake_operation(&self, attempt: &Attempt, from: &str) -> Result<bool, StoreError> {
        let mut values = attempt.values();
        values.push(Text(from.to_owned()));
        let sql = "UPDATE operations SET attempt = $4, digest = $5, token = $6, instance = $7, \
                 state = 0, since = {now_ms} \
             WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $8 \
                 AND state < 2 RETURNING 1";
        Ok(self.engine().change(Turn::Operate, sql, values).await? == 1)
    }

    /// Records the end of an attempt, unless an answer is on record. Says whether it has.
    async fn end_operation(
        &self,
        of: &AttemptKey,
        end: AttemptEnd<'_>,
    ) -> Result<bool, StoreError> {
        let mut values = of.values();
        let sql = match end {
            AttemptEnd::Known(answer, remember) => {
                values.extend([Text(answer.to_owned()), Number(rows::millis(remember))]);
                "UPDATE operations SET state = 2, answer = $5, since = {now_ms}, \
                     expires = {now_ms} + $6 WHERE namespace = $1 AND resource = $2 \
                     AND operation = $3 AND attempt = $4 AND state < 2 RETURNING 1"
            }
            AttemptEnd::Settled => {
                "UPDATE operations SET state = 1, since = {now_ms} WHERE namespace = $1 \
                     AND resource = $2 AND operation = $3 AND attempt = $4 AND state = 0 RETURNING 1"
            }
            AttemptEnd::Undone => {
                "DELETE FROM operations WHERE namespace = $1 AND resource = $2 \
                     AND operation = $3 AND attempt = $4 AND state < 2 RETURNING 1"
            }
        };
        Ok(self.engine().change(Turn::Operate, sql, values).await? == 1)
    }

    /// Deletes answers that are older than they were to be remembered, as many as one statement may.
    /// Returns how many.
    async fn expire_operations(&self) -> Result<u64, StoreError> {
        let sql = "DELETE FROM operations WHERE namespace = $1 AND (resource, operation) IN ( \
                 SELECT resource, operation FROM operations \
                 WHERE namespace = $1 AND expires < {now_ms} ORDER BY expires LIMIT $2) RETURNING 1";
        self.engine()
            .change(Turn::Operate, sql, vec![Number(PIECE)])
            .await
    }

    /// Operations whose outcome is not known, in key order, whose resource starts with `prefix`;
    /// with an `operation`, those of that name.
    async fn unknown_operations(
        &self,
        prefix: &str,
        operation: Option<&str>,
        limit: u32,
    ) -> Result<Vec<UnknownOperation>, StoreError> {
        let (from, until) = rows::span(prefix, None);
        let sql = concat!(
            "SELECT o.resource, o.operation, o.attempt, o.token, o.instance, o.since, ",
            settled!(),
            " FROM operations AS o WHERE o.namespace = $1 AND o.resource >= $2 AND o.resource < $3 \
                 AND o.state < 2 AND o.operation = COALESCE($5, o.operation) \
             ORDER BY o.resource, o.operation LIMIT $4"
        );
        let range = vec![
            Text(from),
            Text(until),
            Number(limit.into()),
            MaybeText(operation.map(str::to_owned)),
        ];
        let row = |(resource, operation, attempt, token, instance, since_ms, settled)| {
            Ok(UnknownOperation {
                key: AttemptKey {
                    resource: rows::key(resource)?,
                    operation,
                    attempt,
                },
                token: rows::number(token)?,
                instance: InstanceId::from_row(instance).to_string(),
                settled,
                since_ms,
            })
        };
        self.engine().fetch(Turn::Read, sql, range, row).await
    }

    /// Counts the operations whose outcome is unknown and has settled.
    ///
    /// The oldest first, so that both engines read the index of those that are not known.
    async fn count_unknown_operations(&self) -> Result<UnknownCount, StoreError> {
        let sql = concat!(
            "SELECT count(*), min(since) FROM (SELECT o.since FROM operations AS o \
             WHERE o.namespace = $1 AND o.state < 2 AND ",
            settled!(),
            " ORDER BY o.since LIMIT $2) AS piece"
        );
        let row = |(operations, since_ms): (i64, _)| {
            let operations = operations.unsigned_abs();
            Ok(UnknownCount {
                operations,
                since_ms,
            })
        };
        let most = vec![Number(MOST_COUNTED)];
        rows::only(self.engine().fetch(Turn::Read, sql, most, row).await?)
    }
}

impl<E: Engine> Operations for E {}

/// A row as `begin` returns it: attempt, digest, token, state, answer, and whether its instance has
/// settled.
type Begun = (String, String, i64, i64, Option<String>, bool);

fn begun((attempt, digest, token, state, answer, over): Begun) -> Result<Operation, StoreError> {
    let state = match (state, answer) {
        (2, Some(answer)) => OperationState::Known(answer),
        (1, _) => OperationState::Settled,
        (0, _) => OperationState::Sent(over),
        _ => {
            return Err(StoreError::Statement(
                "an operation has no answer".to_owned(),
            ));
        }
    };
    Ok(Operation {
        attempt,
        digest,
        token: rows::number(token)?,
        state,
    })
}

impl AttemptKey {
    fn values(&self) -> Vec<Value> {
        let key = Text(self.resource.to_string());
        vec![
            key,
            Text(self.operation.clone()),
            Text(self.attempt.clone()),
        ]
    }
}

impl Attempt {
    fn values(&self) -> Vec<Value> {
        let mut values = self.key.values();
        let (token, instance) = (self.token.get(), self.instance.get());
        values.extend([Text(self.digest.clone()), Number(token), Number(instance)]);
        values
    }
}
