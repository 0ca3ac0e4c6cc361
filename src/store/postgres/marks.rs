//! [`MarkStore`] for [`PostgresStore`], and the proof at the start that the server can hold marks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{FromRow as _, PgConnection, Postgres};
use tokio::sync::mpsc;

use super::connect::Phase;
use super::slot::DedicatedConnection;
use super::statements::{ADVANCE, ADVANCE_ONE, CEDE, REPAIR};
use super::{LANES, PostgresStore, UNREAD_NOTIFICATIONS, is_current, notifications, options};
use crate::config::Secret;
use crate::routing::{ResourceKey, Token};
use crate::store::engine::Value::{Numbers, Text, Texts};
use crate::store::engine::{Turn, json};
use crate::store::instances::TOUCH;
use crate::store::rows::{self, Failure, FoundColumns};
use crate::store::{
    Batch, Epoch, Era, Found, Heard, Instances as _, Lane, MarkStore, Notification, Repair,
    StoreError,
};

#[async_trait]
impl MarkStore for PostgresStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        let address = &self.connector.address;
        let mut current = self.prove().await?;
        if !current && self.migrate {
            super::migrate(address.clone()).await?;
            current = self.prove().await?;
        }
        if !current {
            return Err(rows::schema_behind());
        }
        // The configuration's checks have already warned of a URL in it.
        if matches!(address.url, Secret::File(_)) && options::is_open_to_others(address) {
            tracing::warn!(
                "the server that store.url_file names is not verified: any machine on the way to it can \
                 read and change marks"
            );
        }
        Ok(())
    }

    fn servers(&self) -> u64 {
        self.connector.servers()
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }

    fn lanes(&self) -> usize {
        LANES
    }

    async fn advance(&self, lane: Lane, batch: Batch<'_>) -> Result<Vec<Found>, StoreError> {
        let asks = batch.asks;
        let slot = match lane {
            Lane::Main(lane) => &self.lanes[lane],
            Lane::Aside => &self.aside,
        };
        let sql = match asks {
            [_] => ADVANCE_ONE,
            _ => ADVANCE,
        };
        let statement = self
            .query(sql)
            .bind(batch.era)
            .bind(batch.instance.get())
            .bind(batch.next)
            .bind(batch.used)
            .bind(each(asks, |ask| ask.resource.as_str()))
            .bind(each(asks, |ask| ask.token.get()))
            .bind(each(asks, |ask| ask.opening))
            .bind(each(asks, |ask| ask.spend.as_deref()))
            .bind(each(asks, rows::least))
            .bind(each(asks, |ask| ask.needs.present));
        let asked = asks.iter();
        let asked = asked.map(|ask| (&ask.resource, ask.token, ask.needs.present));
        self.found(slot, statement, asked).await
    }

    async fn cede(&self, epochs: &[(ResourceKey, Epoch)]) -> Result<Vec<ResourceKey>, StoreError> {
        let named = vec![
            Texts(each(epochs, |(resource, _)| resource.to_string())),
            Numbers(each(epochs, |(_, epoch)| epoch.instance.get())),
            Numbers(each(epochs, |(_, epoch)| epoch.opening)),
            Text(self.channel.clone()),
        ];
        let key = |(resource,)| rows::key(resource);
        self.engine().fetch(Turn::Cede, CEDE, named, key).await
    }

    /// Over the connection of [`Self::cede`]: a row that is locked is waited for, and that must
    /// hold up neither a request nor a renewal.
    async fn repair(&self, repairs: &[Repair]) -> Result<Vec<Found>, StoreError> {
        let open = |repair: &Repair| {
            let numbers = rows::triples(&repair.open);
            let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
            format!("{{{}}}", numbers.join(","))
        };
        let mut all = Vec::with_capacity(repairs.len());
        for same in repairs.chunk_by(|one, other| one.era == other.era) {
            let statement = self
                .query(REPAIR)
                .bind(same[0].era)
                .bind(each(same, |repair| repair.resource.as_str()))
                .bind(each(same, |repair| repair.token.get()))
                .bind(each(same, |repair| repair.spend.as_deref()))
                .bind(each(same, open));
            let asked = same.iter();
            let asked = asked.map(|repair| (&repair.resource, repair.token, false));
            all.extend(self.found(&self.ceding, statement, asked).await?);
        }
        Ok(all)
    }

    async fn notify(&self, notifications: &[Notification]) -> Result<(), StoreError> {
        let payloads = Texts(each(notifications, json));
        let values = vec![Text(self.channel.clone()), payloads];
        let sql = "SELECT pg_notify($2, payload) FROM unnest($3::text[]) AS payload";
        let sent = self.engine().change(Turn::Notify, sql, values);
        sent.await.map(drop)
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (heard, receiver) = mpsc::channel(UNREAD_NOTIFICATIONS);
        let listening =
            notifications::listen(Arc::clone(&self.connector), self.channel.clone(), heard);
        tokio::spawn(listening);
        Some(receiver)
    }
}

impl PostgresStore {
    /// Proves a new connection. Returns whether the schema is current; then rows can be written.
    async fn prove(&self) -> Result<bool, StoreError> {
        let proof = self.operators.run(Phase::Start, async |c, _| {
            let current = is_current(c).await?;
            if current {
                all_are_logged(c).await?;
                let _: (Era,) = self.session(c).one(TOUCH, vec![]).await?;
            }
            Ok(current)
        });
        proof.await
    }

    /// Runs a statement about marks, and gives the answers to what was asked, as [`rows::found`].
    async fn found<'k>(
        &self,
        slot: &DedicatedConnection,
        statement: Query<'_, Postgres, PgArguments>,
        asked: impl Iterator<Item = (&'k ResourceKey, Token, bool)>,
    ) -> Result<Vec<Found>, StoreError> {
        let answer = slot.run(Phase::Running, async |c, _| {
            let rows = statement.fetch_all(c).await?;
            let rows: Result<Vec<_>, _> = rows.iter().map(FoundColumns::from_row).collect();
            Ok(rows?)
        });
        rows::found(&answer.await?, asked, |open: &Vec<i64>| rows::epochs(open))
    }
}

/// Fails if a crash of the server would empty one of the tables, since it is not in the server's
/// log, nor on a standby.
async fn all_are_logged(connection: &mut PgConnection) -> Result<(), Failure> {
    let unlogged: Vec<String> = sqlx::query_scalar(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relpersistence <> 'p' AND c.oid IN \
         (to_regclass('namespaces'), to_regclass('marks'), to_regclass('instances'))",
    )
    .fetch_all(connection)
    .await?;
    let Some(table) = unlogged.first() else {
        return Ok(());
    };
    Err(Failure::Store(StoreError::Unfit(format!(
        "the table {table} is UNLOGGED: a crash of the server empties it, and a standby does not have it. Run as its \
         owner: ALTER TABLE {table} SET LOGGED"
    ))))
}

/// A column of an argument.
fn each<'a, T, V>(items: &'a [T], column: impl Fn(&'a T) -> V) -> Vec<V> {
    items.iter().map(column).collect()
}
