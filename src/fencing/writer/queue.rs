//! [`RequestQueue`]: the requests that wait for the next batch.

use std::collections::VecDeque;

use super::answers::Answers;
use super::request::{Want, WriterError};
use super::waiter::Waiter;
use crate::routing::ResourceKey;
use crate::store::Opening;

/// How often a request is asked again because of a new era before it is refused.
const MAX_TRIES: u8 = 4;

/// The requests that wait for the next batch.
#[derive(Default)]
pub(super) struct RequestQueue {
    pub waiting: VecDeque<(ResourceKey, Waiter)>,
    /// The answers of the batch that is being entered.
    pub answers: Answers,
    last_opening: Opening,
}

impl RequestQueue {
    /// An opening that no statement has used.
    pub(super) fn next_opening(&mut self) -> Opening {
        self.last_opening += 1;
        self.last_opening
    }

    /// Asks again for these requests. Either the row is of a later era than the statement knew, so
    /// that nothing was changed, or the statement was about another request's token. A request that
    /// spends under a permit is refused instead: its epoch was gone when the mark was overridden,
    /// so the permit is void.
    pub(super) fn send_back(&mut self, key: &ResourceKey, waiters: Vec<Waiter>) {
        for mut waiter in waiters {
            waiter.tries += 1;
            if waiter.tries >= MAX_TRIES || matches!(waiter.want, Want::Spend(_)) {
                let error =
                    WriterError::other("era", "the mark has changed meanwhile, or was overridden");
                waiter.reply.send(Err(error.into()));
            } else {
                self.waiting.push_back((key.clone(), waiter));
            }
        }
    }
}
