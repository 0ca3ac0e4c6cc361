//! The rows, the answers and the errors that cross the store's traits.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::json_values::moment;
use crate::routing::{Needs, ResourceKey, Token};

/// One run of one proxy. A process has 47 random bits, which are its name in logs, in `Via` and in
/// its metrics: 12 hex digits. Below them stands the number of its rejoin, which the name is
/// followed by from the second on: `4f0c2a91b6d3-2`. The store accepts no id twice.
///
/// Not from a sequence of the store: a failover to a replica that is behind would hand out a number
/// again, and an instance would take the epochs of another for its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceId(i64);

impl InstanceId {
    /// How many bits number the rejoins of a process.
    const REJOINS: u32 = 16;

    /// Takes the id as it stands in a row.
    #[must_use]
    pub const fn from_row(id: i64) -> Self {
        Self(id)
    }

    /// The first id of a process, from 47 of these random bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self((bits << Self::REJOINS).cast_signed() & i64::MAX)
    }

    /// The id as it stands in a row.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The id that follows this one in the same process.
    #[must_use]
    pub const fn next(self) -> Self {
        Self((self.0.wrapping_add(1)) & i64::MAX)
    }

    /// The name of the process, which stands in its logs, in `Via` and in its metrics.
    pub fn name(self) -> String {
        format!("{:012x}", self.0 >> Self::REJOINS)
    }

    /// The process's name as other programs show it: in `Via`, and in `pg_stat_activity`.
    pub fn application_name(self) -> String {
        format!("fencepost-{}", self.name())
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self.0 & ((1 << Self::REJOINS) - 1) {
            0 => Ok(()),
            rejoins => write!(f, "-{}", rejoins + 1),
        }
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// An epoch id: numbers the statements of one instance that may open an epoch. Never used twice,
/// not even by a retry, so that what ends one epoch ends no other.
pub type Opening = i64;

/// A durable note in the row of a resource that an instance may have requests of this token for it
/// in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch {
    pub instance: InstanceId,
    pub opening: Opening,
    pub token: Token,
}

/// Which epochs of an instance are over: those with an opening below `below` that is not among
/// `left`. What one publication says is true for ever, since an epoch that is out of use stays so.
/// So it does no harm that one commits late, over a newer one. But the two fields of different
/// publications say nothing together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    pub below: Opening,
    pub left: Vec<Opening>,
}

/// Counts the overrides and prunes of a namespace, and the announcements of prunes. A statement that
/// knows a lower era than a row's changes no mark there, spends nothing and opens nothing.
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
    /// The condition on the mark under the lock. If it is not met, no mark is changed or made, and
    /// nothing spent or opened.
    pub needs: Needs,
}

/// The state that the statement found for one [`Ask`], in the order asked. The default: there is no
/// mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The mark under the lock *before* this statement; `None`: there was none.
    pub before: Option<Token>,
    /// The row's era. Above the era that was asked with: nothing was raised, spent or opened.
    pub era: Era,
    /// The name under which the asked token is spent after this statement, if it is spent and the
    /// mark is that token. Equal to [`Ask::spend`] if this ask has spent it.
    pub spent_by: Option<String>,
    /// How often tokens of this resource were given back so far. If a token was spent and no longer
    /// is, it was given back if this number has risen since; if not, its spending was lost.
    pub given_back: i64,
    /// The epochs of the row after this statement, of all instances. Complete under the row's lock.
    /// Older ones can be added only by a repair.
    pub open: Vec<Epoch>,
}

/// The asks of one statement, which is a transaction of its own.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub instance: InstanceId,
    pub era: Era,
    /// Each names another resource. Not empty.
    pub asks: &'a [Ask],
    /// The openings of this instance that are in use at these resources, as of the moment at which
    /// the statement is composed.
    pub used: &'a [Opening],
    /// The first opening that was not given out by that moment. An epoch of this instance below it
    /// that is not `used` is dropped from its row: no request will use it, whenever the statement
    /// commits.
    pub next: Opening,
}

