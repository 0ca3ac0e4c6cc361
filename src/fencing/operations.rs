//! Operations whose outcome is remembered (`outcome` of a route): each is carried out by one attempt
//! at a time, and never again once it may have taken effect.
//!
//! [`Fencing::begin_operation`] is called under a [`Permit`]: then nothing with another token is in
//! flight for the resource. So an older token's attempt has settled, and only one of the same token
//! may be in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::{Fencing, Refused};
use crate::fencing::permit::Sending;
use crate::store::{Attempt, AttemptEnd, AttemptKey, Operation, OperationState, StoreError};

/// The pauses between the tries to record the end of an attempt, in seconds: a statement without an answer
/// may commit seconds later.
const PAUSES: [u64; 5] = [1, 2, 4, 8, 16];

/// The pause between the tries that go on until the store answers.
const AGAIN: Duration = Duration::from_secs(5);

/// The state of an operation that a request asks for.
pub enum Begun {
    /// Nothing, or that it has had no effect: this request may send it.
    Own(OwnAttempt),
    /// Another request came under its name.
    Mismatch,
    /// An attempt may be in flight.
    UnderWay,
    /// Nothing is in flight, and nobody knows if it took effect.
    Unknown(UnknownAttempt),
    /// The answer, as a JSON document.
    Known(String),
}

/// An operation whose outcome is unknown, and has settled.
pub struct UnknownAttempt {
    /// To take its place.
    own: OwnAttempt,
    /// The name of the attempt whose outcome it is.
    from: String,
}

/// The right of one request to send an operation. Dropped before [`Self::begin`], the operation is
/// given back; dropped after it and before an end, its outcome is unknown.
#[must_use = "others wait for its end"]
pub struct OwnAttempt {
    asked: Arc<Attempt>,
    fencing: Arc<Fencing>,
    /// A stop waits for what goes on without the request.
    tasks: TaskTracker,
    stage: Stage,
    /// It is in the place of an attempt that may have taken effect: given back, the outcome is
    /// unknown as before.
    again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The row is another attempt's, or has its end.
    Over,
    Unsent,
    Sent,
}

impl Fencing {
    /// Asks for an operation under a permit for its resource.
    ///
    /// # Errors
    ///
    /// The store gave no answer. What it may have recorded is given back.
    pub async fn begin_operation(
        self: &Arc<Self>,
        permit: &Sending,
        (operation, digest, name): (String, String, String),
        tasks: &TaskTracker,
    ) -> Result<Begun, Refused> {
        let mut own = OwnAttempt {
            asked: Arc::new(Attempt {
                key: AttemptKey {
                    resource: permit.key.clone(),
                    operation,
                    attempt: name,
                },
                digest,
                token: permit.token,
                instance: self.instance(),
            }),
            fencing: Arc::clone(self),
            tasks: tasks.clone(),
            // From now on it may be on record, even if no answer comes.
            stage: Stage::Unsent,
            again: false,
        };
        let begun = self.store.begin_operation(&own.asked).await;
        let found = begun.map_err(|error| self.no_answer(&error))?;
        if found.attempt == own.asked.key.attempt {
            return Ok(Begun::Own(own));
        }
        own.stage = Stage::Over;
        // Later than the read: if it holds now, it held then, and the permit kept other tokens out.
        let held = self.lease.holds(permit.incarnation());
        Ok(judge(own, found, held))
    }

    /// Deletes answers that are older than they were to be remembered.
    pub async fn expire_operations(&self) {
        loop {
            match self.store.expire_operations().await {
                Ok(0) => return,
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => return self.metrics.store_failed(&error),
            }
        }
    }

    fn no_answer(&self, error: &StoreError) -> Refused {
        self.metrics.store_failed(error);
        Refused::no_answer(error.to_string())
    }
}

/// Judges an operation by the row of another attempt. `held`: the lease held when the row was read.
fn judge(own: OwnAttempt, found: Operation, held: bool) -> Begun {
    let asked = &own.asked;
    if found.digest != asked.digest {
        return Begun::Mismatch;
    }
    let settled = match found.state {
        OperationState::Known(answer) => return Begun::Known(answer),
        OperationState::Settled => true,
        // Nothing with an older token is in flight. A newer one is on record only after an operator
        // has lowered the mark: the permit says nothing about that.
        OperationState::Sent(over) => over || held && found.token < asked.token,
    };
    if settled {
        let from = found.attempt;
        Begun::Unknown(UnknownAttempt { own, from })
    } else {
        Begun::UnderWay
    }
}

