//! [`WriterHandle`]: hands work to the writer.

use tokio::sync::{mpsc, oneshot};

use super::answers::WaiterReply;
use super::command::WriterCommand;
use super::request::{Want, WriterError};
use super::waiter::Waiter;
use super::walk_requests::WalkHandle;
use crate::fencing::refused::Refused;
use crate::routing::{Needs, ResourceKey, Token};

/// Hands work to the writer. Cheap to clone.
#[derive(Clone)]
pub struct WriterHandle {
    pub(super) tx: mpsc::UnboundedSender<WriterCommand>,
    pub(super) walk: WalkHandle,
}

impl WriterHandle {
    /// Has the token written to the store. Returns whether this request raised the mark. The caller
    /// must bound the wait, because the writer answers late when the store is slow. A caller that
    /// has left is skipped if its statement has not been sent yet.
    ///
    /// # Errors
    ///
    /// The mark is above the token, or the token is spent, or the store gave no answer.
    pub async fn append(
        &self,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<bool, Refused> {
        self.append_for(None, key, token, want).await
    }

    /// As [`Self::append`], within the bounds of a request; `None`: an operator's, which has none.
    pub async fn append_for(
        &self,
        needs: Option<Needs>,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<bool, Refused> {
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter {
            token,
            want,
            bounds: needs,
            reply: WaiterReply::new(reply),
            tries: 0,
        };
        let stopped = || Refused::from(WriterError::other("connection", "the proxy is stopping"));
        self.tx
            .send(WriterCommand::Append(key.clone(), waiter))
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Gives back a spent token that is known not to have been used. `false`: it counts as spent.
    pub async fn give_back(&self, key: &ResourceKey, token: Token, name: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let spend = (key.clone(), token, name);
        self.tx
            .send(WriterCommand::GiveBack { spend, reply })
            .is_ok()
            && answer.await.unwrap_or(false)
    }

    /// See [`WriterCommand::Reread`].
    pub fn reread(&self, key: ResourceKey) {
        let _ = self.tx.send(WriterCommand::Reread(key));
    }

    /// See [`WriterCommand::Closed`]. The writer handles it after the answers that came before.
    /// Returns when it has.
    pub async fn closed(&self, keys: Vec<ResourceKey>) {
        let (judged, done) = oneshot::channel();
        if self.tx.send(WriterCommand::Closed(keys, judged)).is_ok() {
            let _ = done.await;
        }
    }

    /// Reads, soon, which own epochs are below their mark, and closes the unused ones. A store that
    /// is not shared is not read: see [`WalkHandle`].
    pub fn poll(&self) {
        self.walk.poll();
    }

    /// The same for one resource, at which a newer token waits according to a notification.
    pub fn hint(&self, key: ResourceKey) {
        self.walk.hint(key);
    }

    /// Begins the regular walks, which find what lost notifications have announced.
    pub fn begin_walks(&self) {
        self.walk.begin();
    }

    /// Checks, soon, that every epoch open here is still in the store, and closes unused epochs in
    /// the store.
    pub fn reconcile(&self) {
        self.walk.reconcile();
    }

    /// Deletes every drained epoch and ends the writer.
    pub async fn stop(&self) {
        let (reply, done) = oneshot::channel();
        if self.tx.send(WriterCommand::Stop(reply)).is_ok() {
            let _ = done.await;
        }
    }
}
