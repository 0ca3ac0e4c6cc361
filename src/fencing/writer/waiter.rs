//! [`Waiter`]: a request that waits for the writer's answer.

use super::answers::WaiterReply;
use super::request::Want;
use crate::routing::{Needs, Token};

/// A request that waits for the writer's answer.
pub(super) struct Waiter {
    pub token: Token,
    pub want: Want,
    /// The mark that is needed for its token to be believed. `None`: an operator's, without bounds.
    pub bounds: Option<Needs>,
    pub reply: WaiterReply,
    /// How often an era has sent it back.
    pub tries: u8,
}

impl Waiter {
    pub(super) fn needs(&self) -> Needs {
        self.bounds.unwrap_or_default()
    }
}
