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
mod operators;
mod plans;
mod prune;

use std::sync::Arc;
use std::time::Duration;

use fencepost::config::settings::Secret;
use fencepost::routing::{Needs, ResourceKey, Token};
use fencepost::store::postgres::PostgresStore;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{Ask, Batch, Cursor, EpochRow, Found, InstanceId, MarkStore, StoreError};

use crate::support::Must;
use crate::support::postgres::Cluster;
use crate::support::sql::{open_file, shell, sql, sqlite};
use crate::support::store::{has_postgres, quick_dir};

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
                SqliteStore::open(dir.path().join("marks.db"), TIMEOUT, migrate, namespace).await?,
            ),
            Self::Postgres(url) => {
                let url = Secret::Literal(url.clone());
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
    /// Batches have something to look at besides, so that Postgres takes none for a batch of one.
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
            marks_are_read_for_the_resources_named,
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
            an_epoch_is_closed_by_its_opening_only,
            an_epoch_is_ceded_only_below_its_mark,
            a_late_duplicate_opens_and_closes_nothing_else,
            own_epochs_are_read_in_pages_with_their_marks,
            own_epochs_are_read_for_the_resources_named,
            at_the_end_of_a_run_its_own_epochs_go_but_those_named,
            epochs_are_read_for_the_resources_named,
            lost_epochs_are_opened_again,
            no_epoch_opens_in_an_older_era,
        }
    }
    life {
        an_instance_joins_and_renews,
        an_era_is_raised_and_never_lowered,
        the_dead_do_not_renew,
        an_instance_says_which_routes_it_serves,
        death_is_declared_by_the_counter,
        only_the_dead_are_buried,
        however_many_epochs_the_dead_had_all_go,
        what_is_waited_for_is_buried_first,
        an_instance_is_on_record_until_its_last_epoch_is_buried,
        an_id_known_from_epochs_alone_counts_as_dead,
        leaving_keeps_what_is_unknown,
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
        migrating_twice_changes_nothing,
        a_schema_that_is_behind_is_refused,
        a_schema_that_is_newer_is_refused,
        a_mark_says_since_when,
        a_check_finds_the_store_fit,
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

fn epoch(resource: &str, of: u64, opening: i64, number: i64) -> EpochRow {
    EpochRow {
        resource: key(resource),
        instance: instance(of),
        opening,
        token: token(number),
    }
}

/// One ask by instance 1 in era 0.
async fn advance(store: &dyn MarkStore, ask: Ask) -> Found {
    advance_as(store, 1, 0, ask).await
}

async fn advance_as(store: &dyn MarkStore, of: u64, era: i64, ask: Ask) -> Found {
    let company = [key("looked at")];
    let looks = IN_COMPANY.try_with(|()| &company[..]).unwrap_or_default();
    let batch = Batch {
        instance: &instance(of),
        era,
        asks: &[ask],
        closes: &[],
        looks,
        hasty: false,
    };
    let done = store.batch(batch).must().await;
    let mut found = done.found;
    assert_eq!(found.len(), 1);
    found.remove(0)
}

async fn mark_of(store: &dyn MarkStore, resource: &str) -> Option<i64> {
    let row = store.mark(&key(resource)).must().await;
    row.map(|row| row.token.get())
}

/// All epochs of an instance, page by page.
async fn own(store: &dyn MarkStore, of: u64) -> Vec<EpochRow> {
    let mut all: Vec<EpochRow> = Vec::new();
    loop {
        let after: Option<Cursor> = all.last().map(|row| (row.resource.clone(), row.opening));
        let page = store.own(&instance(of), after.as_ref(), 1000).must().await;
        let last = page.len() < 1000;
        all.extend(page.into_iter().map(|(row, _)| row));
        if last {
            return all;
        }
    }
}

/// Buries an instance to the end; returns how many resources were freed by each step.
async fn buried(store: &dyn MarkStore, of: u64) -> Vec<usize> {
    let (mut steps, mut after): (_, Option<Cursor>) = (Vec::new(), None);
    loop {
        let step = store.bury(&instance(of), &[], after.as_ref()).must().await;
        steps.push(step.freed.len());
        after = step.next;
        if after.is_none() {
            return steps;
        }
    }
}

async fn epochs_of(store: &dyn MarkStore, resource: &str) -> Vec<EpochRow> {
    let mut rows = store.epochs(&[key(resource)]).must().await;
    rows.sort();
    rows
}
