//! [`Rereads`]: the resources whose foreign epochs must be read again, and the callers that wait
//! for the result.

use std::collections::HashSet;

use tokio::sync::oneshot;

use crate::fencing::epochs::EpochTable;
use crate::routing::ResourceKey;

/// The resources whose foreign epochs are to be read again.
#[derive(Default)]
pub(super) struct Rereads {
    keys: HashSet<ResourceKey>,
    /// Resources whose read notifies no owner: the owners have just been notified.
    quiet: HashSet<ResourceKey>,
    /// Reads that were requested because an epoch was closed elsewhere, and the callers that wait
    /// for their result.
    closed: Vec<(Vec<ResourceKey>, oneshot::Sender<bool>)>,
}

impl Rereads {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Has the resource read again. The owners of epochs that are still in the way are then
    /// notified.
    pub(super) fn push(&mut self, key: ResourceKey) {
        self.quiet.remove(&key);
        self.keys.insert(key);
    }

    /// Has these resources read again, because an epoch of each was closed elsewhere. Answers
    /// `judged` after the read.
    pub(super) fn push_closed(
        &mut self,
        mut keys: Vec<ResourceKey>,
        judged: oneshot::Sender<bool>,
        epoch_table: &EpochTable,
    ) {
        keys.retain(|key| epoch_table.waits_for_others(key));
        for key in &keys {
            if self.keys.insert(key.clone()) {
                self.quiet.insert(key.clone());
            }
        }
        self.closed.push((keys, judged));
    }

    /// Takes out at most `most` resources.
    pub(super) fn take(&mut self, most: usize) -> Vec<ResourceKey> {
        let next: Vec<ResourceKey> = self.keys.iter().take(most).cloned().collect();
        for key in &next {
            self.keys.remove(key);
        }
        next
    }

    /// Whether the finished read of this resource notifies no owner.
    pub(super) fn was_quiet(&mut self, key: &ResourceKey) -> bool {
        self.quiet.remove(key)
    }

    /// Answers the callers whose reads have been made.
    pub(super) fn judge_closed(&mut self, epoch_table: &EpochTable) {
        let pending = &self.keys;
        let made = |keys: &Vec<ResourceKey>| keys.iter().all(|key| !pending.contains(key));
        for (keys, judged) in self.closed.extract_if(.., |(keys, _)| made(keys)) {
            let helped = keys.iter().any(|key| !epoch_table.waits_for_others(key));
            let _ = judged.send(helped || keys.is_empty());
        }
    }
}
