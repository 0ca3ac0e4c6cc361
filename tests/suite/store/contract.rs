//! The contract of [`MarkStore`], one list of tests run over both stores. Promises that only one
//! engine can show (a killed server, a pooler, a second process on the file) are in modules of
//! their own.

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

use std::sync::Arc;
use std::time::Duration;

use fencepost::config::Create;
use fencepost::routing::{Needs, ResourceKey, Token};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{
    Ask, Batch, Epoch, Found, InstanceId, Lane, MarkRow, MarkStore, Opening, Publication, Renewal,
    Signature, StoreError, Terms,
};

use crate::support::Must;
use crate::support::postgres::Cluster;
use crate::support::sql::{open_file, shell, sql, sqlite};
use crate::support::store::{address, has_postgres, quick_dir};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where a store's data lives: outlives the store, so that a test can look again.
enum Home {
    Sqlite(tempfile::TempDir),
    Postgres(String),
}

impl Home {
    fn sqlite() -> Self {
        Self::Sqlite(quick_dir())
    }

    async fn postgres() -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        Some(Self::Postgres(Cluster::shared().create_database().await))
    }

    async fn open(&self) -> Arc<dyn MarkStore> {
        self.open_in("test").await
    }

    async fn open_in(&self, namespace: &str) -> Arc<dyn MarkStore> {
        self.try_open(namespace, true).must().await
    }

    async fn try_open(
        &self,
        namespace: &str,
        migrate: bool,
    ) -> Result<Arc<dyn MarkStore>, StoreError> {
        Ok(match self {
            Self::Sqlite(dir) => Arc::new(
                SqliteStore::open(
                    dir.path().join("marks.db"),
                    TIMEOUT,
                    migrate,
                    namespace,
                    Create::IfMissing,
                )
                .await?,
            ),
            Self::Postgres(url) => {
                let url = address(url);
                Arc::new(PostgresStore::open(url, namespace, TIMEOUT, migrate).await?)
            }
        })
    }

    /// Drops the store and opens another one over fresh connections: what it shows was durable.
    async fn reopen(&self, store: Arc<dyn MarkStore>) -> Arc<dyn MarkStore> {
        drop(store);
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            match self.try_open("test", false).await {
                Ok(store) => return store,
                // A dropped SQLite store gives up its file in the background.
                Err(error) if error.to_string().contains("in use") => {
                    assert!(tokio::time::Instant::now() < deadline, "{error}");
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Runs SQL beside the store, as somebody with a shell would.
    async fn sql(&self, statements: &str) {
        use sqlx::Connection as _;

        match self {
            Self::Sqlite(dir) => {
                let mut file = open_file(&dir.path().join("marks.db")).await;
                sqlite(&mut file, statements).await;
                file.close().must().await;
            }
            Self::Postgres(url) => {
                let mut shell = shell(url).await;
                sql(&mut shell, statements).await;
                shell.close().must().await;
            }
        }
    }
}

macro_rules! over_stores {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod over_sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$module::$test(super::Home::sqlite()).await;
                }
            )*)*
        }
        mod over_postgres {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(home) = super::Home::postgres().await {
                        super::$module::$test(home).await;
                    }
                }
            )*)*
        }
    };
}

tokio::task_local! {
    /// Batches have another ask besides, so that Postgres takes none for a batch of one.
    static IN_COMPANY: ();
}

/// Postgres has two statements for an advance: the tests above see that for one ask.
macro_rules! over_postgres_in_company {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod over_postgres_in_company {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(home) = super::Home::postgres().await {
                        super::IN_COMPANY.scope((), super::$module::$test(home)).await;
                    }
                }
            )*)*
        }
    };
}

macro_rules! over_both_stores {
    (in_company { $($first:tt)* } $($rest:tt)*) => {
        over_stores! { $($first)* $($rest)* }
        over_postgres_in_company! { $($first)* }
    };
}

