//! [`WriterCommand`]: a command to the writer's task.

use tokio::sync::oneshot;

use super::waiter::Waiter;
use crate::routing::{ResourceKey, Token};
use crate::store::EpochRow;

/// A command to the writer's task.
pub(super) enum WriterCommand {
    Append(ResourceKey, Waiter),
    GiveBack {
        spend: (ResourceKey, Token, String),
        reply: oneshot::Sender<bool>,
    },
    /// Read again which epochs of the resource are open elsewhere.
    Reread(ResourceKey),
    /// An epoch of each of these resources was closed elsewhere. The resources at which a request
    /// waits for it are read again.
    Closed(Vec<ResourceKey>, oneshot::Sender<()>),
    /// Own rows that were not registered here when they were read.
    Unclaimed(Vec<EpochRow>, oneshot::Sender<()>),
    /// Rows of this incarnation that were registered here, and then missing from the store.
    Missing(Vec<EpochRow>, u64, oneshot::Sender<()>),
    /// Delete what is drained, and end.
    Stop(oneshot::Sender<()>),
}
