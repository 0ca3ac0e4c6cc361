//! [`MarkStore`]: the one trait both stores embody, and the rows and errors that cross it.
//!
//! Rules that every embodiment keeps, whatever its engine:
//!
//! - *Check-and-advance is one call*, [`MarkStore::advance`], and one atomic statement (or one
//!   transaction that nobody can see half of). It returns after the change is as durable as the
//!   engine can make it, never before.
//! - It never closes an epoch by its token. [`MarkStore::close`] and [`Batch::closes`] do, and name each
//!   drained one by its opening, which is never used twice. So a statement that commits late (its answer
//!   lost, its connection long dropped) can only raise a mark, open an epoch, or delete what has drained.
//!   All are safe; reading one's own rows closes what was opened late.
//! - An error of any kind means *doubt*: the statement may still commit. Nothing is concluded from
//!   it, and the connection that had it is closed, never reused.
//! - Rows are locked in the byte order of their keys, so that two batches cannot deadlock.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::routing::{Needs, ResourceKey, Token};

/// One run of one proxy: random, new at each start and at each rejoin. 32 lower-case hex digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(std::sync::Arc<str>);

impl InstanceId {
    /// Takes the id as it stands in a row.
    #[must_use]
    pub fn from_row(id: &str) -> Self {
        Self(id.into())
    }

    /// An id from 128 random bits.
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        Self(format!("{bits:032x}").into())
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

/// Numbers the statements of one instance that may open an epoch. Never used twice, retries
/// included, so that closing one opening cannot close another.
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
    /// What the mark under the lock has to be; where it is not, nothing is changed, and nothing is
    /// made.
    pub needs: Needs,
}

/// What the statement found for one [`Ask`], in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The mark under the lock *before* this statement; `None`: there was none.
    pub before: Option<Token>,
    /// The row's era. Above the era that was asked with: nothing was changed on this row.
    pub era: Era,
    /// The name the token asked for is spent under after this statement, if it is spent and the
    /// mark is that token: equal to [`Ask::spend`] when this ask has won it.
    pub spent_by: Option<String>,
    /// How often tokens of this resource were given back so far. A token that was spent and is not any more was
    /// given back if this has risen since; if not, its spending was lost.
    pub given_back: i64,
}

/// One turn of the writer, in one transaction and one read after it.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub instance: &'a InstanceId,
    pub era: Era,
    /// Each names another resource. Not empty.
    pub asks: &'a [Ask],
    /// Drained epochs, which go in the same transaction, by resource, instance and opening.
    pub closes: &'a [EpochRow],
    /// Resources of which every epoch is read, besides those that an ask opens one for.
    pub looks: &'a [ResourceKey],
}

/// The answer to a [`Batch`].
#[derive(Debug)]
pub struct Batched {
    /// In the order of the asks.
    pub found: Vec<Found>,
    /// Read after the commit: every epoch of the `looks`, and of each resource that an ask names with an
    /// opening those of other instances at least. An error: the advance is durable, and this is unknown.
    pub epochs: Result<Vec<EpochRow>, StoreError>,
    /// Resources whose epoch, opened by this batch, was gone at that read: another server has answered it.
    /// Empty where one message over one connection carries both.
    pub lost: Vec<ResourceKey>,
    /// The read has told the owners of the older epochs of the resources that an ask has opened one for.
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

/// What one step of a burial has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Burial {
    /// The resources whose epochs went.
    pub freed: Vec<ResourceKey>,
    /// Where the next step begins; `None`: nothing is left.
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
    /// How long its kernel may go on delivering what it had written (`upstream.undelivered`).
    pub undelivered: Duration,
    /// The digest of its route table; empty where none was recorded.
    pub routes: String,
    /// Declared dead. Never undone.
    pub dead: bool,
    /// `SQLite`: it ran on another machine, or before the last boot of this one. There the file's lock
    /// does not say that it has ended.
    pub elsewhere: bool,
}

impl InstanceRow {
    /// Only epoch rows know it.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.dead && self.lease.is_zero() && self.routes.is_empty()
    }
}

