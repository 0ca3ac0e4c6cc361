//! [`Rereads`]: the resources whose foreign epochs must be read again.

use std::collections::HashSet;

use crate::fencing::epochs::EpochTable;
use crate::routing::ResourceKey;

/// The resources whose foreign epochs are to be read again.
#[derive(Default)]
pub(super) struct Rereads {
    keys: HashSet<ResourceKey>,
    /// Resources whose read notifies no owner: the owners have just been notified.
    quiet: HashSet<ResourceKey>,
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

    /// Has those of these resources read again at which a request waits: an epoch of each was closed
    /// elsewhere.
    pub(super) fn push_closed(&mut self, keys: Vec<ResourceKey>, epoch_table: &EpochTable) {
        for key in keys {
            if epoch_table.waits_for_others(&key) && self.keys.insert(key.clone()) {
                self.quiet.insert(key);
            }
        }
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
}
