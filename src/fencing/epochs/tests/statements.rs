//! Statements: what one asks for, what its answer opens, and what is concluded from none.

use super::*;

#[test]
fn what_waits_while_a_statement_is_on_its_way_shares_the_next_one() {
    let one = One::alone();
    let first = one.ask("a", 1);
    let sent = one.compose();
    let rest = [
        one.ask("b", 7),
        one.ask("b", 9),
        one.ask("b", 9),
        one.ask_for("c", 3, Want::Raise, None),
        one.ask("a", 1),
    ];
    one.run(sent);
    assert_eq!(answer(first), Ok(true));
    let sent = one.compose();
    let asks = sent.batch().asks.iter();
    let asks = asks.map(|ask| {
        (
            ask.resource.as_str(),
            ask.token.get(),
            ask.opening.is_some(),
        )
    });
    assert_eq!(asks.collect::<Vec<_>>(), [("b", 9, true), ("c", 3, false)]);
    one.run(sent);
    let answers = rest.map(answer);
    assert_eq!(
        answers,
        [
            stale(9, DecidedBy::Store),
            Ok(true),
            Ok(false),
            Ok(true),
            Ok(false)
        ]
    );
    assert_eq!(one.in_store("a").len(), 1, "memory answered the second");
    assert!(one.in_store("c").is_empty());
    assert_eq!(one.recall("b", 9), Ok(true));
    assert_eq!(one.recall("b", 8), stale(9, DecidedBy::Memory));
    assert!(one.compose_on(LANE).is_none());
}

#[test]
fn about_one_resource_no_two_statements_are_on_their_way() {
    let one = One::alone();
    let first = one.ask("a", 1);
    let sent = one.compose();
    let mut newer = one.ask("a", 2);
    let (waiter, other) = Waiter::new(token(3), Want::Open, Needs::default());
    one.table.ask(&key("a"), waiter, 1);
    for lane in [LANE, Lane::Main(1), Lane::Aside] {
        assert!(one.compose_on(lane).is_none());
    }
    one.give_up(sent);
    assert_eq!(kind(answer(first)), "timeout");
    assert!(answer_of(&mut newer).is_none(), "it is not of that one");
    one.turns();
    assert_eq!(answer(newer), stale(3, DecidedBy::Store));
    assert_eq!(answer(other), Ok(true));
}

#[test]
fn a_doubt_answers_only_its_own_statement_and_leaves_no_epoch() {
    for commits in [false, true] {
        let one = One::alone();
        let asked = one.ask("a", 1);
        let sent = one.compose();
        if commits {
            one.advance(&sent);
        }
        one.give_up(sent);
        assert_eq!(kind(answer(asked)), "timeout");
        assert_eq!(one.recall("a", 1), Ok(false));
        assert!(one.open("b", 1).is_ok());
        assert_eq!(one.in_store("a").len(), usize::from(commits));
        one.publish();
        assert!(one.in_store("a").is_empty(), "nobody will ever use it");
        assert_eq!(one.in_store("b").len(), 1, "what is used stays");
        assert!(one.open("a", 1).is_ok());
    }
}

#[test]
fn a_late_commit_opens_nothing_that_is_used_and_removes_nothing_that_is() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let asked = one.ask("a", 6);
    let late = one.compose();
    let batch = late.batch();
    let (asks, used, next) = (batch.asks.to_vec(), batch.used.to_vec(), batch.next);
    one.give_up(late);
    assert!(answer(asked).is_err());
    assert_eq!(one.open("a", 6), Ok(true));
    let held = one.permit("a", 6);
    let found = one.rows.borrow_mut().advance(Batch {
        instance: instance(1),
        era: 0,
        asks: &asks,
        used: &used,
        next,
    });
    assert_eq!(found[0].open.len(), 2, "the one in use, and a stray");
    assert_eq!(one.in_store("a"), [(3, 6), (2, 6)]);
    assert_eq!(one.open("a", 6), Ok(false), "by memory");
    one.publish();
    assert_eq!(one.in_store("a"), [(3, 6)]);
    one.end("a", &held, Ending::Settled);
    assert_eq!(one.open("a", 7), Ok(true));
    assert_eq!(one.in_store("a"), [(4, 7)], "replaced in place");
}

#[test]
fn an_answer_after_a_rejoin_is_not_entered() {
    let one = One::alone();
    let asked = one.ask("a", 42);
    let sent = one.compose();
    let found = one.advance(&sent);
    one.bury_and_override("a", 7);
    one.rejoin(9);
    one.answered(sent, Ok(found));
    assert_eq!(kind(answer(asked)), "rejoined");
    assert_eq!(one.known("a"), None, "nothing is learned from it");
    assert_eq!(one.recall("a", 10), Ok(false));
    assert_eq!(one.open("a", 10), Ok(true));
    assert_eq!(one.recall("a", 10), Ok(true));
}

