//! Lists, overrides, the audit, the route table, operations, prunes, and the schema.

use fencepost::store::MarkStore;

use super::{Home, Must, advance, ask, assert_unfit, script};

contract! {
    {
        lists_go_by_prefix_in_byte_order,
        marks_are_counted_per_namespace,
        a_schema_that_is_behind_is_refused,
        a_schema_that_is_newer_is_refused,
        a_prune_goes_step_by_step
    }

    an_override_is_refused_while_an_epoch_is_open: "
        join = 0
        advance a 5 #1
        advance b 5 #2
        override a 1 = EpochsOpen([Epoch { instance: 000000000001, opening: 1, token: Token(5) }])
        look a = 5 1#1@5
        audit a =
        // One that is over does not count, nor do another resource's epochs.
        renew 1 below=2
        override a 1 = Done { before: Token(5), era: 1 }
        look b = 5 1#2@5
    "

    an_override_lowers_stamps_and_is_audited: "
        advance a 50 !x
        override a 50 = Done { before: Token(50), era: 1 }
        look a = 50 era 1
        // Eras are the namespace's: the next override of any resource has the next one.
        advance b 50
        override b 0 = Done { before: Token(50), era: 2 }
        reopen
        look b = 0 era 2
        audit a = override 50>50 by me: a test
    "

    what_was_never_marked_is_not_overridden: "
        override a 1 = Absent
        look a =
        audit a =
        // The connection is fit for use after it.
        join = 0
    "

    the_audit_is_read_latest_first: "
        resolve a 0
        resolve b 1
        resolve a 2
        resolve a 3
        audit a 2 = resolve none>3 by me: ü 'quoted'; resolve none>2 by me: ü 'quoted'
    "

    a_route_table_is_recorded_over_the_one_that_is_known: "
        routes = None
        route no > one = false
        route none > one = true
        route none > zwei = false
        route one > zwö = true
        route one > three = false
        route zwö > zwö = true
        reopen
        routes = Some(zwö)
    "

    /// An old backup may lack the rows of instances, which may have requests in flight.
    a_route_table_waits_for_ids_that_only_epochs_know: "
        7..8: advance a 5 #1..2
        7: advance b 5 #1..2
        8: advance c 5 #1
        replace one = 7 unknown 8 unknown
        routes = None
        // Those on record come first.
        9: join = 0
        replace one = 9@0
        9: leave
        7: settle = true
        replace one = 8 unknown
        8: settle = true
        replace one =
        routes = Some(one)
    "

    a_prune_deletes_what_is_old_and_has_nothing_open: "
        advance a:1 1; a:2 2; a:3 3; a:4 5 !x; b 4
        advance a:2 2 #1
        // They are young, and no era is used up.
        prune a: 1h = Pruned { deleted: 0, open: 0, next: None, era: None }
        prune a: 1ms dry = Pruned { deleted: 3, open: 1, next: None, era: None }
        names = a:1 a:2 a:3 a:4 b
        prune a: 1ms = Pruned { deleted: 3, open: 1, next: None, era: Some(1) }
        names = a:2 b
        count = (2, None)
        reopen
        names = a:2 b
        audit a:* = prune none>none by me: 3 marks, unchanged for 1ms: a test
        // A mark that was forgotten is as new: an older token passes, a spent one is spent no more.
        advance a:4 5 !y = none spent y
        // Once all that it has open is over, that mark goes too.
        settle = true
        prune a: 1ms = Pruned { deleted: 2, open: 0, next: None, era: Some(2) }
    "

    /// Only its name changes the row of an operation.
    one_attempt_may_send: "
        begin a 41 = a Sent(false)
        // Another one finds the first, by whose name alone a row is changed.
        begin b 42 = a Sent(false)
        know b = false
        undo b = false
        retake b 42 from c = false
        end b = false
        begin c 42 = a Sent(false)
        // It gives back what it has not sent.
        undo a = true
        begin c 42 = c Sent(false)
        end c = true
        begin d 42 = c Settled
        // Of those that take its place, one does.
        retake d 43 from c = true
        retake e 43 from c = false
        // Its time is over.
        know c = false
        know d = true
        know d = false
        begin f 44 = d Known({})
        // A known outcome stays.
        undo d = false
        retake f 44 from d = false
        reopen
        begin f 44 = d Known({})
    "

    an_attempt_settles_with_its_instance: "
        join = 0
        begin a 41 = a Sent(false)
        begin b 41 = a Sent(false)
        dead 0 = true
        // It may be in flight.
        begin b 41 = a Sent(false)
        settle = true
        begin b 41 = a Sent(true)
    "

    only_known_outcomes_expire: "
        begin a 41
        expire = 0
        know a = true
        expire = 0
        sql UPDATE operations SET expires = expires - 86400001
        expire = 1
        begin b 42 = b Sent(false)
        end b = true
        expire = 0
        begin c 43 = b Settled
    "
}

