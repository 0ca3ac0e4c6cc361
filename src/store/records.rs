//! The rows, the answers and the errors that cross the store's traits.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::json_values::moment;
use crate::routing::{Needs, ResourceKey, Token};

/// One run of one proxy. The first id of a process is its name: 16 random hex digits, new at each
/// start. A rejoin goes on under that name and a number: `4f0c2a91b6d3e857-2`. The store accepts no
/// id twice.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(std::sync::Arc<str>);

impl InstanceId {
    /// Takes the id as it stands in a row.
    #[must_use]
    pub fn from_row(id: &str) -> Self {
        Self(id.into())
    }

    /// The first id of a process, from 64 random bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(format!("{bits:016x}").into())
    }

    /// The id that follows this one in the same process.
    #[must_use]
    pub fn next(&self) -> Self {
        let (name, number) = self.parts();
        Self(format!("{name}-{}", number.saturating_add(1)).into())
    }

    /// The name of the process, which stands in its logs, in `Via` and in its metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().0
    }

    /// The process's name as other programs show it: in `Via`, and in `pg_stat_activity`.
    #[must_use]
    pub fn application_name(&self) -> String {
        format!("fencepost-{}", self.name())
    }

    fn parts(&self) -> (&str, u64) {
        let parts = self.0.split_once('-');
        let numbered = parts.and_then(|(name, number)| Some((name, number.parse().ok()?)));
        numbered.unwrap_or((&self.0, 1))
    }

    /// The id as it stands in a row.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Pauses between two renewals of a lease of this term.
#[must_use]
pub fn renewal_pause(term: Duration) -> Duration {
    (term / 3).min(Duration::from_secs(1))
}

/// An epoch id: numbers the statements of one instance that may open an epoch. Never used twice,
/// not even by a retry, so that closing one epoch cannot close another.
pub type Opening = i64;

/// Counts the overrides of a namespace. A statement that knows a lower era than a row's changes
/// nothing on that row.
pub type Era = i64;

/// One row of a batch. A batch holds at most one ask per resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub resource: ResourceKey,
    /// The mark is raised to this if it is lower or absent.
    pub token: Token,
    /// Open an epoch of `token` under this number, if the mark under the lock is not above `token`.
    pub opening: Option<Opening>,
    /// Spend `token` (`reuse: once`) under this name, if the mark under the lock is not above
    /// `token` and the token is not spent yet.
    pub spend: Option<String>,
    /// The condition on the mark under the lock. If it is not met, nothing is changed and no mark
    /// is made.
    pub needs: Needs,
}

/// The state that the statement found for one [`Ask`], in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The mark under the lock *before* this statement; `None`: there was none.
    pub before: Option<Token>,
    /// The row's era. Above the era that was asked with: nothing was changed on this row.
    pub era: Era,
    /// The name under which the asked token is spent after this statement, if it is spent and the
    /// mark is that token. Equal to [`Ask::spend`] if this ask has spent it.
    pub spent_by: Option<String>,
    /// How often tokens of this resource were given back so far. If a token was spent and no longer
    /// is, it was given back if this number has risen since; if not, its spending was lost.
    pub given_back: i64,
}

/// One turn of the writer: one transaction, and one read after it.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub instance: &'a InstanceId,
    pub era: Era,
    /// Each names another resource. Not empty.
    pub asks: &'a [Ask],
    /// Drained epochs, deleted in the same transaction by resource, instance and epoch id.
    pub closes: &'a [EpochRow],
    /// Resources whose epochs are all read, besides those that an ask opens an epoch for.
    pub looks: &'a [ResourceKey],
    /// A row may be locked: the batch waits for it less than usual.
    pub hasty: bool,
}