/// The route table on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRoutes {
    /// As `config::RouteTable` writes it; `None` where no instance of a version that records it has
    /// joined yet.
    pub document: Option<String>,
    /// What version 0.1.0 has recorded: (path, template). It never took a path out again.
    pub templates: Vec<(String, String)>,
}

/// What an instance puts on record when it joins. The others reckon with it after its death.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Where its counter starts.
    pub renewals: i64,
    pub lease: Duration,
    pub settle: Duration,
    /// See [`InstanceRow::undelivered`].
    pub undelivered: Duration,
    /// See [`InstanceRow::routes`].
    pub routes: String,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease runs on; the namespace is in this era.
    Alive(Era),
    /// Somebody declared this id dead.
    Dead,
    /// No row knows this id: it was declared dead and is buried, or the store has lost it.
    Unknown,
}

/// One mark, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRow {
    pub resource: ResourceKey,
    pub token: Token,
    /// The token is spent (`reuse: once`).
    pub spent: bool,
    pub era: Era,
    /// When the mark last rose (or was overridden), in milliseconds since the Unix epoch, by the store's clock.
    pub since_ms: i64,
}

/// One entry of the audit table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    pub resource: ResourceKey,
    /// `override`, `advance` or `resolve`.
    pub action: String,
    pub before: Option<Token>,
    pub after: Option<Token>,
    pub reason: String,
    pub actor: String,
    /// Milliseconds since the Unix epoch, by the store's clock.
    pub at_ms: i64,
}

/// How many marks a namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub marks: u64,
    /// There may be more: they have not all been counted yet.
    pub more: bool,
}

/// What became of an operator's override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// The mark is `after` now, in the new era.
    Done { before: Token, era: Era },
    /// Refused: these epochs of the resource are open.
    EpochsOpen(Vec<EpochRow>),
    /// There is no mark to override.
    Absent,
}

/// What instances tell each other. A lost or late one costs a poll interval and nothing else. Any login of the
/// database can send one, so it is a hint to look and never believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// A newer token is durable, and waits for older epochs of the resource.
    Newer {
        resource: ResourceKey,
        token: Token,
        era: Era,
        /// The instance that an older epoch is of; `None`: any may have one.
        owner: Option<InstanceId>,
    },
    /// An epoch of the resource that somebody waits for was closed.
    Closed { resource: ResourceKey },
}

/// What the listening side yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Notification(Notification),
    /// The subscription was (re)established; something may have been missed: poll now.
    Resumed,
    /// Whether every notification arrives. The subscription has heard itself, after all that was told
    /// before; or it has not for a while, or is broken.
    Whole(bool),
}

/// Why a store call failed. Whatever the variant, the statement may still commit later.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within `store.timeout`.
    #[error("the store did not answer within {0:?}")]
    Timeout(Duration),
    /// A row lock was not to be had within `lock_timeout`. The batch can be split and tried again.
    #[error("a row lock was not to be had in time: {0}")]
    LockTimeout(String),
    /// The store cannot be reached, or the connection broke.
    #[error("the store cannot be reached: {0}")]
    Connection(String),
    /// The store answered with an error.
    #[error("the store refused a statement: {0}")]
    Statement(String),
    /// The server answered with success, and with a warning: that is all that tells a commit whose wait for its
    /// synchronous standby was cancelled from one that the standby has.
    #[error("the server warned, so that nothing is concluded from its answer: {0}")]
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

