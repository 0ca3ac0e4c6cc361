//! Losses after a failover: detected, refused, written back, and served again once settled.

use super::*;

#[test]
fn a_lost_mark_is_seen_quarantined_and_written_back() {
    let one = One::alone();
    assert!(one.want("a", 3, Want::Raise).is_ok());
    let behind = one.snapshot();
    assert!(one.want("a", 10, Want::Raise).is_ok());
    one.fail_over(behind);
    assert_eq!(kind(one.open("a", 10)), "lost");
    assert_eq!((one.losses(), one.known("a")), (1, Some(10)));
    let left = one.recall("a", 10);
    assert_eq!(left, Err(Refused::Unavailable(Undecided::Repairing(LOSS))));
    assert_eq!(one.recall("a", 3), stale(10, DecidedBy::Memory));
    one.pass(SECOND);
    one.repair();
    assert_eq!(one.mark("a"), Some(10));
    assert_eq!(
        one.recall("a", 10),
        Err(Refused::Unavailable(Undecided::Repairing(LOSS))),
        "from now"
    );
    one.publish();
    assert!(
        one.in_store("a").is_empty(),
        "no instance claims that opening"
    );
    one.pass(LOSS.saturating_sub(SECOND));
    assert_eq!(
        one.recall("a", 11),
        Err(Refused::Unavailable(Undecided::Repairing(SECOND)))
    );
    one.pass(SECOND);
    assert_eq!(one.recall("a", 10), Ok(false));
    assert_eq!(one.open("a", 10), Ok(false));
    one.passes("a", 10);
}

#[test]
fn a_statement_finds_that_an_epoch_in_use_is_missing() {
    for holds in [true, false] {
        let one = One::alone();
        assert!(one.want("a", 5, Want::Raise).is_ok());
        let behind = one.snapshot();
        assert!(one.open("a", 5).is_ok());
        let held = one.permit("a", 5);
        one.fail_over(behind);
        one.holds.set(holds);
        let asked = one.ask("a", 6);
        one.run(one.compose());
        let refused = answer(asked);
        assert_eq!((refused.is_err(), one.losses()), (holds, u64::from(holds)));
        if holds {
            assert_eq!(kind(refused), "lost");
            one.repair();
            let open = one.in_store("a");
            assert!(
                open.contains(&(1, 5)),
                "what is in flight stands there again: {open:?}"
            );
        }
        one.end("a", &held, Ending::Settled);
    }
}

/// As of the moment at which it was composed; one that was closed since is not missing.
#[test]
fn an_epoch_that_closes_while_a_statement_is_on_its_way_is_not_lost() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let asked = one.ask_for("a", 5, Want::Raise, None);
    let sent = one.compose();
    assert_eq!(sent.batch().used, [1]);
    one.pass(IDLE);
    one.publish();
    let found = one.advance(&sent);
    assert!(found[0].open.is_empty());
    one.answered(sent, Ok(found));
    assert_eq!((answer(asked), one.losses()), (Ok(false), 0));
}

/// The mark that was known when the statement was composed counts. It cannot be missing from an
/// answer that was on its way before.
#[test]
fn a_mark_that_is_learned_meanwhile_is_not_missing() {
    let (one, two) = One::pair();
    let asked = one.ask("a", 5);
    let sent = one.compose();
    let found = one.advance(&sent);
    assert!(two.open("a", 7).is_ok());
    one.look("a");
    assert_eq!(one.known("a"), Some(7));
    one.answered(sent, Ok(found));
    assert_eq!(one.losses(), 0);
    assert_eq!(answer(asked), Ok(true));
    // An answer that comes late opens nothing behind a newer mark.
    assert_eq!(one.active(), 0);
    assert_eq!(one.recall("a", 5), stale(7, DecidedBy::Memory));
}

#[test]
fn a_repair_writes_all_back_that_may_be_in_flight() {
    let one = One::alone();
    let empty = one.snapshot();
    assert!(one.open("a", 5).is_ok());
    let held = [one.permit("a", 5), one.permit("a", 5)];
    one.end("a", &held[0], Ending::Unknown);
    assert!(one.open("a", 6).is_ok());
    one.fail_over(empty);
    one.look("a");
    one.repair();
    assert_eq!(
        (one.mark("a"), one.in_store("a")),
        (Some(6), vec![(1, 5), (2, 6)])
    );
    // The epoch of 6 from before gives no permit, and one that is opened again does.
    one.pass(LOSS);
    one.end("a", &held[1], Ending::Settled);
    assert!(!one.is_open("a", 6));
    assert_eq!(one.losses(), 2, "the mark was missing too");
}

/// After the repair, a request waits for epochs that were opened behind the lost mark.
#[test]
fn an_epoch_from_before_a_loss_serves_no_more() {
    let (one, two) = One::pair();
    let empty = one.snapshot();
    assert!(two.open("a", 7).is_ok());
    one.fail_over(empty);
    assert!(one.open("a", 6).is_ok());
    let six = one.permit("a", 6);
    two.look("a");
    assert!(two.is_repairing("a", 7));
    two.repair();
    assert_eq!(two.mark("a"), Some(7));
    two.pass(LOSS);
    assert_eq!(two.recall("a", 7), Ok(false));
    assert_eq!(two.open("a", 7), Ok(false));
    assert!(two.waits("a", 7));
    one.look("a");
    one.end("a", &six, Ending::Settled);
    assert_eq!(one.cede(), [6]);
    two.look("a");
    two.passes("a", 7);
}

#[test]
fn what_was_overridden_since_is_not_written_back() {
    let one = One::alone();
    let empty = one.snapshot();
    assert!(one.open("a", 42).is_ok());
    let held = one.permit("a", 42);
    one.fail_over(empty);
    one.look("a");
    // The store comes back, and an operator is faster than the repair.
    let _raised = {
        let mut rows = one.rows.borrow_mut();
        let mark = Mark::at(token(30));
        rows.marks.insert(key("a"), mark);
        rows.override_mark(&key("a"), token(10), &signed("why", "who"))
    };
    one.repair();
    assert_eq!((one.mark("a"), one.table.era()), (Some(10), 1));
    assert_eq!(one.in_store("a"), [(1, 42)], "it is in flight all the same");
    assert!(held.superseded.is_cancelled());
    one.pass(LOSS);
    one.end("a", &held, Ending::Settled);
    assert_eq!(one.open("a", 11), Ok(true));
}

#[test]
fn a_resource_of_which_nothing_is_known_serves_again_by_itself() {
    let one = One::alone();
    assert!(one.want("a", 5, Want::Raise).is_ok());
    one.fail_over(Rows::default());
    assert!(one.open("a", 5).is_err());
    one.table.adopt(1);
    let keys = one.to_repair();
    assert!(one.table.to_repair(&keys, &one.by.borrow()).is_empty());
    one.table.nothing_to_repair(&key("a"), one.now.get());
    one.pass(LOSS);
    assert_eq!(one.publish().below, 2);
    assert_eq!(one.active(), 0, "lifted with the publication");
}
