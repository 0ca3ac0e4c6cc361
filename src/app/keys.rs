//! Changes of the route table, which names the marks: what the log says about a new one, and
//! `fencepost migrate`, which records one that changes keys.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::boot_clock::BootClock;
use crate::config::{Create, Finding, RouteTable, Settings, StoreTarget, TableChange};
use crate::fencing::failure_detector::{FailureDetector, Read};
use crate::fencing::reckoning;
use crate::store::postgres::PostgresStore;
use crate::store::reckoning::Reckoning;
use crate::store::routes::compare;
use crate::store::sqlite::{self, SqliteStore};
use crate::store::{InstanceId, InstanceRow, MarkStore};

/// The interval at which `migrate` reads the remaining instances.
const LOOK: Duration = Duration::from_millis(250);

/// Logs what a new route table changes for requests: all but the paths that no route took before.
pub(super) fn tell(findings: &[Finding]) {
    let changes = findings.iter().filter(|f| f.change != TableChange::Added);
    for finding in changes {
        tracing::warn!(
            finding = finding.message,
            "the new routes treat some requests differently"
        );
    }
}

/// The work of `migrate` besides the schema.
#[derive(Debug, Args)]
pub struct Migration {
    /// Replace the recorded routes with those of the file, whatever changes. Marks under the old
    /// keys no longer stop anybody, so make sure that no older holder is left. Stop every proxy of
    /// the namespace first; this is refused while one is alive. It waits until their requests in
    /// flight have settled.
    #[arg(long)]
    accept_new_keys: bool,
    /// Accept the file of an embedded store that a start refuses because it has lost commits. Its
    /// marks may be lower than before, so make sure that no older holder is left. It first waits
    /// for `store.lease`, twice `barrier.settle` and more, until requests in flight have settled.
    /// If it is interrupted, nothing changes.
    #[arg(long)]
    accept_lost_marks: bool,
}

/// Brings the schema up to date, and does what `migration` says. `routes_given`: somebody wrote the
/// routes of the configuration. If not, they are those of the default, and say nothing about the
/// proxies of the namespace. `say` gets a report of each step, in lines for operators. An error if
/// proxies with these routes would not start.
pub async fn migrate(
    settings: &Settings,
    migration: &Migration,
    routes_given: bool,
    mut say: impl FnMut(String),
) -> anyhow::Result<()> {
    anyhow::ensure!(
        routes_given || !migration.accept_new_keys,
        "--accept-new-keys: no routes are given; name the configuration of the proxies with --config"
    );
    let target = &settings.store;
    let store: Box<dyn MarkStore> = match &target.target {
        StoreTarget::Sqlite { path } => {
            if migration.accept_lost_marks {
                accept_lost_marks(path, settings, &mut say).await?;
            }
            let (timeout, namespace) = (target.timeout.0, &target.namespace);
            let store =
                SqliteStore::open(path, timeout, true, namespace, Create::IfMissing).await?;
            if store.opened.created {
                let path = store.opened.path.display();
                say(format!("created a new store at {path}"));
            }
            Box::new(store)
        }
        StoreTarget::Postgres(url) => {
            anyhow::ensure!(
                !migration.accept_lost_marks,
                "--accept-lost-marks: only the file of a SQLite store is refused for lost marks"
            );
            let (address, timeout) = (target.address(url, None), target.timeout.0);
            Box::new(PostgresStore::open(address, &target.namespace, timeout, true).await?)
        }
    };
    say("the schema is up to date".to_owned());
    let done = if routes_given {
        migrate_routes(&*store, settings, migration.accept_new_keys, &mut say).await
    } else {
        say("no routes are given (--config), so none were compared".to_owned());
        Ok(())
    };
    store.disconnect().await;
    done
}

/// Waits first: epochs were lost with the commits, and their requests may still run. Requests that
/// run for longer than the terms of this configuration are not waited for.
async fn accept_lost_marks(
    path: &Path,
    settings: &Settings,
    say: &mut impl FnMut(String),
) -> anyhow::Result<()> {
    let Some(lost) = sqlite::lost_marks(path).await? else {
        say("the file has lost nothing that could be noticed".to_owned());
        return Ok(());
    };
    let (lease, settle) = (settings.store.lease.0, settings.barrier.settle.0);
    let wait =
        Reckoning::shared(lease, settings.upstream.undelivered.0, settle).after_lost_commits();
    say(format!(
        "the file has lost commits. Waiting until what they may have left in flight has settled: \
         {} s",
        wait.as_secs() + 1
    ));
    tokio::time::sleep(wait).await;
    lost.accept().await?;
    say("marks accepted as they are; lost marks no longer protect their resources".to_owned());
    Ok(())
}

