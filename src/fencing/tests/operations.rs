//! The rows of operations, in the model of the store.

use std::time::Duration;

use async_trait::async_trait;

use super::double::Double;
use super::rows::Rows;
use crate::routing::ResourceKey;
use crate::store::{
    Attempt, InstanceId, Operation, OperationState, Operations, StoreError, UnknownCount,
    UnknownOperation,
};

/// The row of an operation, and the instance of its attempt.
pub(crate) type OperationRow = (Operation, InstanceId);

impl Rows {
    /// The row of an operation whose attempt has this name and has no known outcome.
    fn operation(
        &mut self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
    ) -> Option<&mut OperationRow> {
        let row = self
            .operations
            .get_mut(&(resource.clone(), operation.to_owned()))?;
        let is_known = matches!(row.0.state, OperationState::Known(_));
        (row.0.attempt == name && !is_known).then_some(row)
    }

    fn born(attempt: &Attempt) -> OperationRow {
        let Attempt {
            name,
            digest,
            token,
            instance,
            ..
        } = attempt.clone();
        let state = OperationState::Sent(false);
        (
            Operation {
                attempt: name,
                digest,
                token,
                state,
            },
            instance,
        )
    }
}

#[async_trait]
impl Operations for Double {
    async fn begin_operation(&self, attempt: &Attempt) -> Result<Operation, StoreError> {
        self.run("begin", |rows| {
            let key = (attempt.resource.clone(), attempt.operation.clone());
            let row = rows
                .operations
                .entry(key)
                .or_insert_with(|| Rows::born(attempt));
            let (mut found, instance) = row.clone();
            if let OperationState::Sent(over) = &mut found.state {
                *over = rows.instances.get(&instance).is_some_and(|one| one.settled);
            }
            found
        })
        .await
    }

    async fn retake_operation(&self, attempt: &Attempt, from: &str) -> Result<bool, StoreError> {
        self.run("retake", |rows| {
            let row = rows.operation(&attempt.resource, &attempt.operation, from);
            row.map(|row| *row = Rows::born(attempt)).is_some()
        })
        .await
    }

    async fn know_operation(
        &self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
        answer: &str,
        _remember: Duration,
    ) -> Result<bool, StoreError> {
        self.run("know", |rows| {
            let row = rows.operation(resource, operation, name);
            row.map(|(row, _)| row.state = OperationState::Known(answer.to_owned()))
                .is_some()
        })
        .await
    }

    async fn settle_operation(&self, attempt: &Attempt) -> Result<bool, StoreError> {
        self.run("settle operation", |rows| {
            let row = rows.operation(&attempt.resource, &attempt.operation, &attempt.name);
            row.map(|(row, _)| row.state = OperationState::Settled)
                .is_some()
        })
        .await
    }

    async fn forget_operation(
        &self,
        resource: &ResourceKey,
        operation: &str,
        name: &str,
    ) -> Result<bool, StoreError> {
        self.run("forget", |rows| {
            let is_its = rows.operation(resource, operation, name).is_some();
            let key = (resource.clone(), operation.to_owned());
            is_its && rows.operations.remove(&key).is_some()
        })
        .await
    }

    async fn expire_operations(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn unknown_operations(
        &self,
        _prefix: &str,
        _operation: Option<&str>,
        _limit: u32,
    ) -> Result<Vec<UnknownOperation>, StoreError> {
        Ok(Vec::new())
    }

    async fn count_unknown_operations(&self) -> Result<UnknownCount, StoreError> {
        Ok(UnknownCount::default())
    }
}
