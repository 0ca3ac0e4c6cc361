//! [`Marks`] for [`PostgresStore`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::Postgres;
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use tokio::sync::mpsc;

use super::errors::bounded;
use super::slot::DedicatedConnection;
use super::statements::{ADVANCE, ADVANCE_ONE, CEDE, REPAIR};
use super::{LANES, PostgresStore, UNREAD_NOTIFICATIONS, notifications};
use crate::routing::{ResourceKey, Token};
use crate::store::engine::Value::{Numbers, Text, Texts};
use crate::store::engine::{Engine as _, Turn};
use crate::store::rows::{self, Failure};
use crate::store::{
    Ask, Batch, Epoch, Found, Heard, Lane, Marks, Notification, Repair, StoreError,
};

#[async_trait]
impl Marks for PostgresStore {
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
        let keys = asks.iter().map(|ask| (&ask.resource, ask.token));
        let found = self.found(slot, statement, keys).await?;
        let made =
            |(ask, found): (&Ask, Option<Found>)| found.map_or_else(|| rows::not_made(ask), Ok);
        asks.iter().zip(found).map(made).collect()
    }

    async fn cede(&self, epochs: &[(ResourceKey, Epoch)]) -> Result<Vec<ResourceKey>, StoreError> {
        let named = vec![
            Texts(each(epochs, |(resource, _)| resource.to_string())),
            Numbers(each(epochs, |(_, epoch)| epoch.instance.get())),
            Numbers(each(epochs, |(_, epoch)| epoch.opening)),
            Text(self.channel.clone()),
        ];
        let key = |(resource,): (String,)| rows::key(&resource);
        self.fetch(Turn::Cede, CEDE, named, key).await
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
            let keys = same.iter().map(|repair| (&repair.resource, repair.token));
            let found = self.found(&self.ceding, statement, keys).await?;
            all.extend(found);
        }
        let all: Option<Vec<Found>> = all.into_iter().collect();
        all.ok_or_else(|| StoreError::Statement("a repair has not made its row".to_owned()))
    }

    async fn notify(&self, notifications: &[Notification]) -> Result<(), StoreError> {
        let payloads = notifications.iter().filter_map(notifications::encode);
        let values = vec![Text(self.channel.clone()), Texts(payloads.collect())];
        let sql = "SELECT pg_notify($2, payload) FROM unnest($3::text[]) AS payload";
        self.change(Turn::Notify, sql, values).await.map(drop)
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
    /// Runs a statement that returns rows, within the timeout; gives that of each key, whose token
    /// was asked for.
    async fn found<'k>(
        &self,
        slot: &DedicatedConnection,
        statement: Query<'_, Postgres, PgArguments>,
        keys: impl Iterator<Item = (&'k ResourceKey, Token)>,
    ) -> Result<Vec<Option<Found>>, StoreError> {
        bounded(self.timeout, async {
            let mut turn = slot.turn().await?;
            let found = turn.line.run(async |c| {
                let answer = statement.fetch_all(c).await?;
                let mut by_key = HashMap::with_capacity(answer.len());
                for row in &answer {
                    by_key.insert(row.try_get::<&str, _>(0)?, row);
                }
                let row = |(key, token): (&ResourceKey, Token)| {
                    let row = by_key.get(key.as_str());
                    row.map(|row| found(row, token)).transpose()
                };
                keys.map(row).collect()
            });
            let found = found.await?;
            turn.done();
            Ok(found)
        })
        .await
    }
}

fn found(row: &PgRow, token: Token) -> Result<Found, Failure> {
    let mark: i64 = row.try_get(1)?;
    let spent_by: Option<String> = row.try_get(4)?;
    let open: Vec<i64> = row.try_get(6)?;
    Ok(Found {
        before: rows::before(row.try_get(2)?)?,
        era: row.try_get(3)?,
        spent_by: spent_by.filter(|_| mark == token.get()),
        given_back: row.try_get(5)?,
        open: rows::epochs(&open)?,
    })
}

/// A column of an argument.
fn each<'a, T, V>(items: &'a [T], column: impl Fn(&'a T) -> V) -> Vec<V> {
    items.iter().map(column).collect()
}