/// The answer to a [`Batch`].
#[derive(Debug)]
pub struct Batched {
    /// In the order of the asks.
    pub found: Vec<Found>,
    /// Read after the commit: every epoch of the `looks`, and, of each resource that an ask opens
    /// an epoch for, at least those of other instances. An error: the advance is durable, and the
    /// epochs are unknown.
    pub epochs: Result<Vec<EpochRow>, StoreError>,
    /// Resources whose epoch, opened by this batch, was missing in that read: another server has
    /// answered it. Empty where one message over one connection carries both.
    pub lost: Vec<ResourceKey>,
    /// The read has notified the owners of older epochs of the resources that an ask has opened one
    /// for.
    pub told: bool,
}

/// A durable note that an instance may have requests of this token in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpochRow {
    pub resource: ResourceKey,
    pub instance: InstanceId,
    pub opening: Opening,
    pub token: Token,
}

/// A place in the order of one instance's epoch rows: by resource, then by opening.
pub type Cursor = (ResourceKey, Opening);

/// One of an instance's own epoch rows, and the mark of its resource (`None`: it has none).
pub type OwnRow = (EpochRow, Option<Token>);

/// The result of one step of a reaping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Burial {
    /// The resources whose epochs were deleted.
    pub freed: Vec<ResourceKey>,
    /// The start of the next step; `None`: nothing is left.
    pub next: Option<Cursor>,
}

/// An instance as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRow {
    pub id: InstanceId,
    /// Counts its renewals; a counter that stands still for a whole lease is a dead owner.
    pub renewals: i64,
    pub lease: Duration,
    pub settle: Duration,
    /// How long its kernel may go on delivering bytes that it has written (`upstream.undelivered`).
    pub undelivered: Duration,
    /// The digest of its route table; empty where none was recorded.
    pub routes: String,
    /// Declared dead. Never undone.
    pub dead: bool,
    /// `SQLite`: it ran on another machine, or before the last boot of this one. The file's lock
    /// does not prove that it has ended.
    pub elsewhere: bool,
}

impl InstanceRow {
    /// True if only epoch rows know it.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.dead && self.lease.is_zero() && self.routes.is_empty()
    }
}

/// The terms that an instance records when it joins. The other instances use them after its death.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The start of its counter.
    pub renewals: i64,
    pub lease: Duration,
    pub settle: Duration,
    /// See [`InstanceRow::undelivered`].
    pub undelivered: Duration,
    /// See [`InstanceRow::routes`].
    pub routes: String,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease runs on; the namespace is in this era.
    Alive(Era),
    /// Another instance declared this id dead.
    Dead,
    /// No row knows this id: it was declared dead and reaped, or the store has lost it.
    Unknown,
}

/// One mark, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkRow {
    pub resource: ResourceKey,
    #[serde(rename = "mark")]
    pub token: Token,
    /// The token is spent (`reuse: once`).
    pub spent: bool,
    pub era: Era,
    /// When the mark last rose (or was overridden), in milliseconds since the Unix epoch, by the
    /// store's clock.
    #[serde(rename = "since", with = "moment")]
    pub since_ms: i64,
}

/// One entry of the audit table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    pub resource: ResourceKey,
    /// `override`, `advance`, `resolve`, or `prune`, whose `resource` is a prefix and `*`.
    pub action: String,
    pub before: Option<Token>,
    pub after: Option<Token>,
    pub reason: String,
    pub actor: String,
    /// Milliseconds since the Unix epoch, by the store's clock.
    #[serde(rename = "at", with = "moment")]
    pub at_ms: i64,
}

/// How many marks a namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub marks: u64,
    /// There may be more: they have not all been counted yet.
    pub more: bool,
}

/// The result of an operator's override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// The mark is `after` now, in the new era.
    Done { before: Token, era: Era },
    /// Refused: these epochs of the resource are open.
    EpochsOpen(Vec<EpochRow>),
    /// There is no mark to override.
    Absent,
}