async fn migrate_routes(
    store: &dyn MarkStore,
    settings: &Settings,
    accept_new_keys: bool,
    say: &mut impl FnMut(String),
) -> anyhow::Result<()> {
    let table = RouteTable::of(&settings.routes, settings.unmatched);
    let (recorded, findings) = compare(store.routes().await?.as_deref(), &table)?;
    for finding in &findings {
        say(finding.message.clone());
    }
    let is_loss = findings.iter().any(|finding| finding.change.is_loss());
    let forgets = accept_new_keys && recorded.remembers();
    if !is_loss && !forgets {
        say("no request changes its key: proxies with these routes may start".to_owned());
        return Ok(());
    }
    anyhow::ensure!(
        accept_new_keys,
        "a proxy with these routes will not start: stop every proxy of the namespace, and run this \
         again with --accept-new-keys"
    );
    if forgets {
        say("earlier routes that do not enforce now are no longer remembered".to_owned());
    }
    replace_settled(store, settings, &table.to_document(), say).await?;
    say(
        "the routes are on record; marks under keys that have changed no longer protect anything"
            .to_owned(),
    );
    Ok(())
}

/// Replaces the table once nothing can be in flight under the old keys. In place of a proxy, since
/// none runs, it declares the silent instances dead, and records what has settled.
async fn replace_settled(
    store: &dyn MarkStore,
    settings: &Settings,
    document: &str,
    say: &mut impl FnMut(String),
) -> anyhow::Result<()> {
    let reckoning = reckoning(store, settings);
    let (detector, clock) = (FailureDetector::new(reckoning), BootClock::boottime());
    // The counters as they were first seen.
    let mut seen: HashMap<InstanceId, i64> = HashMap::new();
    // The ids that only epochs know, which are found by reading all marks.
    let mut unknown: Vec<InstanceRow> = Vec::new();
    let mut said = false;
    loop {
        let sent = clock.now();
        let mut rows = store.instances().await?;
        rows.extend(unknown.iter().cloned());
        let read = Read {
            connection: store.instances_over(),
            sent,
            answered: clock.now(),
        };
        if rows.is_empty() {
            // An instance that joins now is seen by the replacement.
            unknown = store.replace_routes(document).await?;
            if unknown.is_empty() {
                return Ok(());
            }
            unknown.retain(InstanceRow::is_unknown);
            continue;
        }
        if !std::mem::replace(&mut said, true) {
            say(waiting_for(&rows, &reckoning));
        }
        for row in rows.iter_mut().filter(|row| !row.dead) {
            if !store.shared() {
                // Only one process can have the file, and this is it.
                row.dead = store.declare_dead(row.id, row.terms.renewals).await?;
                continue;
            }
            let first = *seen.entry(row.id).or_insert(row.terms.renewals);
            anyhow::ensure!(
                first == row.terms.renewals,
                "instance {} of namespace {} is alive and serves the routes on record: its requests \
                 are in flight under the old keys. Stop every proxy of the namespace, and run this again",
                row.id,
                settings.store.namespace,
            );
        }
        let nobody = InstanceId::from_row(-1);
        let verdict = detector.observe(nobody, &rows, read);
        for (id, renewals) in verdict.silent {
            if store.declare_dead(id, renewals).await? {
                detector.declared(id, clock.now());
            }
        }
        for id in verdict.settled {
            store.settle(id).await?;
            unknown.retain(|row| row.id != id);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn waiting_for(rows: &[InstanceRow], reckoning: &Reckoning) -> String {
    let longest = rows.iter().map(|row| {
        let silence = reckoning.silence(row.terms.lease) * u32::from(!row.dead);
        silence + reckoning.after_death_of(row)
    });
    let longest = longest.max().unwrap_or_default().as_secs() + 1;
    format!(
        "instances on record: {}. Waiting until what they may have left in flight has settled: \
         {longest} s or somewhat more, if none of them runs",
        rows.len()
    )
}
