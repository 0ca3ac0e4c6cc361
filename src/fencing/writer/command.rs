//! [`WriterCommand`]: all that is asked of the writer's task.

use tokio::sync::oneshot;

use super::batch;
use super::waiter::Waiter;
use crate::routing::{ResourceKey, Token};
use crate::store::EpochRow;

/// All that is asked of the writer's task.
pub(super) enum WriterCommand {
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
