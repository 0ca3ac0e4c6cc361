//! [`Rows`]: a model of the store in memory. It has one method for each statement, which does what
//! the store's traits say. Each is atomic. Time, failures and connections are the caller's.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::operations::OperationRow;
use crate::routing::{ResourceKey, Token};
use crate::store::{
    Ask, AuditRow, Batch, Epoch, Era, Found, InstanceId, InstanceRow, MarkRow, Opening, Override,
    PruneStep, Pruned, Publication, Renewal, Repair, Signature, StoreError, Terms,
};

/// The store's clock when it begins.
pub(crate) const SINCE_MS: i64 = 1_700_000_000_123;

/// The row of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    pub token: Token,
    pub spent_by: Option<String>,
    pub era: Era,
    pub given_back: i64,
    /// When the mark last rose or was overridden, by the store's clock.
    pub changed_ms: i64,
    /// Some of these may be over.
    pub open: Vec<Epoch>,
}

/// The row of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub row: InstanceRow,
    pub settled: bool,
    pub publication: Publication,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub marks: BTreeMap<ResourceKey, Mark>,
    pub instances: BTreeMap<InstanceId, Instance>,
    pub operations: BTreeMap<(ResourceKey, String), OperationRow>,
    /// The namespace's.
    pub era: Era,
    /// The route table on record.
    pub routes: Option<String>,
    /// The latest last.
    pub audit: Vec<AuditRow>,
    /// Locked by another session.
    pub locked: BTreeSet<ResourceKey>,
    pub now_ms: i64,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            marks: BTreeMap::new(),
            instances: BTreeMap::new(),
            operations: BTreeMap::new(),
            era: 0,
            routes: None,
            audit: Vec::new(),
            locked: BTreeSet::new(),
            now_ms: SINCE_MS,
        }
    }
}

/// What a row's mark is raised to, and under which conditions.
struct Raise<'a> {
    era: Era,
    token: Token,
    spend: Option<&'a String>,
    /// Whether the row has the mark that is needed.
    met: bool,
    now_ms: i64,
}

impl Mark {
    /// A mark that nothing is open under.
    pub fn at(token: Token) -> Self {
        Self {
            token,
            spent_by: None,
            era: 0,
            given_back: 0,
            changed_ms: SINCE_MS,
            open: Vec::new(),
        }
    }

    fn new(raise: &Raise<'_>) -> Self {
        Self {
            spent_by: raise.spend.cloned(),
            changed_ms: raise.now_ms,
            ..Self::at(raise.token)
        }
    }

    /// `false`: the mark stays above the token, or the row may not be changed.
    fn raise(&mut self, raise: &Raise<'_>) -> bool {
        if self.era > raise.era || !raise.met || raise.token < self.token {
            return false;
        }
        if raise.token > self.token {
            (self.token, self.changed_ms) = (raise.token, raise.now_ms);
            self.spent_by = None;
        }
        if self.spent_by.is_none() {
            self.spent_by = raise.spend.cloned();
        }
        true
    }

    fn found(&self, before: Option<Token>, token: Token) -> Found {
        let spent_by = self.spent_by.clone();
        Found {
            before,
            era: self.era,
            spent_by: spent_by.filter(|_| self.token == token),
            given_back: self.given_back,
            open: self.open.clone(),
        }
    }

    fn row(&self, resource: &ResourceKey) -> MarkRow {
        MarkRow {
            resource: resource.clone(),
            token: self.token,
            spent: self.spent_by.is_some(),
            era: self.era,
            since_ms: self.changed_ms,
        }
    }
}

/// Marks: [`MarkStore`](crate::store::MarkStore).
impl Rows {
    pub fn advance(&mut self, batch: Batch<'_>) -> Vec<Found> {
        let asks = batch.asks.iter();
        asks.map(|ask| self.advance_one(batch, ask)).collect()
    }

    fn advance_one(&mut self, batch: Batch<'_>, ask: &Ask) -> Found {
        let mark = self.marks.get(&ask.resource);
        let before = mark.map(|mark| mark.token);
        let raise = Raise {
            era: batch.era,
            token: ask.token,
            spend: ask.spend.as_ref(),
            met: ask.needs.met_by(before),
            now_ms: self.now_ms,
        };
        let mut mark = match mark {
            Some(mark) => mark.clone(),
            None if ask.needs.present => {
                return Found {
                    before: None,
                    era: 0,
                    spent_by: None,
                    given_back: 0,
                    open: Vec::new(),
                };
            }
            None => Mark::new(&raise),
        };
        let current = mark.raise(&raise);
        let unused = |epoch: &Epoch| {
            epoch.instance == batch.instance
                && epoch.opening < batch.next
                && !batch.used.contains(&epoch.opening)
        };
        mark.open
            .retain(|epoch| !unused(epoch) && !self.is_over(epoch));
        mark.open
            .extend(ask.opening.filter(|_| current).map(|opening| Epoch {
                instance: batch.instance,
                opening,
                token: ask.token,
            }));
        let found = mark.found(before, ask.token);
        self.marks.insert(ask.resource.clone(), mark);
        found
    }