over_both_stores! {
    in_company {
        marks {
            no_mark_is_not_zero,
            a_mark_rises_and_never_falls,
            tokens_are_numbers_up_to_the_largest,
            a_batch_is_answered_in_the_order_asked,
            a_mark_outlives_the_store,
            namespaces_share_nothing,
            a_token_is_spent_once,
            a_lost_race_to_spend_names_the_winner,
            a_newer_token_is_not_spent,
            spending_goes_back_only_under_its_name,
            rows_are_read_for_the_resources_named,
            a_statement_of_an_older_era_changes_nothing,
            keys_of_every_script_are_kept_apart,
        }
        needs {
            a_token_that_leaps_changes_nothing,
            a_first_mark_is_made_only_where_it_may_be,
            each_of_a_batch_has_its_own_needs,
        }
        epochs {
            an_epoch_opens_unless_the_mark_is_above,
            an_answer_has_all_that_is_open,
            own_epochs_out_of_use_are_dropped,
            a_late_statement_drops_and_opens_nothing_newer,
            epochs_that_are_over_are_dropped,
            epochs_that_are_over_are_left_out,
            epochs_of_an_id_that_is_not_on_record_are_kept,
            the_named_epochs_are_ceded_and_no_others,
            lost_epochs_are_added,
            a_lost_mark_is_raised_in_its_era,
            no_epoch_opens_in_an_older_era,
            many_rows_of_many_epochs_are_written,
        }
    }
    life {
        an_instance_joins_and_renews,
        an_era_is_raised_and_never_lowered,
        a_publication_is_written_as_one,
        nothing_is_written_for_the_dead,
        an_instance_says_which_routes_it_serves,
        death_is_declared_by_the_counter,
        the_dead_settle_and_the_living_do_not,
        an_id_that_is_not_on_record_settles,
        leaving_ends_all_but_what_is_left,
        a_counter_starts_where_its_owner_says,
        ids_are_taken_once,
    }
    operators {
        lists_go_by_prefix_in_byte_order,
        a_list_is_read_in_pages,
        marks_are_counted_per_namespace,
        an_override_is_refused_while_an_epoch_is_open,
        an_override_lowers_stamps_and_is_audited,
        what_was_never_marked_is_not_overridden,
        the_audit_is_read_latest_first,
        a_route_table_is_recorded_over_the_one_that_is_known,
        a_route_table_is_replaced_only_where_no_instance_is,
        a_route_table_waits_for_ids_that_only_epochs_know,
        migrating_twice_changes_nothing,
        a_schema_that_is_behind_is_refused,
        a_schema_that_is_newer_is_refused,
        a_mark_says_since_when,
        a_check_finds_the_store_fit,
    }
    operations {
        one_attempt_may_send,
        an_attempt_settles_with_its_instance,
        only_known_outcomes_expire,
    }
    prune {
        a_prune_deletes_what_is_old_and_has_nothing_open,
        a_prune_goes_step_by_step,
        a_prune_is_announced_with_an_era,
    }
    concurrent {
        answers_form_one_history,
        a_caller_that_leaves_breaks_nothing,
        one_of_many_spends_the_token,
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

fn ask(resource: &str, number: i64) -> Ask {
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

const LEASE: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(30);
const UNDELIVERED: Duration = Duration::from_secs(10);

fn terms() -> Terms {
    Terms {
        renewals: 0,
        lease: LEASE,
        settle: SETTLE,
        undelivered: UNDELIVERED,
        routes: "of a test".to_owned(),
    }
}

async fn join(store: &dyn MarkStore, of: u64) {
    let era = store.join(instance(of), &terms()).must().await;
    assert_eq!(era, 0);
}

fn publication(below: Opening, left: &[Opening]) -> Publication {
    Publication {
        below,
        left: left.to_vec(),
    }
}

/// Renews with a number, and publishes.
async fn publish(store: &dyn MarkStore, of: u64, renewals: i64, over: Publication) -> Renewal {
    let terms = Terms {
        renewals,
        ..terms()
    };
    store.renew(instance(of), &terms, &over).must().await
}

async fn leave(store: &dyn MarkStore, of: u64, over: Publication) {
    store.leave(instance(of), &over).must().await;
}

/// Asks of instance 1 in era 0. It has given out no opening, so none of its epochs is dropped.
fn batch(asks: &[Ask]) -> Batch<'_> {
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
    if IN_COMPANY.try_with(|()| ()).is_ok() {
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
