//! The operators' acts, over [`Fencing`]: implements the admin API's [`Control`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::admin::{Control, ControlError, MarkView, UnknownView};
use crate::fencing::epochs::UnknownOutcome;
use crate::fencing::{Fencing, Refused, Undecided};
use crate::routing::{Decision, ResourceKey, Token};
use crate::store::{AuditRow, EpochRow, MarkRow, Notification, Override, StoreError};

/// How often an override waits for this instance's own idle epochs to be closed, and how long each
/// time.
const PATIENCE: (u32, Duration) = (20, Duration::from_millis(50));

/// The core, for the admin API.
pub(super) struct Core {
    pub fencing: Arc<Fencing>,
}

/// An unknown outcome of this run is named by its instance and a number. The instance is part of
/// it, since the number alone would name something else at another proxy, or after a restart.
fn own_id(unknown: &UnknownOutcome) -> String {
    format!("{}.{}", unknown.instance, unknown.number)
}

/// One that was inherited is named by its epoch, all that is unknown of it together.
fn inherited_id(row: &EpochRow) -> String {
    format!("{}/{}", row.instance, row.opening)
}

impl Core {
    async fn audit_row(
        &self,
        resource: &ResourceKey,
        action: &str,
        tokens: (Option<Token>, Option<Token>),
        reason: &str,
        actor: &str,
    ) -> Result<(), StoreError> {
        let row = AuditRow {
            resource: resource.clone(),
            action: action.to_owned(),
            before: tokens.0,
            after: tokens.1,
            reason: reason.to_owned(),
            actor: actor.to_owned(),
            at_ms: 0,
        };
        self.fencing.store.record_audit(&row).await
    }

    async fn announce(&self, news: Notification) {
        if let Err(error) = self.fencing.store.announce(&[news]).await {
            tracing::debug!(%error, "an announcement was lost; the other instances will look");
        }
    }

    /// Whether these epochs are all of this instance, and nothing is in flight or settling under
    /// them.
    fn are_idle_here(&self, resource: &ResourceKey, rows: &[EpochRow]) -> bool {
        let me = self.fencing.lease.identity().instance;
        rows.iter().all(|row| row.instance == me) && !self.fencing.epoch_table.busy(resource)
    }
}

#[async_trait]
impl Control for Core {
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        self.fencing.store.list(prefix, after, limit).await
    }

    async fn view(&self, resource: &ResourceKey) -> Result<Option<MarkView>, StoreError> {
        let Some((row, epochs)) = self.fencing.store.view(resource).await? else {
            return Ok(None);
        };
        let activity = self.fencing.epoch_table.activity(resource);
        let own = activity.unknown.into_iter().map(|unknown| UnknownView {
            id: own_id(&unknown),
            token: unknown.token,
            settles_in: Some(unknown.settles_in),
            instance: unknown.instance.to_string(),
            inherited: false,
        });
        let now = self.fencing.lease.clock().now();
        let me = self.fencing.lease.identity().instance;
        let others = epochs.iter().filter(|row| row.instance != me);
        let inherited = others.filter_map(|row| {
            Some(UnknownView {
                id: inherited_id(row),
                token: row.token,
                settles_in: Some(self.fencing.detector.settles_in(&row.instance, now)?),
                instance: row.instance.to_string(),
                inherited: true,
            })
        });
        Ok(Some(MarkView {
            row,
            in_flight: activity.in_flight,
            waiting: activity.waiting,
            unknown: own.chain(inherited).collect(),
            epochs,
        }))
    }

    async fn advance(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Decision, ControlError> {
        let before = self
            .fencing
            .store
            .mark(resource)
            .await?
            .map(|row| row.token);
        let era = self.fencing.epoch_table.era();
        let decision = match self.fencing.raise(None, resource, token).await {
            Ok(true) => Decision::Advanced,
            Ok(false) => Decision::Current,
            Err(Refused::Stale { mark, .. }) => Decision::Stale { mark },
            Err(Refused::Unavailable {
                why: Undecided::NoAnswer(error),
                ..
            }) => return Err(StoreError::Connection(error.to_string()).into()),
            Err(refused) => {
                let error = format!("bounds were held against an operator: {refused:?}");
                return Err(StoreError::Statement(error).into());
            }
        };
        if decision == Decision::Advanced {
            // Who serves an older token from memory hears of it now, and not with its next poll.
            self.announce(Notification::Newer {
                resource: resource.clone(),
                token,
                era,
                owner: None,
            })
            .await;
            self.audit_row(resource, "advance", (before, Some(token)), reason, actor)
                .await?;
        }
        Ok(decision)
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, ControlError> {
        // An override gets an era that nobody knows yet, whatever a failover has lost.
        let known = self.fencing.epoch_table.era();
        if known > 0 {
            self.fencing.store.raise_era(known).await?;
        }
        for attempt in 0..PATIENCE.0 {
            // Epochs that are open here and idle hold nobody's work: they are closed first.
            self.fencing.epoch_table.release(resource);
            let done = self
                .fencing
                .store
                .override_mark(resource, token, reason, actor)
                .await?;
            match done {
                Override::EpochsOpen(rows) if self.are_idle_here(resource, &rows) => {
                    if attempt == 1 {
                        // It may be one whose answer was lost, of which nothing is known here.
                        self.fencing.writer.reconcile();
                    }
                    tokio::time::sleep(PATIENCE.1).await;
                }
                Override::Done { era, .. } => {
                    self.fencing.epoch_table.adopt(era);
                    return Ok(done);
                }
                Override::EpochsOpen(_) | Override::Absent => return Ok(done),
            }
        }
        let rows = self.fencing.store.open_epochs(resource).await?;
        Ok(Override::EpochsOpen(rows))
    }

    async fn resolve(
        &self,
        resource: &ResourceKey,
        unknown_id: &str,
        reason: &str,
        actor: &str,
    ) -> Result<bool, ControlError> {
        let epoch_table = &self.fencing.epoch_table;
        let activity = epoch_table.activity(resource);
        let own = activity.unknown.iter();
        if let Some(unknown) = own.clone().find(|own| own_id(own) == unknown_id) {
            if self.fencing.lease.is_over() {
                return Err(ControlError::Refused(
                    "this proxy has drained and closes no epochs any more: resolve it at a proxy that serves, once \
                     that one counts this one as dead"
                        .into(),
                ));
            }
            // On record first: it is known now because somebody vouches for it.
            let tokens = (Some(unknown.token), Some(unknown.token));
            self.audit_row(resource, "resolve", tokens, reason, actor)
                .await?;
            return Ok(epoch_table.settled(resource, unknown.number));
        }
        let rows = self.fencing.store.open_epochs(resource).await?;
        let Some(row) = rows.into_iter().find(|row| inherited_id(row) == unknown_id) else {
            return Ok(false);
        };
        if !self.fencing.detector.is_dead(&row.instance) {
            return Err(ControlError::Refused(format!(
                "epoch {unknown_id} belongs to an instance that is not known to be dead: resolve its unknown \
                 outcomes at that instance"
            )));
        }
        let tokens = (Some(row.token), Some(row.token));
        self.audit_row(resource, "resolve", tokens, reason, actor)
            .await?;
        self.fencing.store.close(&[row]).await?;
        self.fencing.writer.look(resource.clone());
        self.announce(Notification::Closed {
            resource: resource.clone(),
        })
        .await;
        Ok(true)
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.fencing.store.audit(resource, limit).await
    }

    fn refresh(&self) {
        self.fencing.refresh_gauges();
    }
}