    pub fn look(&self, resources: &[ResourceKey]) -> Vec<(MarkRow, Found)> {
        let resources: BTreeSet<&ResourceKey> = resources.iter().collect();
        let rows = resources.into_iter();
        rows.filter_map(|resource| self.view(resource)).collect()
    }

    pub fn cede(&mut self, epochs: &[(ResourceKey, Epoch)]) -> Vec<ResourceKey> {
        let mut written = BTreeSet::new();
        for (resource, ceded) in epochs {
            if self.locked.contains(resource) {
                continue;
            }
            if let Some(mark) = self.marks.get_mut(resource) {
                let named = |epoch: &Epoch| {
                    epoch.instance == ceded.instance && epoch.opening == ceded.opening
                };
                mark.open.retain(|epoch| !named(epoch));
                written.insert(resource.clone());
            }
        }
        written.into_iter().collect()
    }

    pub fn repair(&mut self, repairs: &[Repair]) -> Vec<Found> {
        repairs.iter().map(|one| self.repair_one(one)).collect()
    }

    fn repair_one(&mut self, repair: &Repair) -> Found {
        let raise = Raise {
            era: repair.era,
            token: repair.token,
            spend: repair.spend.as_ref(),
            met: true,
            now_ms: self.now_ms,
        };
        let mark = self.marks.get(&repair.resource).cloned();
        let before = mark.as_ref().map(|mark| mark.token);
        let mut mark = mark.unwrap_or_else(|| Mark {
            era: repair.era,
            ..Mark::new(&raise)
        });
        mark.raise(&raise);
        mark.open.retain(|epoch| !self.is_over(epoch));
        for own in &repair.open {
            let same =
                |epoch: &Epoch| epoch.instance == own.instance && epoch.opening == own.opening;
            if !mark.open.iter().any(same) {
                mark.open.push(*own);
            }
        }
        let found = mark.found(before, repair.token);
        self.marks.insert(repair.resource.clone(), mark);
        found
    }

    pub fn give_back(&mut self, resource: &ResourceKey, token: Token, name: &str) {
        if let Some(mark) = self.marks.get_mut(resource)
            && mark.token == token
            && mark.spent_by.as_deref() == Some(name)
        {
            mark.spent_by = None;
            mark.given_back += 1;
        }
    }

    /// Whether the epoch's instance has published that, or has settled.
    pub fn is_over(&self, epoch: &Epoch) -> bool {
        let instance = self.instances.get(&epoch.instance);
        instance.is_some_and(|Instance { publication, .. }| {
            epoch.opening < publication.below && !publication.left.contains(&epoch.opening)
        })
    }

    /// The epochs of a resource that are not over.
    pub fn open(&self, resource: &ResourceKey) -> Vec<Epoch> {
        let open = self.marks.get(resource).into_iter();
        let open = open.flat_map(|mark| mark.open.iter().copied());
        open.filter(|epoch| !self.is_over(epoch)).collect()
    }
}

/// Instances: [`crate::store::Instances`].
impl Rows {
    pub fn join(&mut self, instance: InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        if self.instances.contains_key(&instance) {
            return Err(StoreError::Statement("the id is taken".to_owned()));
        }
        let row = InstanceRow {
            id: instance,
            terms: terms.clone(),
            dead: false,
            ended: false,
        };
        let row = Instance {
            row,
            settled: false,
            publication: Publication::default(),
        };
        self.instances.insert(instance, row);
        Ok(self.era)
    }

    pub fn renew(
        &mut self,
        instance: InstanceId,
        terms: &Terms,
        publication: &Publication,
    ) -> Renewal {
        match self.instances.get_mut(&instance) {
            Some(Instance { row, .. }) if row.dead => Renewal::Dead,
            Some(instance) => {
                let row = &mut instance.row;
                row.terms.renewals = row.terms.renewals.max(terms.renewals);
                row.terms.routes.clone_from(&terms.routes);
                instance.publication.clone_from(publication);
                Renewal::Alive(self.era)
            }
            None => Renewal::Unknown,
        }
    }

    pub fn raise_era(&mut self, era: Era) {
        self.era = self.era.max(era);
    }

    pub fn instances(&self) -> Vec<InstanceRow> {
        let rows = self.instances.values().filter(|one| !one.settled);
        rows.map(|one| one.row.clone()).collect()
    }

    pub fn declare_dead(&mut self, instance: InstanceId, renewals: i64) -> bool {
        self.instances.get_mut(&instance).is_none_or(|instance| {
            instance.row.dead |= instance.row.terms.renewals == renewals;
            instance.row.dead
        })
    }

    pub fn settle(&mut self, instance: InstanceId) -> bool {
        let row = self.instances.entry(instance).or_insert_with(|| Instance {
            row: InstanceRow::unknown(instance),
            settled: false,
            publication: Publication::default(),
        });
        if row.row.dead {
            row.end();
        }
        row.row.dead
    }

