//! The rows of operations, in the model of the store.

use async_trait::async_trait;

use super::double::Double;
use super::rows::Rows;
use crate::routing::ResourceKey;
use crate::store::{
    Attempt, AttemptEnd, AttemptKey, InstanceId, Operation, OperationState, Operations, StoreError,
    UnknownCount, UnknownOperation,
};

/// The row of an operation, and the instance of its attempt.
pub(crate) type OperationRow = (Operation, InstanceId);

/// The primary key of the row.
fn primary(of: &AttemptKey) -> (ResourceKey, String) {
    (of.resource.clone(), of.operation.clone())
}

impl Rows {
    /// The row of an operation whose attempt has this name and has no known outcome.
    fn operation(&mut self, of: &AttemptKey, attempt: &str) -> Option<&mut OperationRow> {
        let row = self.operations.get_mut(&primary(of))?;
        let is_known = matches!(row.0.state, OperationState::Known(_));
        (row.0.attempt == attempt && !is_known).then_some(row)
    }

    /// Sets the state of an attempt whose outcome is not known. Says whether there is one.
    fn set(&mut self, of: &AttemptKey, state: OperationState) -> bool {
        let row = self.operation(of, &of.attempt);
        row.map(|(row, _)| row.state = state).is_some()
    }
}

fn born(attempt: &Attempt) -> OperationRow {
    let operation = Operation {
        attempt: attempt.key.attempt.clone(),
        digest: attempt.digest.clone(),
        token: attempt.token,
        state: OperationState::Sent(false),
    };
    (operation, attempt.instance)
}

#[async_trait]
impl Operations for Double {
    async fn begin_operation(&self, attempt: &Attempt) -> Result<Operation, StoreError> {
        self.run("begin", |rows| {
            let row = rows.operations.entry(primary(&attempt.key));
            let (mut found, instance) = row.or_insert_with(|| born(attempt)).clone();
            if let OperationState::Sent(over) = &mut found.state {
                *over = rows.instances.get(&instance).is_some_and(|one| one.settled);
            }
            found
        })
        .await
    }

    async fn retake_operation(&self, attempt: &Attempt, from: &str) -> Result<bool, StoreError> {
        self.run("retake", |rows| {
            let row = rows.operation(&attempt.key, from);
            row.map(|row| *row = born(attempt)).is_some()
        })
        .await
    }

    async fn end_operation(
        &self,
        of: &AttemptKey,
        end: AttemptEnd<'_>,
    ) -> Result<bool, StoreError> {
        let call = match end {
            AttemptEnd::Known(..) => "know",
            AttemptEnd::Settled => "settle operation",
            AttemptEnd::Undone => "forget",
        };
        self.run(call, |rows| match end {
            AttemptEnd::Known(answer, _) => rows.set(of, OperationState::Known(answer.to_owned())),
            AttemptEnd::Settled => rows.set(of, OperationState::Settled),
            AttemptEnd::Undone => {
                let is_its = rows.operation(of, &of.attempt).is_some();
                is_its && rows.operations.remove(&primary(of)).is_some()
            }
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
