//! Lists, overrides, the audit, the route table, and the schema.

use std::time::UNIX_EPOCH;

use fencepost::store::{AuditRow, InstanceRow, MarkStore, Override, StoreError, Terms};

use super::{
    Home, Must, advance, advance_all, advance_as, ask, batch, epoch, epochs_of, instance, join,
    key, leave, mark_of, opening, publication, publish, row_of, signed, spending, token,
};

pub async fn names(
    store: &dyn MarkStore,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Vec<String> {
    let rows = store.list(prefix, after, limit).must().await;
    rows.iter().map(|row| row.resource.to_string()).collect()
}

pub async fn lists_go_by_prefix_in_byte_order(home: Home) {
    let store = home.open().await;
    let mut keys = [
        "a%b",
        "a_b",
        "axb",
        "a\\b",
        "A",
        "Z",
        "a",
        "aa",
        "é",
        "éa",
        "z",
        "\u{D7FF}x",
        "\u{E000}",
        "\u{1F980}",
        "\u{10FFFF}",
        "\u{10FFFF}b",
        "ab-c",
        "a b",
        "B",
    ];
    for (at, key) in (0..).zip(keys) {
        advance(&*store, ask(key, at)).await;
    }
    keys.sort_unstable();
    assert_eq!(names(&*store, "", None, 100).await, keys);
    for prefix in [
        "a%",
        "a_",
        "a\\",
        "a",
        "é",
        "\u{D7FF}",
        "\u{10FFFF}",
        "none",
        "A",
        "a\0",
    ] {
        let expected: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
        let mut found = names(&*store, prefix, None, 100).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{prefix:?}");
        if let Some(first) = found.first().cloned() {
            let rest = found.split_off(1);
            assert_eq!(names(&*store, prefix, Some(&first), 100).await, rest);
        }
    }
    assert_eq!(names(&*store, "a", Some("a\0"), 1).await, ["a b"]);
    assert_eq!(names(&*store, "a", Some("Z"), 1).await, ["a"]);
    assert_eq!(names(&*store, "a", Some("b"), 1).await, [""; 0]);
}

pub async fn a_list_is_read_in_pages(home: Home) {
    let store = home.open().await;
    let asks: Vec<_> = (0..25).map(|at| ask(&format!("k{at:02}"), at)).collect();
    advance_all(&*store, batch(&asks)).await;
    let mut all = Vec::new();
    loop {
        let page = store
            .list("k", all.last().map(String::as_str), 10)
            .must()
            .await;
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 10);
        for row in page {
            assert_eq!(row.resource.as_str(), format!("k{:02}", row.token.get()));
            assert!(!row.spent);
            all.push(row.resource.to_string());
        }
    }
    assert_eq!(all.len(), 25);
    assert_eq!(names(&*store, "k", None, 0).await, [""; 0]);
}

pub async fn marks_are_counted_per_namespace(home: Home) {
    let store = home.open_in("other").await;
    advance(&*store, ask("a", 1)).await;
    // The same place by another name: nothing is counted there yet.
    let store = home.reopen(store).await;
    for wanted in 0..3 {
        let counted = store.count_marks(None).must().await;
        assert_eq!(counted, (wanted, None));
        for _ in 0..2 {
            advance(&*store, ask(&format!("k{wanted}"), 1)).await;
            // One that makes no mark where there is none.
            let mut refused = ask(&format!("unseen-{wanted}"), 1);
            refused.needs.present = true;
            advance(&*store, refused).await;
        }
    }
    let store = home.reopen(store).await;
    assert_eq!(store.count_marks(None).must().await, (3, None));
    assert_eq!(store.count_marks(Some("k1")).must().await, (1, None));
}

pub async fn an_override_is_refused_while_an_epoch_is_open(home: Home) {
    let store = home.open().await;
    store.join(instance(1), &Terms::default()).must().await;
    advance(&*store, opening("a", 5, 1)).await;
    advance(&*store, opening("b", 5, 2)).await;
    let refused = store
        .override_mark(&key("a"), token(1), &signed("why", "me"))
        .await;
    assert_eq!(
        refused.expect("an answer"),
        Override::EpochsOpen(vec![epoch(1, 1, 5)])
    );
    assert_eq!(mark_of(&*store, "a").await, Some(5));
    assert_eq!(store.audit(&key("a"), 9).must().await, []);
    // One that is over does not count, nor do another resource's epochs.
    publish(&*store, 1, 1, publication(2, &[])).await;
    let done = store
        .override_mark(&key("a"), token(1), &signed("why", "me"))
        .await;
    assert!(
        matches!(done, Ok(Override::Done { era: 1, .. })),
        "{done:?}"
    );
    assert_eq!(epochs_of(&*store, "b").await.len(), 1);
}

