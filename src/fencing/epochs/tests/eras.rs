//! Overrides and rejoins: what makes this memory void, and who may not know of it.

use super::*;

fn override_to(one: &One, on: &str, number: i64) {
    let mut rows = one.rows.borrow_mut();
    let done = rows.override_mark(&key(on), token(number), &signed("why", "who"));
    assert!(matches!(done, Override::Done { .. }), "{done:?}");
}

#[test]
fn a_new_era_forgets_refusals_but_not_where_an_epoch_is_open() {
    let one = One::alone();
    assert!(one.want("idle", 10, Want::Raise).is_ok());
    assert!(one.open("held", 10).is_ok());
    let asked = one.ask_for("late", 10, Want::Raise, None);
    let sent = one.compose();
    one.table.adopt(1);
    assert_eq!((one.known("idle"), one.known("held")), (None, Some(10)));
    one.run(sent);
    assert_eq!(answer(asked), Ok(true));
    assert_eq!(one.known("late"), None, "read under the era before");
    one.table.adopt(0);
    assert_eq!(one.table.era(), 1, "an era never goes back");
}

#[test]
fn an_override_elsewhere_sends_the_statement_back_in_the_new_era() {
    let one = One::alone();
    assert!(one.want("a", 10, Want::Raise).is_ok());
    override_to(&one, "a", 3);
    // Memory does not know yet.
    assert_eq!(one.recall("a", 4), stale(10, DecidedBy::Memory));
    let asked = one.ask("a", 12);
    let sent = one.compose();
    assert_eq!(sent.batch().era, 0);
    one.run(sent);
    assert_eq!((one.mark("a"), one.table.era()), (Some(3), 1));
    let sent = one.compose();
    assert_eq!(sent.batch().era, 1);
    one.run(sent);
    assert_eq!(answer(asked), Ok(true));
    assert_eq!(one.losses(), 0, "an override is not a loss");
    assert_eq!(one.recall("a", 4), stale(12, DecidedBy::Memory));
}

#[test]
fn a_request_is_sent_back_a_few_times_and_then_refused() {
    let one = One::alone();
    assert!(one.want("a", 1, Want::Raise).is_ok());
    let asked = one.ask("a", 2);
    for tries in 1.. {
        let Some(sent) = one.compose_on(LANE) else {
            assert_eq!(tries, 5);
            break;
        };
        override_to(&one, "a", 1);
        one.run(sent);
    }
    assert_eq!(kind(answer(asked)), "era");
}

#[test]
fn a_permit_from_before_an_override_spends_nothing() {
    let one = One::alone();
    assert!(one.open("a", 42).is_ok());
    let _permit = one.permit("a", 42);
    one.bury_and_override("a", 10);
    assert_eq!(kind(one.want("a", 42, Want::Spend("x".into()))), "era");
    assert_eq!(one.mark("a"), Some(10), "nor does it raise the mark again");
}

/// Declared dead and settled, with the mark overridden; and the era known here, by a statement about
/// something else, while the death is not.
fn dead_unawares() -> One {
    let one = One::alone();
    assert!(one.open("a", 42).is_ok());
    one.holds.set(false);
    one.bury_and_override("a", 10);
    one.table.adopt(1);
    assert_eq!(
        one.known("a"),
        Some(42),
        "an open epoch protects it, as far as is known here"
    );
    one
}

#[test]
fn an_instance_that_is_dead_unawares_takes_nothing_for_lost() {
    let one = dead_unawares();
    one.look("a");
    assert_eq!((one.losses(), one.to_repair()), (0, vec![]));
    // A newer token that is asked for is another thing.
    assert_eq!(one.want("a", 43, Want::Raise), Ok(true));
    assert_eq!(one.losses(), 0);
    assert!(!one.is_repairing("a", 43));
}

/// As above, and a failover has lost the override too.
#[test]
fn a_statement_without_a_lease_takes_nothing_for_lost() {
    let one = One::alone();
    assert!(one.open("a", 42).is_ok());
    one.holds.set(false);
    one.rows
        .borrow_mut()
        .marks
        .insert(key("a"), Mark::at(token(10)));
    assert_eq!(one.want("a", 43, Want::Raise), Ok(true));
    assert_eq!(one.losses(), 0);
}

/// The era was learned before the statement, and its mark kept because of an epoch that was idle.
#[test]
fn a_mark_of_an_earlier_era_than_its_row_is_not_lost() {
    let one = One::alone();
    assert!(one.open("a", 42).is_ok());
    one.fail_over(Rows::default());
    one.rows
        .borrow_mut()
        .marks
        .insert(key("a"), Mark::at(token(30)));
    override_to(&one, "a", 10);
    one.table.adopt(1);
    assert_eq!(one.open("a", 43), Ok(true));
    assert_eq!((one.losses(), one.mark("a")), (0, Some(43)));
}

#[test]
fn a_mark_that_is_pruned_while_a_statement_is_on_its_way_is_not_lost() {
    let one = One::alone();
    assert!(one.want("a", 10, Want::Raise).is_ok());
    let asked = one.ask("a", 12);
    let sent = one.compose();
    one.table.adopt(1);
    one.rows.borrow_mut().marks.clear();
    one.run(sent);
    assert_eq!((answer(asked), one.losses()), (Ok(true), 0));
}

