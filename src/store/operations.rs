//! [`Operations`]: what is known of the operations of routes that remember outcomes (`outcome`).
//!
//! A row says which one *attempt* may send an operation, or what came of it. An attempt has a name
//! that is never used again, and every change of a row but its first compares the name. So a statement
//! that commits late changes nothing that belongs to another attempt.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::engine::Value::{MaybeText, Number, Text};
use super::engine::{Engine, Turn, Value};
use super::records::{InstanceId, StoreError};
use super::rows::{self, Span};
use crate::json_values::moment;
use crate::routing::{ResourceKey, Token};

/// How many outcomes one statement forgets.
const PIECE: i64 = 1000;

/// How many unknown outcomes are counted.
const MOST_COUNTED: i64 = 1000;

/// One try to carry out an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub resource: ResourceKey,
    pub operation: String,
    /// Its name, which no other attempt has.
    pub name: String,
    /// The digest of the request.
    pub digest: String,
    pub token: Token,
    pub instance: InstanceId,
}

/// What the store knows of an operation.
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

/// An operation whose outcome is not known, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownOperation {
    pub resource: ResourceKey,
    pub operation: String,
    /// The name of its attempt.
    pub attempt: String,
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
    /// When the oldest of them was sent or settled, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
}

/// The rows of operations. Each call is one statement.
#[async_trait]
pub trait Operations: Send + Sync + 'static {
    /// Records that an attempt is about to send its operation, unless something is known of that
    /// already. Returns the row, with the name of the attempt if it may send.
    ///
    /// The row is written even if nothing changes, so that what is read is as durable as a commit.
    async fn begin_operation(&self, attempt: &Attempt) -> Result<Operation, StoreError>;

    /// Puts an attempt in the place of the one called `from`, whose outcome is not known. Says
    /// whether it has.
    async fn retake_operation(&self, attempt: &Attempt, from: &str) -> Result<bool, StoreError>;

    /// Records the answer to the attempt called `name`, for so long, unless one is. Says whether it has.
    async fn know_operation(
        &self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
        answer: &str,
        remember: Duration,
    ) -> Result<bool, StoreError>;

    /// Records that the attempt is in flight no more, with an outcome that nobody knows. Says whether it
    /// has.
    async fn settle_operation(&self, attempt: &Attempt) -> Result<bool, StoreError>;

    /// Deletes what is recorded of an operation whose attempt, called `name`, has had no effect. Says
    /// whether there was something.
    async fn forget_operation(
        &self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
    ) -> Result<bool, StoreError>;

    /// Deletes answers that are older than they were to be remembered, as many as one statement may.
    /// Returns how many.
    async fn expire_operations(&self) -> Result<u64, StoreError>;

    /// Operations whose outcome is not known, in key order, whose resource starts with `prefix`;
    /// with an `operation`, those of that name.
    async fn unknown_operations(
        &self,
        prefix: &str,
        operation: Option<&str>,
        limit: u32,
    ) -> Result<Vec<UnknownOperation>, StoreError>;

    /// Counts the operations whose outcome is unknown and has settled.
    async fn count_unknown_operations(&self) -> Result<UnknownCount, StoreError>;
}

/// The statements of an engine, whose clock is `$now`. `$1` is the namespace in each.
macro_rules! texts {
    ($now:literal) => {
        $crate::store::engine::OperationTexts {
            begin: concat!(
                "INSERT INTO operations (namespace, resource, operation, attempt, digest, token, \
                     instance, state, since) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, ", $now, ") \
                 ON CONFLICT (namespace, resource, operation) DO UPDATE SET since = operations.since \
                 RETURNING attempt, digest, token, state, answer, COALESCE((SELECT i.state = 2 \
                     FROM instances AS i WHERE i.namespace = $1 AND i.id = instance), false)"
            ),
            retake: concat!(
                "UPDATE operations SET attempt = $4, digest = $5, token = $6, instance = $7, state = 0, \
                     since = ", $now, " \
                 WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $8 AND state < 2"
            ),
            know: concat!(
                "UPDATE operations SET state = 2, answer = $5, since = ", $now, ", expires = ", $now, " + $6 \
                 WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $4 AND state < 2"
            ),
            settle: concat!(
                "UPDATE operations SET state = 1, since = ", $now, " \
                 WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $4 AND state = 0"
            ),
            forget: concat!(
                "DELETE FROM operations WHERE namespace = $1 AND (resource, operation) IN ( \
                     SELECT resource, operation FROM operations \
                     WHERE namespace = $1 AND expires < ", $now, " ORDER BY expires LIMIT $2)"
            ),
        }
    };
}
pub(super) use texts;

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