#[test]
fn a_request_that_has_left_is_passed_over() {
    let one = One::alone();
    drop(one.ask("a", 1));
    assert!(one.compose_on(LANE).is_none());
    let (gone, stays) = (one.ask("a", 9), one.ask("a", 3));
    drop(gone);
    one.turns();
    assert_eq!(answer(stays), Ok(true));
    assert_eq!(one.mark("a"), Some(3));
}

#[test]
fn a_statement_that_opens_nothing_though_it_should_is_a_loss() {
    let one = One::alone();
    let asked = one.ask("a", 5);
    let sent = one.compose();
    let mut found = one.advance(&sent);
    found[0].open.clear();
    one.answered(sent, Ok(found));
    assert_eq!(kind(answer(asked)), "lost");
    assert!(!one.is_open("a", 5));
}

// --- what is in use ---

/// The openings that the next statement says are in use.
fn used(one: &One) -> (Sent, Vec<Opening>) {
    let sent = one.compose();
    let used = sent.batch().used.to_vec();
    (sent, used)
}

#[test]
fn an_idle_older_epoch_is_left_out_and_closed_at_once() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let _newer = one.ask("a", 6);
    let (sent, used) = used(&one);
    assert_eq!((used.as_slice(), sent.batch().next), (&[][..], 3));
    // It gives no permit from now on, whatever becomes of the statement.
    assert!(!one.is_open("a", 5));
    assert_eq!(one.recall("a", 5), Ok(false));
    one.give_up(sent);
    assert!(!one.is_open("a", 5));
    assert_eq!(one.open("a", 5), Ok(false), "asked for again");
    assert_eq!(one.in_store("a"), [(3, 5)]);
}

#[test]
fn an_implausible_token_closes_nothing() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let leap = Needs {
        least: Some(token(1000)),
        present: false,
    };
    let leaps = one.ask_for("a", 5000, Want::Open, Some(leap));
    let (sent, used) = used(&one);
    assert_eq!(used, [1]);
    assert_eq!(one.recall("a", 5), Ok(true));
    one.run(sent);
    let refused = Refused::Implausible {
        mark: Some(token(5)),
    };
    assert_eq!(answer(leaps), Err(refused));
    one.passes("a", 5);
    assert_eq!(one.in_store("a"), [(1, 5)]);
}

#[test]
fn the_epoch_of_an_equal_token_stays() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let raised = one.ask_for("a", 5, Want::Raise, None);
    let (sent, used) = used(&one);
    assert_eq!(used, [1]);
    one.passes("a", 5);
    one.run(sent);
    assert_eq!(answer(raised), Ok(false));
    assert_eq!(one.in_store("a"), [(1, 5)]);
}

#[test]
fn what_is_in_flight_or_unknown_stays_and_holds_the_newer_token() {
    for ending in [Ending::Settled, Ending::Unknown] {
        let one = One::alone();
        assert!(one.open("a", 5).is_ok());
        let ticket = one.permit("a", 5);
        let settles = (ending == Ending::Unknown)
            .then(|| one.end("a", &ticket, ending).expect("when it settles"));
        let asked = one.ask("a", 6);
        let (sent, used) = used(&one);
        assert_eq!(used, [1]);
        one.run(sent);
        assert_eq!(answer(asked), Ok(true));
        assert_eq!(one.in_store("a"), [(1, 5), (2, 6)]);
        assert!(ticket.superseded.is_cancelled());
        let known_left = settles.map(|_| SETTLE);
        let entered = one.enter("a", 6);
        assert!(
            matches!(entered, Ok(Entered::Wait { known_left: left }) if left == known_left),
            "{entered:?}"
        );
        // And it stays in use for the next one.
        let _newest = one.ask("a", 7);
        let (sent, used) = self::used(&one);
        assert_eq!((used.as_slice(), sent.batch().next), (&[1][..], 4));
        one.give_up(sent);
        assert_eq!(one.open("a", 6), Ok(false));
        match settles {
            Some(Settles { number, at }) => {
                assert_eq!(at, one.now.get() + SETTLE);
                assert!(one.table.settled(&key("a"), number, at));
                assert!(!one.table.settled(&key("a"), number, at), "once");
            }
            None => assert!(one.end("a", &ticket, ending).is_none()),
        }
        let six = one.permit("a", 6);
        one.publish();
        assert_eq!(one.in_store("a"), [(4, 6)]);
        one.end("a", &six, Ending::Settled);
    }
}

