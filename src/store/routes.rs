//! [`RouteRecord`]: the route table that this instance serves, beside the one on record and those
//! of the other instances.
//!
//! Every instance of the namespace may serve the table on record. A table that gives a request
//! another key than one on record, or lets it pass unjudged by `bypass`, is refused. An instance compares its table *after* it is on
//! record and *before* its lease begins. An operator can replace the table
//! ([`replace_routes`](crate::store::Administration::replace_routes)) only if every instance of the
//! namespace has settled, and none can join meanwhile. So either the replacement sees the instance,
//! or the instance sees the new table.

use std::sync::{Arc, Mutex};

use prometheus::IntGauge;

use crate::config::{Finding, RouteTable};
use crate::locked::locked;
use crate::store::{InstanceId, InstanceRow, MarkStore, StoreError};

/// How often others may record a table between a read and a write of this instance.
const TRIES: usize = 10;
/// How many findings a refusal names.
const SHOWN: usize = 3;

/// See the module's documentation.
#[derive(Debug)]
pub struct RouteRecord {
    /// The table that is served.
    served: Mutex<Arc<RouteTable>>,
    /// The living instances with another table, as of the last read.
    others: Mutex<Vec<InstanceId>>,
    /// How many there are.
    mismatch: IntGauge,
}

impl RouteRecord {
    #[must_use]
    pub fn new(table: RouteTable, mismatch: IntGauge) -> Self {
        Self {
            served: Mutex::new(Arc::new(table)),
            others: Mutex::default(),
            mismatch,
        }
    }

    /// The digest of the table that is served.
    pub fn digest(&self) -> String {
        self.served().digest()
    }

    /// Checks and records the table that is served, as [`record`] does. For an instance that
    /// starts: its lease may begin only after this.
    pub async fn confirm(&self, store: &dyn MarkStore) -> Result<Vec<Finding>, StoreError> {
        let table = self.served();
        let (recorded, findings) = record(store, &table).await?;
        let mut served = locked(&self.served);
        // A reload may have come between.
        if Arc::ptr_eq(&served, &table) {
            *served = Arc::new(recorded);
        }
        Ok(findings)
    }

    /// Checks a table that is to be served: against the one on record, and against the one that is
    /// served, whose record a failover may have lost. [`record`] and [`Self::serve`] must
    /// follow. Returns it with what it has to remember, and how it differs from the one that is
    /// served.
    pub async fn check(
        &self,
        store: &dyn MarkStore,
        table: &RouteTable,
    ) -> Result<(RouteTable, Vec<Finding>), StoreError> {
        let served = self.served();
        let (table, findings) = served.replaced_by(table);
        refuse_losses(&findings)?;
        refuse_losses(&compare(store.routes().await?.as_deref(), &table)?.1)?;
        Ok((table, findings))
    }

    /// Serves this table from now on.
    pub fn serve(&self, table: RouteTable) {
        *locked(&self.served) = Arc::new(table);
    }

    /// The living instances that serve another table, as of the last read.
    pub fn others(&self) -> Vec<InstanceId> {
        locked(&self.others).clone()
    }

    /// Updates [`Self::others`] from one read of the instances.
    pub fn observe(&self, me: InstanceId, rows: &[InstanceRow]) {
        let digest = self.digest();
        let differs = |row: &&InstanceRow| !row.dead && row.terms.routes != digest;
        let differing = rows.iter().filter(|row| row.id != me).filter(differs);
        let mut now: Vec<InstanceId> = differing.map(|row| row.id).collect();
        now.sort();
        self.mismatch
            .set(i64::try_from(now.len()).unwrap_or(i64::MAX));
        let mut others = locked(&self.others);
        for other in now.iter().filter(|id| !others.contains(id)) {
            tracing::warn!(instance = %me, %other,
                "two live instances of the namespace have different route tables, if only by the name of \
                 a capture: a route that one of them lacks protects nothing until both have it");
        }
        if now.is_empty() && !others.is_empty() {
            tracing::info!(instance = %me, "all live instances have the same route table again");
        }
        *others = now;
    }

    fn served(&self) -> Arc<RouteTable> {
        Arc::clone(&locked(&self.served))
    }
}

/// The table with what it has to remember of the one on record, if there is one, and how they
/// differ.
pub fn compare(
    recorded: Option<&str>,
    table: &RouteTable,
) -> Result<(RouteTable, Vec<Finding>), StoreError> {
    let Some(document) = recorded else {
        return Ok((table.clone(), Vec::new()));
    };
    match RouteTable::from_document(document) {
        Ok(old) => Ok(old.replaced_by(table)),
        Err(error) => Err(StoreError::Unfit(format!(
            "the route table in the store cannot be compared with the configuration's ({error}): run \
             the fencepost that has recorded it, or a newer one"
        ))),
    }
}

/// Refuses a table that gives a request another key than the one on record, or lets it pass
/// without a look. Records any other table in its place. Returns what it has recorded, and the
/// differences.
pub async fn record(
    store: &dyn MarkStore,
    table: &RouteTable,
) -> Result<(RouteTable, Vec<Finding>), StoreError> {
    for _ in 0..TRIES {
        let recorded = store.routes().await?;
        let known = recorded.as_deref();
        let (table, findings) = compare(known, table)?;
        refuse_losses(&findings)?;
        let document = table.to_document();
        if known == Some(&*document) || store.record_routes(known, &document).await? {
            return Ok((table, findings));
        }
    }
    Err(StoreError::Statement(
        "other instances keep recording other route tables".to_owned(),
    ))
}

fn refuse_losses(findings: &[Finding]) -> Result<(), StoreError> {
    let losses = findings.iter().filter(|finding| finding.change.is_loss());
    let losses: Vec<String> = losses.map(|loss| format!("\n  {}", loss.message)).collect();
    if losses.is_empty() {
        return Ok(());
    }
    let more = match losses.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    let shown = losses[..losses.len().min(SHOWN)].concat();
    Err(StoreError::Unfit(format!(
        "the routes could let older tokens pass, since requests get another key than the one on \
         record, have none any more, or are no longer fenced:{shown}{more}\n\
         if this is intended, stop every proxy of the namespace, and run `fencepost migrate \
         --accept-new-keys` with the new configuration before they start (docs/configuration.md, \"When the \
         routes change\")"
    )))
}