/// One step of a prune: it deletes marks that have not changed for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneStep {
    /// Only keys with this prefix.
    pub prefix: String,
    /// Only keys that sort (bytewise) after this one: where the step before has ended.
    pub after: Option<String>,
    /// Only marks that have not changed for longer than this, by the store's clock.
    pub unchanged: Duration,
    /// Counts, and deletes nothing.
    pub dry_run: bool,
    /// For the audit.
    pub reason: String,
    pub actor: String,
}

impl PruneStep {
    /// The name of the step in the audit: what its keys begin with.
    #[must_use]
    pub fn audited_as(&self) -> String {
        format!("{}*", self.prefix)
    }

    /// The text of the audit row of a step that deletes so many marks.
    #[must_use]
    pub fn audited_reason(&self, deleted: u64) -> String {
        let unchanged = humantime::format_duration(self.unchanged);
        format!(
            "{deleted} marks, unchanged for {unchanged}: {}",
            self.reason
        )
    }
}

/// The result of one step of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Marks that were deleted, or would have been.
    pub deleted: u64,
    /// Marks that are old enough, but have epochs open.
    pub open: u64,
    /// The `after` of the next step; `None`: there are no more marks.
    pub next: Option<String>,
    /// The namespace's new era, if marks were deleted.
    pub era: Option<Era>,
}

/// A message from one instance to the others. A lost or late one costs a poll interval and nothing
/// else. Any login of the database can send one, so it is only a hint to read the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// A newer token is durable, and waits for older epochs of the resource.
    Newer {
        resource: ResourceKey,
        token: Token,
        era: Era,
        /// The instance that has an older epoch; `None`: any may have one.
        owner: Option<InstanceId>,
    },
    /// An epoch of the resource was closed, and another instance waits for it.
    Closed { resource: ResourceKey },
}

/// An event of the subscription to notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Notification(Notification),
    /// The subscription was (re)established. It may have missed notifications: poll now.
    Resumed,
}

/// Why a store call failed. In every variant, the statement may still commit later.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within `store.timeout`.
    #[error("the store did not answer within {0:?}")]
    Timeout(Duration),
    /// No row lock within `lock_timeout`. The batch can be split and tried again.
    #[error("timed out waiting for a row lock: {0}")]
    LockTimeout(String),
    /// The store cannot be reached, or the connection broke.
    #[error("the store cannot be reached: {0}")]
    Connection(String),
    /// The store answered with an error.
    #[error("the store refused a statement: {0}")]
    Statement(String),
    /// The server answered with success and a warning. Only the warning distinguishes a commit
    /// whose wait for its synchronous standby was cancelled from one that the standby has.
    #[error("the server answered with a warning, so its answer is in doubt: {0}")]
    Warned(String),
    /// The store is not fit to hold marks (`fsync=off`, read-only, transaction pooling, schema
    /// behind, file locked by another process …); says what to do.
    #[error("{0}")]
    Unfit(String),
}

impl StoreError {
    /// The label value of `fencepost_store_errors_total`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::LockTimeout(_) => "lock-timeout",
            Self::Connection(_) => "connection",
            Self::Statement(_) => "statement",
            Self::Warned(_) => "warned",
            Self::Unfit(_) => "unfit",
        }
    }
    /// Every value [`Self::kind`] can have.
    pub const KINDS: [&'static str; 6] = [
        "timeout",
        "lock-timeout",
        "connection",
        "statement",
        "warned",
        "unfit",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_name_through_rejoins() {
        let first = InstanceId::from_bits(0x4f0c_2a91);
        assert_eq!(first.as_str(), "000000004f0c2a91");
        let (second, third) = (first.next(), first.next().next());
        assert_eq!(second.as_str(), "000000004f0c2a91-2");
        assert_eq!(third.as_str(), "000000004f0c2a91-3");
        for id in [first, second, third] {
            assert_eq!(id.name(), "000000004f0c2a91");
            assert_eq!(id.application_name(), "fencepost-000000004f0c2a91");
        }
    }
}
