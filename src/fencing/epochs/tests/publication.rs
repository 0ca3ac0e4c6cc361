//! Publications: which epochs the next heartbeat ends, and which it leaves open by name.

use super::*;

fn left(one: &One) -> Vec<Opening> {
    let mut left = one.compose_publication().left;
    left.sort_unstable();
    left
}

#[test]
fn an_idle_epoch_is_over_with_the_next_publication() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    one.pass(IDLE.saturating_sub(Duration::from_millis(1)));
    let used = Publication {
        below: 2,
        left: vec![1],
    };
    assert_eq!(one.publish(), used);
    assert_eq!(one.recall("a", 5), Ok(true));
    one.passes("a", 5);
    one.pass(Duration::from_millis(1));
    assert_eq!(one.publish().left, [1], "it was used since");
    one.pass(IDLE);
    let publication = one.compose_publication();
    assert!(publication.left.is_empty());
    // In the section that composes it, not when it is on record.
    assert!(!one.is_open("a", 5));
    assert_eq!(one.active(), 0);
    assert_eq!(one.in_store("a").len(), 1, "not on record yet");
    one.record(&publication);
    assert!(one.in_store("a").is_empty());
    assert_eq!(one.recall("a", 4), stale(5, DecidedBy::Memory));
    assert_eq!(one.open("a", 5), Ok(false));
}

#[test]
fn what_is_busy_or_waits_is_named() {
    let (one, two) = One::pair();
    for (on, number) in [("busy", 5), ("unknown", 5), ("waits", 6)] {
        assert!(two.open("waits", 5).is_ok());
        assert!(one.open(on, number).is_ok());
    }
    let _busy = one.permit("busy", 5);
    let unknown = one.permit("unknown", 5);
    let settles = one.end("unknown", &unknown, Ending::Unknown);
    let waits = key("waits");
    one.table.queue(&waits, token(6), ROOM).expect("a place");
    one.pass(SETTLE);
    assert_eq!(left(&one), [1, 2, 3]);
    let Settles { number, .. } = settles.expect("unknown");
    one.table.settled(&key("unknown"), number, one.now.get());
    one.table.unqueue(&waits, token(6));
    one.pass(IDLE);
    assert_eq!(left(&one), [1]);
}

/// An epoch that is not closed gives no permit to a superseded token, but its permits go on.
#[test]
fn a_superseded_epoch_is_over_when_its_last_permit_ends() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let five = one.permit("a", 5);
    assert!(one.open("a", 6).is_ok());
    assert_eq!(left(&one), [1, 2]);
    one.end("a", &five, Ending::Settled);
    assert_eq!(left(&one), [2]);
    one.publish();
    assert_eq!(one.in_store("a"), [(2, 6)]);
}

#[test]
fn the_opening_of_a_statement_on_its_way_is_named_and_a_given_up_one_is_not() {
    let one = One::alone();
    let asked = one.ask("a", 5);
    let sent = one.compose();
    let publication = one.compose_publication();
    assert_eq!(
        (publication.below, publication.left.as_slice()),
        (2, &[1][..])
    );
    // It is answered before that publication is on record.
    one.run(sent);
    assert_eq!(answer(asked), Ok(true));
    one.record(&publication);
    one.passes("a", 5);
    assert_eq!(one.in_store("a"), [(1, 5)]);

    let _asked = one.ask("b", 5);
    let sent = one.compose();
    let late = Rows::clone(&one.snapshot());
    one.advance(&sent);
    let committed = one.snapshot();
    one.fail_over(late);
    one.give_up(sent);
    one.publish();
    let publication = one.compose_publication();
    assert_eq!(
        (publication.below, publication.left.as_slice()),
        (3, &[1][..])
    );
    // It commits behind the publication.
    one.fail_over(committed);
    one.record(&publication);
    assert!(one.in_store("b").is_empty());
}