    pub fn leave(&mut self, instance: InstanceId, publication: &Publication) {
        let living = self.instances.get_mut(&instance);
        let Some(row) = living.filter(|one| !one.row.dead) else {
            return;
        };
        row.row.dead = true;
        row.publication.clone_from(publication);
        if publication.left.is_empty() {
            row.end();
        }
    }
}

impl Instance {
    /// It has settled: all its epochs are over.
    fn end(&mut self) {
        self.settled = true;
        self.publication = Publication {
            below: Opening::MAX,
            left: Vec::new(),
        };
    }
}

/// Operators: [`crate::store::Administration`].
impl Rows {
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: u32) -> Vec<MarkRow> {
        let marks = self.marks.iter().filter(|(key, _)| {
            let key = key.as_str();
            key.starts_with(prefix) && after.is_none_or(|after| key > after)
        });
        let rows = marks.map(|(key, mark)| mark.row(key));
        rows.take(limit as usize).collect()
    }

    pub fn view(&self, resource: &ResourceKey) -> Option<(MarkRow, Found)> {
        let mark = self.marks.get(resource)?;
        let found = Found {
            open: self.open(resource),
            ..mark.found(Some(mark.token), mark.token)
        };
        Some((mark.row(resource), found))
    }

    pub fn override_mark(
        &mut self,
        resource: &ResourceKey,
        token: Token,
        by: &Signature,
    ) -> Override {
        let open = self.open(resource);
        let Some(mark) = self.marks.get_mut(resource) else {
            return Override::Absent;
        };
        if !open.is_empty() {
            return Override::EpochsOpen(open);
        }
        let before = mark.token;
        self.era += 1;
        let era = self.era;
        (mark.token, mark.spent_by, mark.era) = (token, None, era);
        mark.changed_ms = self.now_ms;
        self.record_audit(resource, "override", (Some(before), Some(token)), by);
        Override::Done { before, era }
    }

    pub fn announce_prune(&mut self, me: InstanceId) -> (Era, Duration) {
        self.era += 1;
        let others = self.instances.values().map(|one| &one.row);
        let others = others.filter(|row| row.id != me && !row.dead);
        let longest = others.map(|row| row.terms.lease).max();
        (self.era, longest.unwrap_or_default())
    }

    /// One step reaches the end.
    pub fn prune(&mut self, step: &PruneStep) -> Pruned {
        let unchanged = i64::try_from(step.unchanged.as_millis()).unwrap_or(i64::MAX);
        let old = self.marks.iter().filter(|(key, mark)| {
            let (name, after) = (key.as_str(), step.after.as_deref());
            name.starts_with(&step.prefix)
                && after.is_none_or(|after| name > after)
                && mark.changed_ms < self.now_ms.saturating_sub(unchanged)
                && !self.locked.contains(*key)
        });
        let old: Vec<ResourceKey> = old.map(|(key, _)| key.clone()).collect();
        let (free, open): (HashSet<_>, HashSet<_>) =
            old.into_iter().partition(|key| self.open(key).is_empty());
        let mut done = Pruned {
            deleted: free.len() as u64,
            open: open.len() as u64,
            ..Pruned::default()
        };
        if !step.dry_run && !free.is_empty() {
            self.era += 1;
            done.era = Some(self.era);
            self.marks.retain(|key, _| !free.contains(key));
        }
        done
    }

    pub fn record_audit(
        &mut self,
        resource: &ResourceKey,
        action: &str,
        (before, after): (Option<Token>, Option<Token>),
        by: &Signature,
    ) {
        self.audit.push(AuditRow {
            resource: resource.clone(),
            action: action.to_owned(),
            before,
            after,
            reason: by.reason.clone(),
            actor: by.actor.clone(),
            at_ms: self.now_ms,
        });
    }

    pub fn audit(&self, resource: &ResourceKey, limit: u32) -> Vec<AuditRow> {
        let rows = self.audit.iter().rev();
        let rows = rows.filter(|row| row.resource == *resource);
        rows.take(limit as usize).cloned().collect()
    }

    pub fn record_routes(&mut self, known: Option<&str>, document: &str) -> bool {
        let same = self.routes.as_deref() == known;
        if same {
            self.routes = Some(document.to_owned());
        }
        same
    }

    pub fn replace_routes(&mut self, document: &str) -> Vec<InstanceRow> {
        let mut present = self.instances();
        if present.is_empty() {
            let epochs = self.marks.values().flat_map(|mark| &mark.open);
            let ids: BTreeSet<InstanceId> = epochs.map(|epoch| epoch.instance).collect();
            let unknown = ids.into_iter();
            let unknown = unknown.filter(|id| !self.instances.contains_key(id));
            present = unknown.map(InstanceRow::unknown).collect();
        }
        if present.is_empty() {
            self.routes = Some(document.to_owned());
        }
        present
    }
}