impl UnknownAttempt {
    /// Takes the place of the last attempt. That one has had no effect, or may have had one and is to
    /// be made `again`. `None`: another attempt has taken it.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn retake(mut self, again: bool) -> Result<Option<OwnAttempt>, Refused> {
        (self.own.stage, self.own.again) = (Stage::Unsent, again);
        let fencing = Arc::clone(&self.own.fencing);
        let taken = fencing.store.retake_operation(&self.own.asked, &self.from);
        if taken.await.map_err(|error| fencing.no_answer(&error))? {
            return Ok(Some(self.own));
        }
        self.own.stage = Stage::Over;
        Ok(None)
    }

    /// The operation has taken effect, with this answer. `false`: something else is on record now.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn know(&self, answer: &str, remember: Duration) -> Result<bool, Refused> {
        let fencing = &self.own.fencing;
        let of = AttemptKey {
            attempt: self.from.clone(),
            ..self.own.asked.key.clone()
        };
        let end = AttemptEnd::Known(answer, remember);
        let known = fencing.store.end_operation(&of, end).await;
        known.map_err(|error| fencing.no_answer(&error))
    }
}

impl OwnAttempt {
    /// From here on a byte may go upstream.
    pub fn begin(&mut self) {
        self.stage = Stage::Sent;
    }

    /// Records the answer. The permit must still be held, so that the request that gets the next one
    /// finds the answer. If the store does not take it in time, the outcome counts as unknown until
    /// it does.
    pub async fn know(mut self, answer: &str, remember: Duration) {
        // Twice: only the first use of a connection shows that it has broken.
        for _ in 0..2 {
            if self.record(answer, remember).await {
                return;
            }
        }
        let key = &self.asked.key;
        tracing::warn!(resource = %key.resource, operation = key.operation,
            "the answer to an operation is not recorded yet; its outcome counts as unknown");
        let (answer, tasks) = (answer.to_owned(), self.tasks.clone());
        tasks.spawn(async move {
            for pause in PAUSES {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                if self.record(&answer, remember).await {
                    return;
                }
            }
        });
    }

    /// Says whether the store has answered. Another attempt may be in the place of this one by then.
    async fn record(&mut self, answer: &str, remember: Duration) -> bool {
        let end = AttemptEnd::Known(answer, remember);
        if let Err(error) = self.fencing.store.end_operation(&self.asked.key, end).await {
            self.fencing.metrics.store_failed(&error);
            return false;
        }
        self.stage = Stage::Over;
        true
    }

    /// Gives the operation back: it was not sent, or the upstream has not done it. The permit must
    /// still be held.
    pub async fn give_back(mut self) {
        // Dropped before the store has answered, it goes on.
        self.stage = Stage::Unsent;
        if forget(&self.fencing, &self.asked.key, self.again).await == Some(true) {
            self.stage = Stage::Over;
        }
    }
}

impl Drop for OwnAttempt {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (fencing, asked) = (Arc::clone(&self.fencing), Arc::clone(&self.asked));
        match self.stage {
            Stage::Over => {}
            Stage::Unsent => {
                let again = self.again;
                // A stop waits for one try, and not for the pauses.
                let rest = async move {
                    if forget(&fencing, &asked.key, again).await != Some(true) {
                        tokio::spawn(give_back(fencing, asked, again));
                    }
                };
                self.tasks.spawn_on(rest, &runtime);
            }
            // A stop does not wait for this: the instance settles as a whole.
            Stage::Sent => {
                runtime.spawn(async move {
                    tokio::time::sleep(fencing.settle).await;
                    let end = || fencing.store.end_operation(&asked.key, AttemptEnd::Settled);
                    while let Err(error) = end().await {
                        fencing.metrics.store_failed(&error);
                        tokio::time::sleep(AGAIN).await;
                    }
                });
            }
        }
    }
}

/// Deletes the row of an attempt that had no effect. If it was made `again`, records the outcome as
/// unknown. Says whether the row was there; `None`: the store gave no answer.
async fn forget(fencing: &Fencing, of: &AttemptKey, again: bool) -> Option<bool> {
    let end = if again {
        AttemptEnd::Settled
    } else {
        AttemptEnd::Undone
    };
    let forgotten = fencing.store.end_operation(of, end).await;
    forgotten
        .inspect_err(|error| fencing.metrics.store_failed(error))
        .ok()
}

/// Tries until the store has answered, and long enough for a statement without an answer to commit.
async fn give_back(fencing: Arc<Fencing>, asked: Arc<Attempt>, again: bool) {
    let mut pauses = PAUSES.into_iter();
    loop {
        let (pause, is_last) = (pauses.next(), pauses.len() == 0);
        tokio::time::sleep(pause.map_or(AGAIN, Duration::from_secs)).await;
        match forget(&fencing, &asked.key, again).await {
            Some(on_record) if on_record || is_last => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