/// Where the marks live. All calls are for one namespace, fixed when the store is opened.
///
/// A caller may drop any of these futures at any time: an embodiment must then close the
/// connection (or let the work end in a task of its own), never reuse one in an unknown state.
#[async_trait]
pub trait MarkStore: Send + Sync + 'static {
    /// `sqlite` or `postgres`.
    fn kind(&self) -> &'static str;

    /// Whether other instances can share the marks. `false` (`SQLite`): every other instance found
    /// in the store is dead, nobody declares this one dead, and nobody listens to news.
    fn shared(&self) -> bool;

    // --- the request path: one caller, the writer; a dedicated connection ---

    /// [`Self::advance`], the deletion of drained epochs in the same transaction, and after its commit, in a
    /// snapshot of its own, the second read. All in one round trip where the engine can.
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError>;

    /// Locks every mark row named, in key order; raises those that are lower; opens epochs and
    /// spends tokens as asked, for rows whose era is not above `era`; returns, in the order asked,
    /// what was found under the lock. A write even for equal tokens, so that its commit waits for
    /// standbys. `asks` names each resource at most once, and is not empty.
    async fn advance(
        &self,
        instance: &InstanceId,
        era: Era,
        asks: &[Ask],
    ) -> Result<Vec<Found>, StoreError> {
        let batch = Batch {
            instance,
            era,
            asks,
            closes: &[],
            looks: &[],
        };
        Ok(self.batch(batch).await?.found)
    }

    /// Every epoch row of these resources, of all instances, in a statement (and snapshot) of its
    /// own: called after [`Self::advance`] has committed.
    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError>;

    /// Deletes these epoch rows, by resource, instance and opening.
    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError>;

    /// [`Self::close`] of rows that others wait for, and the announcement of it, in one transaction where the
    /// engine can.
    async fn close_wanted(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.close(epochs).await?;
        let mut keys: Vec<ResourceKey> = epochs.iter().map(|row| row.resource.clone()).collect();
        keys.sort();
        keys.dedup();
        let news = keys
            .into_iter()
            .map(|resource| Notification::Closed { resource });
        // One that is lost costs a poll interval.
        let _ = self.announce(&news.collect::<Vec<_>>()).await;
        Ok(())
    }

    /// Deletes those of these rows, of epochs that give no permit meanwhile, whose mark is above their token, and
    /// announces it as [`Self::close_wanted`] does. Returns the marks that this was judged by. Fails if it is not
    /// known which rows are gone.
    async fn cede(&self, epochs: &[EpochRow]) -> Result<Vec<MarkRow>, StoreError> {
        let mut keys: Vec<ResourceKey> = epochs.iter().map(|row| row.resource.clone()).collect();
        keys.sort();
        keys.dedup();
        let marks = self.marks(&keys).await?;
        let below = |row: &&EpochRow| {
            let above = |mark: &MarkRow| mark.resource == row.resource && mark.token > row.token;
            marks.iter().any(above)
        };
        let gone: Vec<EpochRow> = epochs.iter().filter(below).cloned().collect();
        if !gone.is_empty() {
            self.close_wanted(&gone).await?;
        }
        Ok(marks)
    }

    /// Records epochs again that a failover has lost (their instance and opening are kept), without
    /// looking at marks. What is there already stays as it is, and is written all the same, so that the commit waits
    /// for standbys: the try before may have been the one whose wait was cancelled.
    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError>;

    /// Gives spent tokens back, each only if it is still spent under that name.
    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError>;

    /// Tells the other instances. Best effort; does nothing where the store is not shared.
    async fn announce(&self, news: &[Notification]) -> Result<(), StoreError>;

    // --- an instance's own rows, all of them: one caller; a connection of its own, since what grows
    // with the number of open epochs must not hold up requests or a heartbeat ---

    /// A page of this instance's own epoch rows: those behind `after`, in order, `limit` at most. A
    /// page with fewer rows is the last one.
    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError>;

    /// This instance's own epoch rows of these resources.
    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError>;

    /// The end of a run: goes through this instance's own epoch rows behind `after`, `limit` at most,
    /// and deletes those whose opening is not among `kept`. Returns where the next call begins;
    /// `None`: that was all.
    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError>;

    // --- life and death: one caller, the lease membership; a connection of its own ---

    /// Records a new instance, and returns the namespace's era.
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError>;

    /// Puts another digest of the route table into the instance's row, if there is one.
    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError>;

    /// Raises the instance's counter to `renewals`, unless it is dead or unknown; says which. Each number is
    /// sent once. A statement that commits late, after one with a higher number, changes nothing.
    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError>;

    /// When the latest heartbeat began that is known to be durable, on `CLOCK_BOOTTIME`. A batch of requests may
    /// carry one, where it takes so long that the next renewal would come late. `None`: only renewals tell.
    fn proven(&self) -> Option<Duration> {
        None
    }

    /// Whether the store is still where others look for it. [`StoreError::Unfit`]: it is not, and this run must not
    /// trust it again; every other call says the same from then on.
    async fn in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Ends the use of the store at the end of a run. `SQLite`: the file has everything then, and no log; it
    /// stays locked until the process ends.
    async fn disconnect(&self) {}

    /// Raises the namespace's era to `era` if it is lower: a failover may have lost an override whose era instances
    /// know, and the next override must not use its number again.
    async fn raise_era(&self, era: Era) -> Result<(), StoreError>;

    /// Counts the connections made so far. After a new one it may be another server that answers, and one that has
    /// lost what the last one had. 0 for good where there is but one file.
    fn connections(&self) -> u64;

    /// Every instance recorded, and every id that only an epoch row knows (as `dead`, with
    /// every other column 0 or empty).
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError>;

    /// [`Self::instances`] without the ids that only epoch rows know, at least where finding those costs more with
    /// more epochs.
    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.instances().await
    }

    /// Names the connection that answered [`Self::instances`] or [`Self::recorded`] last; 0 before. Another one may
    /// be to another server, whose counters are behind.
    fn instances_over(&self) -> u64;

    /// Declares an instance dead if its counter still stands at `renewals`; says whether it is dead now. Fails if it
    /// would be over another connection than [`Self::instances_over`], where the instances were read at all: there
    /// the counter may stand still because the server is behind.
    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError>;

    /// Deletes epochs of a dead instance, as many as can be in one go: those of the resources named
    /// `first`, then those behind `after`, in order. The instance's own row goes with the last of
    /// them. Epochs that are left after that make their id one that only they know: it is dead, and
    /// buried again. Refuses (changes nothing, frees nothing) for an id that is recorded and not
    /// dead. Not on the connection of the renewals, which nothing may hold up.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError>;

    /// The end of a run: the instance's row goes if no epoch of it is left, else it is marked dead, so
    /// that the settling starts now. Called after every exchange has ended.
    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError>;

    // --- people and start-up: any caller; connections of their own ---

    /// Once, before the first of the other calls: brings the schema up to date or checks that it is, and
    /// checks the store. May be called again where it failed.
    async fn prepare(&self) -> Result<(), StoreError>;

    /// Reaches the store and checks that it is fit (schema, durability settings, writable).
    async fn check(&self) -> Result<(), StoreError>;

    /// For people: marks whose key starts with `prefix` and sorts (bytewise) after `after`, in key order.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError>;

    /// Counts the marks of the namespace, as many as can be in one go, and the others with the next calls.
    async fn count_marks(&self) -> Result<Count, StoreError>;

    /// The marks of the namespace, as last counted to the end; `None`: they have not been yet.
    fn counted(&self) -> Option<u64>;

    /// One mark.
    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError>;

    /// For people: a mark, and the epochs that are open on its resource. Nothing is decided by it.
    async fn view(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<EpochRow>)>, StoreError> {
        let Some(mark) = self.mark(resource).await? else {
            return Ok(None);
        };
        Ok(Some((mark, self.open_epochs(resource).await?)))
    }

    /// The marks of these resources, as far as there are any, in no order.
    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError>;

    /// The epochs that are open on a resource, of all instances.
    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError>;

    /// Sets a mark, in one transaction: refused while any epoch of the resource is open; clears `spent`;
    /// adds one to the namespace's era and stamps it on the row; writes the audit row.
    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError>;

    /// Writes an audit row for an operator's other acts. The row's `at_ms` is ignored; the store's clock decides.
    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError>;

    /// For people: the audit rows of a resource, the latest first.
    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError>;

    /// The route table on record.
    async fn routes(&self) -> Result<RecordedRoutes, StoreError>;

    /// Records a route table if `known` is still the one on record; says whether.
    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError>;

    /// Records a route table if the namespace has no instances and no epochs, in one transaction in
    /// which no instance can join. Returns the instances that it has otherwise, as
    /// [`Self::instances`] does.
    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError>;

    /// Starts to listen for news of other instances in a background task that ends when the
    /// receiver is dropped. `None` where the store is not shared.
    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>>;
}