/// The lane that sends a batch. With Postgres each has a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// By its number.
    Main(usize),
    /// For rows that another session may have locked: it waits for a lock much less.
    Aside,
}

/// What the store has lost of a resource, as an instance knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    pub resource: ResourceKey,
    /// The mark is raised to this if it is lower or absent, unless the row is of a later era.
    pub token: Token,
    /// The era in which that was learned.
    pub era: Era,
    /// As [`Ask::spend`].
    pub spend: Option<String>,
    /// The epochs of the instance that are in use. Those that are missing are added, whatever the
    /// mark and the era.
    pub open: Vec<Epoch>,
}

/// An instance as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRow {
    pub id: InstanceId,
    pub terms: Terms,
    /// Declared dead. Never undone.
    pub dead: bool,
    /// Its process has certainly ended, if it was not this one: it had the place that this process
    /// has now. Of a Postgres, see `place`. Of a file, its lock, under the same boot.
    pub ended: bool,
}

impl InstanceRow {
    /// An id that only epochs know. It counts as dead: a failover may have lost its row.
    #[must_use]
    pub fn unknown(id: InstanceId) -> Self {
        Self {
            id,
            terms: Terms::default(),
            dead: true,
            ended: false,
        }
    }

    /// True if only epochs know it.
    pub fn is_unknown(&self) -> bool {
        self.dead && self.terms.lease.is_zero() && self.terms.routes.is_empty()
    }
}

/// The terms that an instance records when it joins, and its counter. The other instances use them
/// after its death.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Counts its renewals; a counter that stands still for a whole lease is a dead owner.
    pub renewals: i64,
    pub lease: Duration,
    pub settle: Duration,
    /// How long its kernel may go on delivering bytes that it has written (`upstream.undelivered`).
    pub undelivered: Duration,
    /// The digest of its route table; empty where none was recorded.
    pub routes: String,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease runs on; the namespace is in this era.
    Alive(Era),
    /// Another instance declared this id dead.
    Dead,
    /// No row knows this id: the store has lost it.
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

/// The reason and the name of an operator who changes something, for the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub reason: String,
    pub actor: String,
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

/// The result of an operator's override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// The mark is `after` now, in the new era.
    Done { before: Token, era: Era },
    /// Refused: these epochs of the resource are open.
    EpochsOpen(Vec<Epoch>),
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
    pub by: Signature,
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

/// A message from one instance to the others: look at this row. A lost or late one costs a poll
/// interval and nothing else. Any login of the database can send one, so nothing is concluded from
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    #[serde(rename = "r")]
    pub resource: ResourceKey,
    /// A request with this token waits for the epochs that are older; `None`: one was closed.
    #[serde(rename = "w", skip_serializing_if = "Option::is_none")]
    pub waits: Option<Token>,
    /// The instance that has an older epoch; `None`: for all.
    #[serde(rename = "o", skip_serializing_if = "Option::is_none")]
    pub to: Option<InstanceId>,
}

impl Notification {
    /// For the owner of an epoch that a newer token waits for.
    #[must_use]
    pub fn to(owner: InstanceId, resource: &ResourceKey, waits: Token) -> Self {
        Self {
            resource: resource.clone(),
            waits: Some(waits),
            to: Some(owner),
        }
    }
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
        assert_eq!(first.to_string(), "00004f0c2a91");
        let (second, third) = (first.next(), first.next().next());
        assert_eq!(second.to_string(), "00004f0c2a91-2");
        assert_eq!(third.to_string(), "00004f0c2a91-3");
        for id in [first, second, third] {
            assert_eq!(id.name(), "00004f0c2a91");
            assert_eq!(id.application_name(), "fencepost-00004f0c2a91");
        }
        for bits in [u64::MAX, 1 << 63, 0] {
            assert!(InstanceId::from_bits(bits).get() >= 0);
        }
    }
}