/// Its lease holds, as far as it knows: a failover has lost its epoch, so that nothing stood in the
/// way of the override.
#[test]
fn an_override_of_what_a_failover_has_laid_open_is_not_undone() {
    let one = One::alone();
    assert!(one.open("a", 42).is_ok());
    one.rows
        .borrow_mut()
        .marks
        .get_mut(&key("a"))
        .expect("a mark")
        .open
        .clear();
    override_to(&one, "a", 10);
    one.table.adopt(1);
    one.look("a");
    assert!(one.is_repairing("a", 43));
    one.repair();
    assert_eq!(one.mark("a"), Some(10));
    assert_eq!(
        one.in_store("a").len(),
        1,
        "what may be in flight stands there again"
    );
    one.pass(LOSS);
    assert!(!one.is_open("a", 42));
    assert_eq!(one.open("a", 11), Ok(true));
    assert_eq!(one.mark("a"), Some(11));
}

#[test]
fn no_statement_carries_an_era_before_memory_is_of_it() {
    let one = One::over(&Rc::default(), 1, 1_000_000);
    let names: Vec<String> = (0..50_000).map(|n| format!("r{n}")).collect();
    let asked: Vec<Asked> = names
        .iter()
        .map(|name| one.ask_for(name, 42, Want::Raise, None))
        .collect();
    one.turns();
    drop(asked);
    let keys: Vec<ResourceKey> = names.iter().map(|name| key(name)).collect();
    let (table, started) = (&one.table, std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| {
            started.wait();
            while table.era() == 0 {}
            // In the order in which a statement is made: the era, then what is known.
            let known = |key: &&ResourceKey| {
                let recalled = table.recall(key, token(0), 0, Instant::now());
                recalled != Ok(false)
            };
            keys.iter().filter(known).count()
        });
        started.wait();
        table.adopt(1);
        assert_eq!(lane.join().expect("no panic"), 0);
    });
}

// --- rejoins ---

#[test]
fn a_rejoin_retires_what_is_idle_at_once_and_the_rest_when_it_ends() {
    let one = One::alone();
    assert!(one.open("idle", 1).is_ok());
    assert!(one.open("busy", 1).is_ok());
    let held = one.permit("busy", 1);
    one.rejoin(9);
    assert_eq!(one.active(), 1);
    assert_eq!(one.recall("busy", 1), Ok(false));
    assert_eq!(one.open("busy", 2), Ok(true));
    assert!(matches!(
        one.enter("busy", 2),
        Ok(Entered::Wait { known_left: None })
    ));
    let settles = one.end("busy", &held, Ending::Unknown).expect("unknown");
    assert_eq!(
        one.compose_publication().left,
        [3],
        "the old id's are not of this one"
    );
    one.table.settled(&key("busy"), settles.number, settles.at);
    // To the new id, the epoch of the old one is another instance's, until that has settled.
    assert!(one.waits("busy", 2));
    {
        let mut rows = one.rows.borrow_mut();
        assert!(rows.declare_dead(instance(1), 0) && rows.settle(instance(1)));
    }
    one.look("busy");
    one.passes("busy", 2);
}

/// As [`an_instance_that_is_dead_unawares_takes_nothing_for_lost`], when it knows.
#[test]
fn a_rejoin_forgets_what_its_epochs_have_protected() {
    let one = dead_unawares();
    one.holds.set(true);
    one.rejoin(9);
    assert_eq!(one.known("a"), None);
    assert_eq!(one.open("a", 11), Ok(true));
    assert_eq!(one.losses(), 0);
}

#[test]
fn an_epoch_of_before_a_rejoin_keeps_no_memory_from_a_new_era() {
    let one = One::alone();
    assert!(one.open("a", 42).is_ok());
    let _held = one.permit("a", 42);
    one.rejoin(9);
    // Learned again, and then overridden elsewhere: the epoch of before did not hold that back.
    assert!(one.want("a", 50, Want::Raise).is_ok());
    assert_eq!(one.known("a"), Some(50));
    one.table.adopt(1);
    assert_eq!(one.known("a"), None);
    assert!(!one.is_open("a", 42));
}

#[test]
fn an_epoch_that_closes_gives_no_permit_even_after_a_new_era() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    let _held = one.permit("a", 5);
    assert!(two.open("a", 6).is_ok());
    one.look("a");
    one.table.adopt(1);
    one.rejoin(9);
    assert!(!one.is_open("a", 5));
    one.by.borrow_mut().incarnation = 0;
    assert!(!one.is_open("a", 5));
}

/// The store has lost this instance's row: its epochs may be lost too.
#[test]
fn all_epochs_may_be_retired_and_opened_again() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let held = one.permit("a", 5);
    one.table.retire_all();
    assert!(!one.is_open("a", 5));
    assert_eq!(one.open("a", 5), Ok(false));
    one.passes("a", 5);
    assert_eq!(one.in_store("a").len(), 2, "the permit counts");
    one.end("a", &held, Ending::Settled);
}
