//! The writer: one task that brings what many requests want to the store in shared statements.
//!
//! While one batch commits, the next one gathers; nothing is waited for when the writer is idle (*group
//! commit*). A batch names each resource once: requests for the same resource fold into the
//! highest of their tokens. One task owns the order of things: an answer is entered in the
//! [`EpochTable`] before the next statement is sent, so an opening is always either unanswered (and known
//! here as such), registered, or nobody's.
//!
//! What can go wrong stays with those it went wrong for: an error answers exactly the requests whose
//! statement it was; a batch that runs into a row lock is taken apart and each resource asked in a
//! statement of its own, beside the writer, so that one locked row stops nobody else.

mod answers;
mod aside;
mod batch;
mod closes;
mod judge;
mod own;
mod repairs;
mod said;
mod task;
#[cfg(test)]
mod tests;
mod upkeep;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};
use tokio::sync::{mpsc, oneshot};

use super::growth::{Full, Origin};
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::{EpochRow, StoreError};
use answers::Reply;
use own::OwnHandle;
pub use task::{Writer, WriterSetup};

/// What a request wants of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Raise the mark and open an epoch, to forward under it.
    Open,
    /// Raise the mark, forward nothing under it.
    Raise,
    /// Spend the token under this name (`reuse: once`).
    Spend(String),
}

/// What became of it, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The mark is at the token (and the epoch open, if that was wanted). `advanced`: this request raised it.
    Granted { advanced: bool },
    /// The mark is above the token.
    Stale { mark: Token },
    /// The token was spent by somebody else.
    Spent,
    /// The token is not believed at this mark; `None`: there is none.
    Implausible { mark: Option<Token> },
    /// The resource has no mark, and there is no room for new ones now.
    Full(Full),
}

/// Somebody who cannot do what an operator can: the bounds that hold for what it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What the mark has to be for its token to be believed.
    pub needs: Needs,
    /// Where it comes from; `None`: nobody can tell.
    pub origin: Option<Origin>,
}

/// Why the writer cannot say. The statement may still commit: conclude nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct WriterError {
    pub kind: &'static str,
    pub message: Arc<str>,
}

impl WriterError {
    pub(super) fn new(error: &StoreError) -> Self {
        Self {
            kind: error.kind(),
            message: error.to_string().into(),
        }
    }

