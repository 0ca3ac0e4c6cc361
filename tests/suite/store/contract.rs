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
mod only_postgres;
mod only_sqlite;
mod operators;
mod plans;
mod script;

use std::sync::Arc;
use std::time::Duration;

use crate::support::store::address;
use crate::support::{Must, Store, eventually};
use fencepost::config::Create;
use fencepost::routing::{Needs, ResourceKey, Token};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{
    Ask, Batch, Epoch, Found, InstanceId, Lane, MarkStore, Opening, Signature, StoreError,
};

const TIMEOUT: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// True: batches have another ask besides, so that Postgres takes none for a batch of one.
    static IN_COMPANY: bool;
}

/// Where a store's data lives: outlives the store, so that a test can look again.
pub struct Home(pub Store);

impl Home {
    pub async fn open(&self) -> Arc<dyn MarkStore> {
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
        let path = self.0.path();
        let opened = eventually("the file is free", || async {
            let create = Create::IfMissing;
            let opened = SqliteStore::open(&path, TIMEOUT, migrate, namespace, create).await;
            let in_use = |error: &StoreError| error.to_string().contains("in use");
            (!opened.as_ref().is_err_and(in_use)).then_some(opened)
        });
        Ok(Arc::new(opened.await?))
    }

    /// Drops the store and opens another one over fresh connections: what it shows was durable.
    async fn reopen(&self, store: Arc<dyn MarkStore>) -> Arc<dyn MarkStore> {
        drop(store);
        self.try_open("test", false).must().await
    }
}

/// Asserts that what was to be opened is unfit, and that the error says all of this.
#[track_caller]
fn assert_unfit<T>(opened: Result<T, StoreError>, says: &[&str]) {
    match opened.map(drop) {
        Err(StoreError::Unfit(why)) => assert!(says.iter().all(|part| why.contains(part)), "{why}"),
        other => panic!("not unfit: {other:?}"),
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
    advance_one(store, batch(&[ask])).await
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
    let found = store.advance(Lane::Main(0), batch).must().await;
    assert_eq!(found.len(), batch.asks.len());
    found
}

async fn mark_of(store: &dyn MarkStore, resource: &str) -> Option<i64> {
    let rows = store.look(&[key(resource)]).must().await;
    rows.first().map(|(row, _)| row.token.get())
}

/// The epochs of a resource that are not over.
async fn epochs_of(store: &dyn MarkStore, resource: &str) -> Vec<Epoch> {
    let rows = store.look(&[key(resource)]).must().await;
    let mut open: Vec<Epoch> = rows.into_iter().flat_map(|(_, found)| found.open).collect();
    open.sort();
    open
}
