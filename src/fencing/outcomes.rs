//! The work of operators and of the upkeep on operations whose outcome is remembered (see
//! [`operations`]), and the form of an answer on record.
//!
//! [`operations`]: super::operations

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Fencing;
use super::operators::OperatorError;
use crate::locked::locked;
use crate::routing::ResourceKey;
use crate::store::{AttemptEnd, Signature, UnknownCount};

/// The pause between two looks of [`Fencing::keep_operations`].
const UPKEEP: Duration = Duration::from_mins(1);

/// An answer as the store has it.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    pub status: u16,
    /// Names and values; these in base64, since they need not be text.
    pub fields: Vec<(String, String)>,
    /// In base64. `None`: it was too long to be kept.
    pub body: Option<String>,
    /// The SHA-256 of the body, in base64.
    pub digest: String,
}

impl Fencing {
    /// Records what an operator knows of an operation whose outcome is unknown and has settled, and
    /// audits it: it took effect, and its repetitions get this `status` for so long; `None`: it did
    /// not, and may be sent again. `false`: there is no such operation.
    ///
    /// # Errors
    ///
    /// The store gave no answer, or the operation may be in flight.
    pub async fn resolve_operation(
        &self,
        (resource, operation): (&ResourceKey, &str),
        (status, remember): (Option<u16>, Duration),
        by: &Signature,
    ) -> Result<bool, OperatorError> {
        let store = &self.store;
        // In key order, the resource itself comes before those that begin with it.
        let found = store.unknown_operations(resource.as_str(), Some(operation), 1);
        let found = found.await?.into_iter().next();
        let Some(found) = found.filter(|found| found.key.resource == *resource) else {
            return Ok(false);
        };
        if !found.settled {
            return Err(OperatorError::Refused(format!(
                "Instance {} may have the operation in flight: it settles barrier.settle after its \
                 request has ended, or once the instance has stopped or counts as dead. Try again \
                 then.",
                found.instance
            )));
        }
        let done = status.map(|status| format!("done, {status}"));
        let what = done.as_deref().unwrap_or("not done");
        let mut by = by.clone();
        by.reason = format!("operation {operation}: {what}: {}", by.reason);
        let tokens = (Some(found.token), Some(found.token));
        store.record_audit(resource, "resolve", tokens, &by).await?;
        // Only of the attempt that was looked at: a later one is in flight.
        let answer = status.map(|status| Answer {
            status,
            fields: Vec::new(),
            body: Some(String::new()),
            digest: BASE64_STANDARD.encode(Sha256::digest([])),
        });
        let answer = answer.map(|answer| serde_json::to_string(&answer).unwrap_or_default());
        let known = answer.as_deref();
        let known = known.map(|answer| AttemptEnd::Known(answer, remember));
        let end = known.unwrap_or(AttemptEnd::Undone);
        Ok(store.end_operation(&found.key, end).await?)
    }

    /// Forgets the answers that are old enough, and counts the operations whose outcome is unknown,
    /// each minute in which a route remembers outcomes. Runs until it is dropped.
    pub async fn keep_operations(self: Arc<Self>, remembers: impl Fn() -> bool) {
        loop {
            let mut counted = Ok(UnknownCount::default());
            if remembers() {
                self.expire_operations().await;
                counted = self.store.count_unknown_operations().await;
            }
            match counted {
                Ok(count) => {
                    self.metrics.series.operations_unknown.set(count.operations);
                    *locked(&self.unknown_operations) = count;
                }
                Err(error) => self.metrics.store_failed(&error),
            }
            tokio::time::sleep(UPKEEP).await;
        }
    }

    /// The operations whose outcome is unknown and has settled, in the whole namespace, as of the
    /// last look. From memory.
    pub fn counted_unknown_operations(&self) -> UnknownCount {
        *locked(&self.unknown_operations)
    }
}
