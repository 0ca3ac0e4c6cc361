//! [`WriterHandle`]: hands work to the writer.

use tokio::sync::{mpsc, oneshot};

use super::answers::WaiterReply;
use super::command::WriterCommand;
use super::request::{Answer, Caller, Want, WriterError};
use super::waiter::Waiter;
use super::wishes::OwnHandle;
use crate::routing::{ResourceKey, Token};

/// Hands work to the writer. Cheap to clone.
#[derive(Clone)]
pub struct WriterHandle {
    pub(super) tx: mpsc::UnboundedSender<WriterCommand>,
    pub(super) own: OwnHandle,
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
            reply: WaiterReply::new(reply),
            tries: 0,
        };
        let stopped = || WriterError::other("connection", "the proxy is stopping");
        self.tx
            .send(WriterCommand::Ask(key.clone(), waiter))
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Gives a spent token back that is known not to have been used. `false`: it counts as spent.
    pub async fn give_back(&self, key: &ResourceKey, token: Token, name: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let spend = (key.clone(), token, name);
        self.tx
            .send(WriterCommand::GiveBack { spend, reply })
            .is_ok()
            && answer.await.unwrap_or(false)
    }

    /// See [`WriterCommand::Look`].
    pub fn look(&self, key: ResourceKey) {
        let _ = self.tx.send(WriterCommand::Look(key));
    }

    /// See [`WriterCommand::Closed`]. The writer hears of it behind the answers that came before.
    pub async fn closed(&self, keys: Vec<ResourceKey>) -> bool {
        let (judged, done) = oneshot::channel();
        self.tx.send(WriterCommand::Closed(keys, judged)).is_ok() && done.await.unwrap_or(false)
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
        if self.tx.send(WriterCommand::Stop(reply)).is_ok() {
            let _ = done.await;
        }
    }
}