/// An operation, and the attempt's name.
fn named(resource: &ResourceKey, operation: &str, name: &str) -> Vec<Value> {
    let key = resource.to_string();
    vec![Text(key), Text(operation.to_owned()), Text(name.to_owned())]
}

impl Attempt {
    fn named(&self) -> Vec<Value> {
        named(&self.resource, &self.operation, &self.name)
    }

    fn values(&self) -> Vec<Value> {
        let mut values = self.named();
        let (token, instance) = (self.token.get(), self.instance.get());
        values.extend([Text(self.digest.clone()), Number(token), Number(instance)]);
        values
    }
}

#[async_trait]
impl<E: Engine> Operations for E {
    async fn begin_operation(&self, attempt: &Attempt) -> Result<Operation, StoreError> {
        let sql = E::TEXTS.operations.begin;
        let found = self.fetch(Turn::Operate, sql, attempt.values(), begun);
        rows::only(found.await?)
    }

    async fn retake_operation(&self, attempt: &Attempt, from: &str) -> Result<bool, StoreError> {
        let mut values = attempt.values();
        values.push(Text(from.to_owned()));
        let sql = E::TEXTS.operations.retake;
        Ok(self.change(Turn::Operate, sql, values).await? == 1)
    }

    async fn know_operation(
        &self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
        answer: &str,
        remember: Duration,
    ) -> Result<bool, StoreError> {
        let mut values = named(resource, operation, name);
        values.extend([Text(answer.to_owned()), Number(rows::millis(remember))]);
        let sql = E::TEXTS.operations.know;
        Ok(self.change(Turn::Operate, sql, values).await? == 1)
    }

    async fn settle_operation(&self, attempt: &Attempt) -> Result<bool, StoreError> {
        let sql = E::TEXTS.operations.settle;
        Ok(self.change(Turn::Operate, sql, attempt.named()).await? == 1)
    }

    async fn forget_operation(
        &self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
    ) -> Result<bool, StoreError> {
        let sql = "DELETE FROM operations WHERE namespace = $1 AND resource = $2 \
             AND operation = $3 AND attempt = $4 AND state < 2";
        let forgotten = self.change(Turn::Operate, sql, named(resource, operation, name));
        Ok(forgotten.await? == 1)
    }

    async fn expire_operations(&self) -> Result<u64, StoreError> {
        let sql = E::TEXTS.operations.forget;
        self.change(Turn::Operate, sql, vec![Number(PIECE)]).await
    }

    async fn unknown_operations(
        &self,
        prefix: &str,
        operation: Option<&str>,
        limit: u32,
    ) -> Result<Vec<UnknownOperation>, StoreError> {
        let Some(Span { from, until }) = rows::span(prefix, None) else {
            return Ok(Vec::new());
        };
        let sql = "SELECT o.resource, o.operation, o.attempt, o.token, o.instance, o.since, o.state = 1 OR COALESCE( \
                 (SELECT i.state = 2 FROM instances AS i WHERE i.namespace = $1 AND i.id = o.instance), false) \
             FROM operations AS o WHERE o.namespace = $1 AND o.resource >= $2 AND o.resource < $3 \
                 AND o.state < 2 AND o.operation = COALESCE($5, o.operation) ORDER BY o.resource, o.operation LIMIT $4";
        let range = vec![
            Text(from),
            Text(until),
            Number(limit.into()),
            MaybeText(operation.map(str::to_owned)),
        ];
        let row = |(resource, operation, attempt, token, instance, since_ms, settled): (
            String,
            _,
            _,
            i64,
            i64,
            _,
            _,
        )| {
            Ok(UnknownOperation {
                resource: rows::key(&resource)?,
                operation,
                attempt,
                token: rows::number(token)?,
                instance: InstanceId::from_row(instance).to_string(),
                settled,
                since_ms,
            })
        };
        self.fetch(Turn::Read, sql, range, row).await
    }

    /// The oldest first, so that both engines read the index of those that are not known.
    async fn count_unknown_operations(&self) -> Result<UnknownCount, StoreError> {
        let sql = "SELECT count(*), min(since) FROM (SELECT o.since FROM operations AS o \
             WHERE o.namespace = $1 AND o.state < 2 AND (o.state = 1 OR COALESCE( \
                 (SELECT i.state = 2 FROM instances AS i WHERE i.namespace = $1 AND i.id = o.instance), false)) \
             ORDER BY o.since LIMIT $2) AS piece";
        let row = |(operations, since_ms): (i64, _)| {
            let operations = operations.unsigned_abs();
            Ok(UnknownCount {
                operations,
                since_ms,
            })
        };
        let most = vec![Number(MOST_COUNTED)];
        rows::only(self.fetch(Turn::Read, sql, most, row).await?)
    }
}