    pub(super) fn other(kind: &'static str, message: &str) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

/// What the writer counts.
#[derive(Clone, Debug)]
pub struct Meters {
    /// Resources that got their first mark from this instance.
    pub new_resources: IntCounter,
    pub batch_size: Histogram,
    pub commit_seconds: Histogram,
    /// Label: kind.
    pub errors: IntCounterVec,
    pub regressions: IntCounter,
    /// 1 while the store answers.
    pub up: IntGauge,
    pub trouble: Arc<Trouble>,
}

/// Why the store is not up, for people.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<Option<Arc<str>>>);

impl Trouble {
    #[must_use]
    pub fn why(&self) -> Option<Arc<str>> {
        self.of().clone()
    }

    fn of(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meters {
    pub(super) fn failed(&self, error: &StoreError) {
        self.errors.with_label_values(&[error.kind()]).inc();
        if !matches!(error, StoreError::LockTimeout(_)) {
            self.up.set(0);
            *self.trouble.of() = Some(error.to_string().into());
        }
    }

    pub(super) fn answered(&self) {
        if self.up.get() != 1 {
            *self.trouble.of() = None;
            self.up.set(1);
        }
    }
}

struct Waiter {
    pub token: Token,
    pub want: Want,
    /// `None`: no bounds hold.
    pub caller: Option<Caller>,
    pub reply: Reply,
    /// How often an era has sent it back.
    pub tries: u8,
}

impl Waiter {
    fn needs(&self) -> Needs {
        self.caller.map(|caller| caller.needs).unwrap_or_default()
    }
}

enum Command {
    Ask(ResourceKey, Waiter),
    GiveBack {
        spend: (ResourceKey, Token, String),
        reply: oneshot::Sender<bool>,
    },
    /// Read again which epochs of the resource are open elsewhere.
    Look(ResourceKey),
    /// Of these resources an epoch was closed elsewhere: those are read again at which it is waited for. The
    /// answer comes behind that read; `false`: all that were read are waited for still.
    Closed(Vec<ResourceKey>, oneshot::Sender<bool>),
    /// Own rows that were not registered here when they were read.
    Unclaimed(Vec<EpochRow>, oneshot::Sender<()>),
    /// Rows of this generation that were registered here, and then not on record.
    Missing(Vec<EpochRow>, u64, oneshot::Sender<()>),
    /// Delete what is drained, and end.
    Stop(oneshot::Sender<()>),
    /// A resource asked beside the writer has its answer.
    Aside(Box<batch::Outcome>),
}

/// Hands work to the writer. Cheap to clone.
#[derive(Clone)]
pub struct WriterHandle {
    tx: mpsc::UnboundedSender<Command>,
    own: OwnHandle,
}

impl WriterHandle {
    /// Asks the store. Bound the wait outside: the writer answers late when the store is slow, and a caller
    /// that has gone is passed over if its statement has not been sent yet.
    pub async fn ask(
        &self,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<Answer, WriterError> {
        self.ask_for(None, key, token, want).await
    }

    /// As [`Self::ask`], within a caller's bounds.
    pub async fn ask_for(
        &self,
        caller: Option<Caller>,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<Answer, WriterError> {
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter {
            token,
            want,
            caller,
            reply: Reply::new(reply),
            tries: 0,
        };
        let stopped = || WriterError::other("connection", "the proxy is stopping");
        self.tx
            .send(Command::Ask(key.clone(), waiter))
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Gives a spent token back that is known not to have been used. `false`: it counts as spent.
    pub async fn give_back(&self, key: &ResourceKey, token: Token, name: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let spend = (key.clone(), token, name);
        self.tx.send(Command::GiveBack { spend, reply }).is_ok() && answer.await.unwrap_or(false)
    }

    /// See [`Command::Look`].
    pub fn look(&self, key: ResourceKey) {
        let _ = self.tx.send(Command::Look(key));
    }

    /// See [`Command::Closed`]. The writer hears of it behind the answers that came before.
    pub async fn closed(&self, keys: Vec<ResourceKey>) -> bool {
        let (judged, done) = oneshot::channel();
        self.tx.send(Command::Closed(keys, judged)).is_ok() && done.await.unwrap_or(false)
    }

    /// Reads, soon, which own epochs are below their mark, and closes those nobody uses. Not where the store
    /// is not shared: see [`OwnHandle`].
    pub fn poll(&self) {
        self.own.poll();
    }

    /// The same for one resource, of which somebody says that a newer token waits.
    pub fn hint(&self, key: ResourceKey) {
        self.own.hint(key);
    }

    /// Whether every notification of the other instances arrives. Until this is said, it is not asked for
    /// what they have missed; from then on it is, often while they may be missed, and else seldom.
    pub fn listening(&self, whole: bool) {
        self.own.listening(whole);
    }

    /// Checks, soon, that every epoch open here is still on record, and closes what is on record and used by nobody.
    pub fn reconcile(&self) {
        self.own.reconcile();
    }

    /// Deletes every drained epoch and ends the writer.
    pub async fn stop(&self) {
        let (reply, done) = oneshot::channel();
        if self.tx.send(Command::Stop(reply)).is_ok() {
            let _ = done.await;
        }
    }
}

/// Rows in the order of their keys, each once.
pub(super) fn keys_of(rows: &[EpochRow]) -> Vec<ResourceKey> {
    let mut keys: Vec<ResourceKey> = rows.iter().map(|row| row.resource.clone()).collect();
    keys.sort();
    keys.dedup();
    keys
}