pub async fn names(
    store: &dyn MarkStore,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Vec<String> {
    let rows = store.list(prefix, after, limit).must().await;
    rows.iter().map(|row| row.resource.to_string()).collect()
}

async fn lists_go_by_prefix_in_byte_order(home: Home) {
    let store = home.open().await;
    let mut keys: Vec<&str> = "a%b,a_b,axb,a\\b,A,Z,a,aa,é,éa,z,\u{D7FF}x,\u{E000},\u{1F980},\
        \u{10FFFF},\u{10FFFF}b,ab-c,a b,B"
        .split(',')
        .collect();
    for (at, key) in (0..).zip(&keys) {
        advance(&*store, ask(key, at)).await;
    }
    keys.sort_unstable();
    assert_eq!(names(&*store, "", None, 100).await, keys);
    for prefix in "a%,a_,a\\,a,é,\u{D7FF},\u{10FFFF},none,A,a\0".split(',') {
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
    assert_eq!(names(&*store, "a", None, 0).await, [""; 0]);
    let rows = store.list("a", None, 3).must().await;
    let rows = rows
        .iter()
        .map(|row| (row.resource.as_str(), row.token.get(), row.spent));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [("a", 6, false), ("a b", 17, false), ("a%b", 0, false)]
    );
}

async fn marks_are_counted_per_namespace(home: Home) {
    let store = home.open_in("other").await;
    advance(&*store, ask("a", 1)).await;
    // The same place by another name: nothing is counted there yet.
    let script = "
        reopen
        count = (0, None)
        advance k0 1
        advance k0 1
        // One that makes no mark where there is none.
        advance unseen 1 present
        count = (1, None)
        advance k1 1
        advance k2 1
        count = (3, None)
        reopen
        count = (3, None)
        count k1 = (1, None)
    ";
    script::play_on(&home, store, script).await;
}

async fn a_schema_that_is_behind_is_refused(home: Home) {
    assert_unfit(home.try_open("test", false).await, &["fencepost migrate"]);
    drop(home.open().await);
    // A second look: forgets that the first migration was applied.
    home.0.execute("DELETE FROM fencepost_migrations").await;
    assert_unfit(home.try_open("test", false).await, &["fencepost migrate"]);
}

async fn a_schema_that_is_newer_is_refused(home: Home) {
    drop(home.open().await);
    home.0.execute(
        "INSERT INTO fencepost_migrations (version, description, success, checksum, execution_time) \
         SELECT 9999, 'later', success, checksum, 0 FROM fencepost_migrations WHERE version = 1",
    )
    .await;
    for migrate in [false, true] {
        let opened = home.try_open("test", migrate).await;
        assert_unfit(opened, &["not the one that this fencepost knows"]);
    }
}

async fn a_prune_goes_step_by_step(home: Home) {
    let marks: Vec<_> = (0..2300).map(|at| format!("k{at:04} 1")).collect();
    let batches = marks.chunks(500).map(|some| some.join("; "));
    let batches: Vec<_> = batches.map(|asks| format!("advance {asks}")).collect();
    let script = "
        prune k 1ms = Pruned { deleted: 1000, open: 0, next: Some(k0999), era: Some(1) }
        prune k 1ms after=k0999 = Pruned { deleted: 1000, open: 0, next: Some(k1999), era: Some(2) }
        prune k 1ms after=k1999 = Pruned { deleted: 300, open: 0, next: None, era: Some(3) }
        names =
    ";
    script::play(home, &(batches.join("\n") + script)).await;
}