pub async fn an_override_lowers_stamps_and_is_audited(home: Home) {
    let store = home.open().await;
    advance(&*store, spending("a", 50, "x")).await;
    let before = row_of(&*store, "a").await;
    let done = store
        .override_mark(&key("a"), token(50), &signed("spent by mistake", "me"))
        .must()
        .await;
    assert_eq!(
        done,
        Override::Done {
            before: token(50),
            era: 1
        }
    );
    let after = row_of(&*store, "a").await;
    assert!(!after.spent);
    assert_eq!((after.token, after.era), (token(50), 1));
    assert!(after.since_ms >= before.since_ms);
    // Eras are the namespace's: the next override of any resource has the next one.
    advance(&*store, ask("b", 50)).await;
    let done = store
        .override_mark(&key("b"), token(0), &signed("r", "me"))
        .await;
    assert_eq!(
        done.expect("an answer"),
        Override::Done {
            before: token(50),
            era: 2
        }
    );
    let store = home.reopen(store).await;
    assert_eq!(mark_of(&*store, "b").await, Some(0));
    let mut audit = store.audit(&key("a"), 9).must().await;
    let entry = audit.pop().expect("an entry");
    assert_eq!(audit, []);
    assert!(entry.at_ms >= after.since_ms);
    assert_eq!(
        entry,
        AuditRow {
            resource: key("a"),
            action: "override".to_owned(),
            before: Some(token(50)),
            after: Some(token(50)),
            reason: "spent by mistake".to_owned(),
            actor: "me".to_owned(),
            at_ms: entry.at_ms,
        }
    );
}

pub async fn what_was_never_marked_is_not_overridden(home: Home) {
    let store = home.open().await;
    let absent = store
        .override_mark(&key("a"), token(1), &signed("why", "me"))
        .await;
    assert_eq!(absent.expect("an answer"), Override::Absent);
    assert_eq!(mark_of(&*store, "a").await, None);
    assert_eq!(store.audit(&key("a"), 9).must().await, []);
    // The connection is fit for use after it.
    let era = store.join(instance(1), &Terms::default()).await;
    assert_eq!(era.expect("an answer"), 0);
}

pub async fn the_audit_is_read_latest_first(home: Home) {
    let store = home.open().await;
    for (at, resource) in ["a", "b", "a", "a"].into_iter().enumerate() {
        let marks = (None, Some(token(i64::try_from(at).expect("a few"))));
        let (resource, by) = (key(resource), signed("ü 'quoted'", "me"));
        let recorded = store.record_audit(&resource, "resolve", marks, &by);
        recorded.must().await;
    }
    let rows = store.audit(&key("a"), 2).must().await;
    let after: Vec<_> = rows.iter().map(|row| row.after).collect();
    assert_eq!(after, [Some(token(3)), Some(token(2))]);
    let first = rows.first().expect("two rows");
    assert_eq!((first.before, first.reason.as_str()), (None, "ü 'quoted'"));
    assert!(first.at_ms > 1_600_000_000_000, "the store's clock decides");
}

pub async fn a_route_table_is_recorded_over_the_one_that_is_known(home: Home) {
    let store = home.open().await;
    let document = async |store: &dyn MarkStore| store.routes().must().await;
    assert_eq!(document(&*store).await, None);
    for (known, new, done) in [
        (Some("no"), "one", false),
        (None, "one", true),
        (None, "two", false),
        (Some("one"), "two ü", true),
        (Some("one"), "three", false),
        (Some("two ü"), "two ü", true),
    ] {
        let recorded = store.record_routes(known, new).must().await;
        assert_eq!(recorded, done, "{known:?} {new}");
    }
    let store = home.reopen(store).await;
    assert_eq!(document(&*store).await.as_deref(), Some("two ü"));
}

pub async fn a_route_table_is_replaced_only_where_no_instance_is(home: Home) {
    let store = home.open().await;
    let replaced = async |new: &str| {
        let left = store.replace_routes(new).must().await;
        let recorded = store.routes().must().await;
        assert_eq!(left.is_empty(), recorded.as_deref() == Some(new));
        left
    };
    assert_eq!(replaced("one").await, []);
    let terms = Terms::default();
    store.join(instance(1), &terms).must().await;
    let left = replaced("two").await;
    assert_eq!((left.len(), &left[0].id), (1, &instance(1)));
    // Nor where a dead one has not settled.
    assert!(store.declare_dead(instance(1), 0).must().await);
    assert!(replaced("two").await[0].dead);
    assert!(store.settle(instance(1)).must().await);
    assert_eq!(replaced("two").await, []);
    store.join(instance(2), &terms).must().await;
}