/// Its row has epochs of two instances, and it is told whom it waits for.
#[test]
fn older_epochs_of_others_are_waited_for_and_newer_ones_are_not() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    let asked = two.ask("a", 6);
    let older = two.run(two.compose());
    assert_eq!(answer(asked), Ok(true));
    let five = Epoch {
        instance: instance(1),
        opening: 1,
        token: token(5),
    };
    assert_eq!(
        older,
        [Notification::to(five.instance, &key("a"), token(6))]
    );
    assert!(two.waits("a", 6));
    // An equal token of another instance is not older.
    let asked = one.ask("a", 6);
    assert_eq!(one.run(one.compose()), []);
    assert_eq!(answer(asked), Ok(false));
    assert_eq!(two.in_store("a").len(), 2, "5 is gone");
    one.passes("a", 6);
    // And both hold the next one back.
    assert!(one.open("a", 7).is_ok());
    assert!(one.waits("a", 7), "two has 6 open");
}

#[test]
fn whoever_waits_for_others_is_found_as_long_as_it_waits() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    assert!(two.open("a", 6).is_ok());
    assert_eq!(two.table.waited_for(), [], "nobody waits");
    let (a, b) = (key("a"), key("b"));
    two.table.queue(&a, token(6), ROOM).expect("a place");
    two.table.queue(&a, token(6), ROOM).expect("a place");
    two.table.queue(&b, token(6), ROOM).expect("a place");
    for _ in 0..2 {
        let waited: Vec<_> = two.table.waited_for();
        assert_eq!(waited.len(), 1);
        assert_eq!((&waited[0].resource, waited[0].waits), (&a, Some(token(6))));
        two.table.unqueue(&a, token(6));
    }
    assert_eq!(two.table.waited_for(), []);
    two.table.unqueue(&b, token(6));
    assert_eq!(two.active(), 1);
}

#[test]
fn an_operator_resolves_one_unknown_outcome_by_its_number() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let tickets = [one.permit("a", 5), one.permit("a", 5)];
    let numbers = tickets.map(|ticket| one.end("a", &ticket, Ending::Unknown).expect("set").number);
    assert!(one.open("a", 6).is_ok());
    let activity = one.table.activity(&key("a"), one.now.get());
    let known: Vec<u64> = activity.unknown.iter().map(|one| one.number).collect();
    assert_eq!(known, numbers);
    for number in numbers {
        assert!(one.waits("a", 6));
        assert!(one.table.settled(&key("a"), number, one.now.get()));
    }
    one.passes("a", 6);
}

// --- row locks ---

fn locked() -> Result<Vec<Found>, StoreError> {
    Err(StoreError::LockTimeout("a row".to_owned()))
}

#[test]
fn a_locked_row_goes_aside_and_delays_the_others_once() {
    let one = One::alone();
    let mut asked = ["a", "b", "locked"].map(|on| one.ask(on, 1));
    let sent = one.compose();
    assert_eq!(sent.batch().asks.len(), 3);
    one.answered(sent, locked());
    assert!(asked.iter_mut().all(|asked| answer_of(asked).is_none()));
    assert!(one.compose_on(LANE).is_none(), "each by itself");
    for _ in 0..3 {
        let sent = one.compose_on(Lane::Aside).expect("one of them");
        let [ask] = sent.batch().asks else {
            panic!("{:?}", sent.batch())
        };
        if ask.resource == key("locked") {
            one.answered(sent, locked());
        } else {
            one.run(sent);
        }
    }
    let [a, b, mut first] = asked;
    assert_eq!((answer(a), answer(b)), (Ok(true), Ok(true)));
    // It is kept out of the batches of the others from now on, and they are not.
    let (newer, other) = (one.ask("locked", 2), one.ask("a", 2));
    let sent = one.compose();
    assert_eq!(sent.batch().asks.len(), 1);
    one.run(sent);
    assert_eq!(answer(other), Ok(true));
    assert!(answer_of(&mut first).is_none());
    let sent = one.compose_on(Lane::Aside).expect("the locked one");
    one.run(sent);
    assert_eq!(answer(newer), Ok(true));
    assert_eq!(answer(first), stale(2, DecidedBy::Store));
    let _later = one.ask("locked", 3);
    assert!(one.compose_on(Lane::Aside).is_none());
    assert!(one.compose_on(LANE).is_some(), "its row is free");
}

#[test]
fn a_statement_names_no_more_resources_than_allowed() {
    let one = One::alone();
    let asked: Vec<Asked> = (0..1500).map(|n| one.ask(&format!("r{n}"), 1)).collect();
    let sent = one.compose();
    assert_eq!(sent.batch().asks.len(), 1024);
    one.run(sent);
    one.turns();
    assert!(asked.into_iter().all(|asked| answer(asked) == Ok(true)));
}
