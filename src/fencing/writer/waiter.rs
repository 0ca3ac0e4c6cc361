//! [`Waiter`]: a request that waits for the writer's answer.

use super::answers::WaiterReply;
use super::request::{Caller, Want};
use crate::routing::{Needs, Token};

/// A request that waits for the writer's answer.
pub(super) struct Waiter {
    pub token: Token,
    pub want: Want,
    /// `None`: no bounds hold.
    pub caller: Option<Caller>,
    pub reply: WaiterReply,
    /// How often an era has sent it back.
    pub tries: u8,
}

impl Waiter {
    pub(super) fn needs(&self) -> Needs {
        self.caller.map(|caller| caller.needs).unwrap_or_default()
    }
}