/// An old backup may lack the rows of instances, which may have requests in flight.
pub async fn a_route_table_waits_for_ids_that_only_epochs_know(home: Home) {
    let store = home.open().await;
    for (at, resource) in (0..).zip(["a", "b", "c"]) {
        advance_as(&*store, 7 + at % 2, 0, opening(resource, 5, 1)).await;
        advance_as(&*store, 7, 0, opening(resource, 5, 2)).await;
    }
    let unknown = [7, 8].map(|of| InstanceRow::unknown(instance(of)));
    let replaced = async |document| {
        let mut left = store.replace_routes(document).must().await;
        left.sort_by_key(|row| row.id);
        left
    };
    assert_eq!(replaced("one").await, unknown);
    assert_eq!(store.routes().must().await, None);
    // Those on record come first.
    join(&*store, 9).await;
    let left = replaced("one").await;
    assert_eq!((left.len(), left[0].id), (1, instance(9)));
    leave(&*store, 9, publication(0, &[])).await;
    assert!(store.settle(instance(7)).must().await);
    assert_eq!(replaced("one").await, unknown[1..]);
    assert!(store.settle(instance(8)).must().await);
    assert_eq!(replaced("one").await, []);
    assert_eq!(store.routes().must().await.as_deref(), Some("one"));
}

pub async fn migrating_twice_changes_nothing(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    let store = home.reopen(store).await;
    drop(home.reopen(store).await);
    loop {
        match home.try_open("test", true).await {
            Ok(store) => {
                assert_eq!(mark_of(&*store, "a").await, Some(5));
                return;
            }
            Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

fn refusal(opened: Result<std::sync::Arc<dyn MarkStore>, StoreError>) -> String {
    match opened {
        Err(StoreError::Unfit(why)) => why,
        Err(error) => panic!("not Unfit: {error}"),
        Ok(_) => panic!("it opened"),
    }
}

pub async fn a_schema_that_is_behind_is_refused(home: Home) {
    let why = refusal(home.try_open("test", false).await);
    assert!(why.contains("fencepost migrate"), "{why}");
    drop(home.open().await);
    // A second look: forgets that the first migration was applied.
    home.sql("DELETE FROM fencepost_migrations").await;
    loop {
        let why = refusal(home.try_open("test", false).await);
        if !why.contains("in use") {
            assert!(why.contains("fencepost migrate"), "{why}");
            return;
        }
        tokio::task::yield_now().await;
    }
}

pub async fn a_schema_that_is_newer_is_refused(home: Home) {
    let store = home.open().await;
    home.sql(
        "INSERT INTO fencepost_migrations (version, description, success, checksum, execution_time) \
         SELECT 9999, 'later', success, checksum, 0 FROM fencepost_migrations WHERE version = 1",
    )
    .await;
    drop(store);
    for migrate in [false, true] {
        loop {
            let why = refusal(home.try_open("test", migrate).await);
            if !why.contains("in use") {
                assert!(
                    why.contains("not the one that this fencepost knows"),
                    "{why}"
                );
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

pub async fn a_mark_says_since_when(home: Home) {
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    let since = async || row_of(&*store, "a").await.since_ms;
    let first = since().await;
    // The only clock that can be compared with the store's; a day is no clock skew.
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    let now = file.as_file().metadata().and_then(|meta| meta.modified());
    let now = now
        .expect("a time")
        .duration_since(UNIX_EPOCH)
        .expect("it is later");
    let now = i64::try_from(now.as_millis()).expect("it is not so late");
    assert!((first - now).abs() < 86_400_000, "{first} {now}");
    // Until the store's clock has moved on, as another resource shows.
    for number in 0.. {
        advance(&*store, ask("b", number)).await;
        if row_of(&*store, "b").await.since_ms > first {
            break;
        }
    }
    // Equal and lower tokens do not change it; a newer one does.
    advance(&*store, ask("a", 5)).await;
    advance(&*store, ask("a", 4)).await;
    assert_eq!(since().await, first);
    advance(&*store, ask("a", 6)).await;
    assert!(since().await > first);
}

pub async fn a_check_finds_the_store_fit(home: Home) {
    let store = home.open().await;
    store.prepare().must().await;
    assert_eq!(store.shared(), matches!(home, Home::Postgres(_)));
    assert_eq!(store.listen().is_some(), store.shared());
    store.notify(&[]).must().await;
    assert!(store.lanes() > 0);
}
