//! The bounds that several parts of the writer share.

use std::time::Duration;

/// How long a resource that ran into a row lock is asked about beside the writer.
pub(super) const TROUBLE: Duration = Duration::from_secs(30);
/// How often failed upkeep is tried again.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// The most resources that are repaired together, before requests have a turn again.
pub(super) const MOST_REPAIRS: usize = 256;
