//! The contract of [`MarkStore`]: tests run over both stores, most of them in a [small
//! language](script). Promises that only one engine can show (a killed server, a pooler, a second
//! process on the file) are in modules of their own.

/// Runs each of these over both stores: functions that take a [`Home`], and scripts. `in_company`:
/// again with a second ask beside, since Postgres has another statement for a batch of one.
macro_rules! contract {
    (in_company { $($code:ident),* } $($(#[$doc:meta])* $name:ident: $script:literal)*) => {
        contract! { { $($code),* } $($(#[$doc])* $name: $script)* }
        mod over_postgres_in_company {
            contract! { @each crate::support::Store::postgres().await, true; $($code)* $($name)* }
        }
    };
    ({ $($code:ident),* } $($(#[$doc:meta])* $name:ident: $script:literal)*) => {
        $($(#[$doc])* async fn $name(home: Home) { super::script::play(home, $script).await; })*
        mod over_sqlite {
            contract! { @each Some(crate::support::Store::sqlite()), false; $($code)* $($name)* }
        }
        mod over_postgres {
            contract! { @each crate::support::Store::postgres().await, false; $($code)* $($name)* }
        }
    };
    (@each $store:expr, $in_company:literal; $($test:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            use crate::store::contract::{Home, IN_COMPANY};
            if let Some(store) = $store {
                IN_COMPANY.scope($in_company, super::$test(Home(store))).await;
            }
        }
    )*};
}

mod concurrent;
mod epochs;
mod life;
mod marks;
mod needs;
mod only_postgres;
mod only_sqlite;
mod operations;
mod operators;
mod plans;
mod prune;
mod script;

use std::sync::Arc;
use std::time::Duration;

use fencepost::config::Create;
use fencepost::routing::{Needs, ResourceKey, Token};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{
    Ask, Batch, Epoch, Found, InstanceId, Lane, MarkRow, MarkStore, Opening, Signature, StoreError,
};
use sqlx::Connection as _;

use crate::support::sql::sqlite;
use crate::support::store::address;
use crate::support::{Must, Store};

const TIMEOUT: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// True: batches have another ask besides, so that Postgres takes none for a batch of one.
    static IN_COMPANY: bool;
}

/// Where a store's data lives: outlives the store, so that a test can look again.
struct Home(Store);

impl Home {
    async fn open(&self) -> Arc<dyn MarkStore> {
        self.open_in("test").await
    }

    async fn open_in(&self, namespace: &str) -> Arc<dyn MarkStore> {
        self.try_open(namespace, true).must().await
    }

    /// A dropped `SQLite` store gives up its file in the background, and is waited for.
    async fn try_open(
        &self,
        namespace: &str,
        migrate: bool,
    ) -> Result<Arc<dyn MarkStore>, StoreError> {
        if self.0.is_shared() {
            let address = address(&self.0.url());
            let store = PostgresStore::open(address, namespace, TIMEOUT, migrate);
            return Ok(Arc::new(store.await?));
        }
        let (path, deadline) = (self.0.path(), tokio::time::Instant::now() + TIMEOUT);
        loop {
            match SqliteStore::open(&path, TIMEOUT, migrate, namespace, Create::IfMissing).await {
                Err(error) if error.to_string().contains("in use") => {
                    assert!(tokio::time::Instant::now() < deadline, "{error}");
                    tokio::task::yield_now().await;
                }
                opened => return Ok(Arc::new(opened?)),
            }
        }
    }

    /// Drops the store and opens another one over fresh connections: what it shows was durable.
    async fn reopen(&self, store: Arc<dyn MarkStore>) -> Arc<dyn MarkStore> {
        drop(store);
        self.try_open("test", false).must().await
    }

    /// Runs SQL beside the store, as somebody with a shell would.
    async fn sql(&self, statements: &str) {
        if self.0.is_shared() {
            return self.0.execute(statements).await;
        }
        let mut file = self.0.file().await;
        sqlite(&mut file, statements).await;
        file.close().must().await;
    }
}

fn key(text: &str) -> ResourceKey {
    ResourceKey::new(text).expect("a good key")
}

fn token(number: i64) -> Token {
    Token::new(number).expect("a good token")
}

fn signed(reason: &str, actor: &str) -> Signature {
    Signature {
        reason: reason.to_owned(),
        actor: actor.to_owned(),
    }
}

fn instance(number: u64) -> InstanceId {
    InstanceId::from_bits(number)
}

pub fn ask(resource: &str, number: i64) -> Ask {
    Ask {
        resource: key(resource),
        token: token(number),
        opening: None,
        spend: None,
        needs: Needs::default(),
    }
}

fn opening(resource: &str, number: i64, opening: i64) -> Ask {
    Ask {
        opening: Some(opening),
        ..ask(resource, number)
    }
}

fn spending(resource: &str, number: i64, name: &str) -> Ask {
    Ask {
        spend: Some(name.to_owned()),
        ..ask(resource, number)
    }
}

fn epoch(of: u64, opening: Opening, number: i64) -> Epoch {
    Epoch {
        instance: instance(of),
        opening,
        token: token(number),
    }
}

/// Asks of instance 1 in era 0. It has given out no opening, so none of its epochs is dropped.
pub fn batch(asks: &[Ask]) -> Batch<'_> {
    Batch {
        instance: instance(1),
        era: 0,
        asks,
        used: &[],
        next: 0,
    }
}

async fn advance(store: &dyn MarkStore, ask: Ask) -> Found {
    advance_as(store, 1, 0, ask).await
}

async fn advance_as(store: &dyn MarkStore, of: u64, era: i64, ask: Ask) -> Found {
    let asks = [ask];
    let batch = Batch {
        instance: instance(of),
        era,
        ..batch(&asks)
    };
    advance_one(store, batch).await
}

/// A batch of one ask.
async fn advance_one(store: &dyn MarkStore, batch: Batch<'_>) -> Found {
    let mut asks = batch.asks.to_vec();
    assert_eq!(asks.len(), 1);
    if IN_COMPANY.try_with(|yes| *yes).is_ok_and(|yes| yes) {
        // It makes no mark.
        let mut company = ask("company", 1);
        company.needs.present = true;
        asks.push(company);
    }
    let batch = Batch {
        asks: &asks,
        ..batch
    };
    let found = advance_all(store, batch).await;
    found.into_iter().next().expect("an answer to each ask")
}

async fn advance_all(store: &dyn MarkStore, batch: Batch<'_>) -> Vec<Found> {
    let mut found = store.advance(Lane::Main(0), batch).must().await;
    assert_eq!(found.len(), batch.asks.len());
    for found in &mut found {
        found.open.sort();
    }
    found
}

async fn mark_of(store: &dyn MarkStore, resource: &str) -> Option<i64> {
    let rows = store.look(&[key(resource)]).must().await;
    rows.first().map(|(row, _)| row.token.get())
}

/// The row of a resource that has one.
async fn row_of(store: &dyn MarkStore, resource: &str) -> MarkRow {
    let rows = store.look(&[key(resource)]).must().await;
    rows.into_iter().next().expect("a row").0
}

/// The epochs of a resource that are not over.
async fn epochs_of(store: &dyn MarkStore, resource: &str) -> Vec<Epoch> {
    let rows = store.look(&[key(resource)]).must().await;
    let mut open: Vec<Epoch> = rows.into_iter().flat_map(|(_, found)| found.open).collect();
    open.sort();
    open
}