/// Each is true for ever, so it does no harm that the one of before lands over it.
#[test]
fn a_late_publication_over_a_newer_one_ends_nothing_that_is_used() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let late = one.compose_publication();
    assert!(one.open("b", 5).is_ok());
    one.pass(IDLE.saturating_sub(SECOND));
    one.passes("b", 5);
    one.pass(SECOND);
    one.publish();
    assert!(one.in_store("a").is_empty());
    one.record(&late);
    assert_eq!(one.in_store("a"), [(1, 5)], "open again: only out of date");
    assert_eq!(one.in_store("b"), [(2, 5)]);
}

#[test]
fn a_crowd_is_idle_sooner() {
    let one = One::over(&Rc::default(), 1, 1);
    for on in ["a", "b"] {
        assert!(one.open(on, 5).is_ok());
    }
    assert_eq!(
        left(&one),
        [1, 2],
        "their requests come to the barrier first"
    );
    one.pass(SECOND);
    assert!(left(&one).is_empty());
    assert!(one.open("a", 5).is_ok());
    one.pass(SECOND);
    assert_eq!(left(&one), [3], "there is room again");
}

/// More than a publication can name: it ends nothing above those.
#[test]
fn what_is_too_much_to_name_lowers_the_end() {
    const MANY: usize = 5000;
    let one = One::over(&Rc::default(), 1, 2 * MANY);
    let name = |n: usize| format!("r{n}");
    let asked: Vec<Asked> = (0..MANY).map(|n| one.ask(&name(n), 5)).collect();
    one.turns();
    assert!(asked.into_iter().all(|asked| answer(asked) == Ok(true)));
    let held: Vec<Ticket> = (0..MANY).map(|n| one.permit(&name(n), 5)).collect();
    let publication = one.publish();
    assert_eq!(publication.left.len(), 4096);
    assert_eq!(publication.below, 4097, "the first that it does not name");
    assert!(publication.left.iter().all(|opening| *opening < 4097));
    for (n, held) in held.iter().enumerate() {
        assert_eq!(one.in_store(&name(n)).len(), 1);
        one.end(&name(n), held, Ending::Settled);
    }
    one.pass(IDLE);
    let publication = one.publish();
    assert!(publication.left.is_empty(), "all were idle");
    assert_eq!((one.active(), one.losses()), (0, 0));
}

#[test]
fn a_run_ends_with_what_is_in_flight_or_unknown() {
    let one = One::alone();
    for on in ["idle", "busy", "settling"] {
        assert!(one.open(on, 5).is_ok());
    }
    let busy = one.permit("busy", 5);
    let settling = one.permit("settling", 5);
    one.end("settling", &settling, Ending::Unknown);
    // A statement whose lane has ended.
    let _asked = one.ask("sent", 5);
    drop(one.compose());
    let mut publication = one.table.finish(instance(1));
    publication.left.sort_unstable();
    let expected = Publication {
        below: 5,
        left: vec![2, 3],
    };
    assert_eq!(publication, expected);
    for on in ["idle", "busy", "settling"] {
        assert!(!one.is_open(on, 5), "{on}");
    }
    one.end("busy", &busy, Ending::Settled);
    let again = one.table.finish(instance(1));
    assert_eq!(again.left, [3]);
    one.rows.borrow_mut().leave(instance(1), &again);
    let open = ["idle", "busy", "settling"].map(|on| one.in_store(on).len());
    assert_eq!(open, [0, 0, 1]);
}

#[test]
fn what_is_forgotten_is_asked_for_again_and_no_more_is_kept_than_allowed() {
    let one = One::over(&Rc::default(), 1, SHARDS);
    let names: Vec<String> = (0..3000).map(|n| format!("r{n}")).collect();
    for name in &names {
        assert!(one.want(name, 7, Want::Raise).is_ok());
    }
    assert_eq!(one.active(), 0);
    let known = names.iter().filter(|name| one.known(name).is_some());
    assert!(known.count() <= SHARDS);
    assert_eq!(one.recall("r0", 1), Ok(false));
    assert_eq!(
        one.recall("r2999", 6),
        stale(7, DecidedBy::Memory),
        "the latest is among those that are kept"
    );
}
