//! Rows that are read: they may be out of date when they are entered.

use super::*;
use crate::fencing::epochs::tests::look::Looking;

#[test]
fn a_newer_mark_supersedes_and_what_is_left_is_ceded() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    let held = one.permit("a", 5);
    assert!(two.open("a", 6).is_ok());
    assert_eq!(one.recall("a", 5), Ok(true));
    one.look("a");
    assert_eq!(one.recall("a", 5), stale(6, DecidedBy::Memory));
    assert!(held.superseded.is_cancelled());
    assert!(one.cede().is_empty(), "it is in flight");
    assert_eq!(two.in_store("a").len(), 2);
    one.end("a", &held, Ending::Settled);
    assert_eq!(one.cede(), [5]);
    two.look("a");
    two.passes("a", 6);
    assert!(two.cede().is_empty(), "nobody waits for it");
}

/// The next server may lack the epoch, and what others let in behind it.
#[test]
fn after_a_change_of_servers_memory_permits_nothing_before_the_row_was_read() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let held = one.permit("a", 5);
    let before = one.looking("a");
    one.table.another_server();
    assert_eq!(one.recall("a", 5), Ok(false));
    assert!(matches!(one.enter("a", 5), Ok(Entered::NotOpen)));
    assert!(!held.superseded.is_cancelled());
    one.looked(&before, &one.row("a"), 0);
    assert!(!one.is_open("a", 5), "read from the server of before");
    one.look("a");
    one.passes("a", 5);
}

#[test]
fn a_newer_mark_that_a_statement_finds_is_wanted_by_others() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    let held = one.permit("a", 5);
    assert!(two.open("a", 6).is_ok());
    assert_eq!(one.want("a", 5, Want::Raise), stale(6, DecidedBy::Store));
    one.end("a", &held, Ending::Settled);
    assert_eq!(one.cede(), [5]);
}

#[test]
fn an_older_epoch_is_waited_for_until_it_is_not_in_the_row() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    assert!(two.open("a", 6).is_ok());
    let bell = two.table.queue(&key("a"), token(6), ROOM).expect("a place");
    two.look("a");
    assert!(two.waits("a", 6), "it is still open");
    one.pass(IDLE);
    one.publish();
    let rung = bell.notified();
    let mut rung = std::pin::pin!(rung);
    rung.as_mut().enable();
    assert!(two.waits("a", 6), "not read yet");
    two.look("a");
    assert!(rung.enable(), "woken");
    two.passes("a", 6);
}

/// A read that was sent before an epoch was opened says nothing of what stood in its way.
#[test]
fn a_read_from_before_an_epoch_ends_no_older_one() {
    let (one, two) = One::pair();
    assert!(two.open("a", 3).is_ok());
    let (looking, row) = (two.looking("a"), two.row("a"));
    assert!(one.open("a", 5).is_ok());
    assert!(two.open("a", 6).is_ok());
    assert!(two.waits("a", 6));
    two.looked(&looking, &row, 0);
    assert!(two.waits("a", 6), "5 has not ended");
    assert_eq!(two.losses(), 0);
}

/// Its own epoch is missing as well: a loss, and not the end of others. Under a lapsed lease that
/// is not called a loss.
#[test]
fn a_row_without_an_epoch_in_use_ends_no_older_one() {
    for holds in [true, false] {
        let (one, two) = One::pair();
        assert!(one.want("a", 3, Want::Raise).is_ok());
        let before = one.snapshot();
        assert!(one.open("a", 5).is_ok());
        assert!(two.open("a", 6).is_ok());
        two.fail_over(before);
        two.holds.set(holds);
        two.look("a");
        assert_eq!(two.is_repairing("a", 6), holds);
        assert_eq!(two.losses(), u64::from(holds));
        if holds {
            two.repair();
            assert_eq!(two.mark("a"), Some(6));
            two.pass(LOSS);
            assert!(
                !two.is_open("a", 6),
                "others may have opened behind the mark"
            );
        }
        two.holds.set(true);
        assert!(two.waits("a", 6) || !two.is_open("a", 6));
    }
}

/// Reads a row, lets `meanwhile` happen, and enters what was read.
fn read_then(one: &One, read: impl FnOnce(&One) -> Found, meanwhile: impl FnOnce(&One)) {
    let (era, looking): (Era, Looking) = (one.table.era(), one.looking("a"));
    let row = read(one);
    meanwhile(one);
    one.looked(&looking, &row, era);
}

#[test]
fn an_epoch_is_missing_only_if_it_was_in_use_before_and_still_is() {
    let lost = |one: &One| Found {
        open: Vec::new(),
        ..one.row("a")
    };
    // Registered since.
    let one = One::alone();
    let asked = one.ask("a", 5);
    let sent = one.compose();
    read_then(&one, lost, |one| drop(one.run(sent)));
    assert_eq!(answer(asked), Ok(true));
    one.passes("a", 5);
    // Closed since.
    read_then(&one, lost, |one| {
        one.pass(IDLE);
        one.publish();
    });
    assert!(one.open("a", 5).is_ok());
    assert!(one.open("a", 6).is_ok());
    one.passes("a", 6);
    // In use all the while.
    assert_eq!(one.losses(), 0);
    read_then(&one, lost, |_| {});
    assert_eq!(one.losses(), 1);
    assert!(one.is_repairing("a", 6));
    assert_eq!(one.to_repair(), [key("a")]);
}

#[test]
fn a_row_of_another_era_than_it_was_read_in_is_not_entered() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    // Of an era that is not known here.
    two.raised("a", 6);
    two.rows
        .borrow_mut()
        .marks
        .get_mut(&key("a"))
        .expect("a mark")
        .era = 1;
    one.look("a");
    assert_eq!((one.table.era(), one.known("a")), (1, Some(5)));
    // The era has changed since it was sent.
    read_then(&one, |one| one.row("a"), |one| one.table.adopt(2));
    assert_eq!(one.known("a"), Some(5));
    one.look("a");
    assert_eq!(one.known("a"), Some(6));
}

#[test]
fn a_permit_from_memory_has_its_row_read_again_after_a_while() {
    let one = One::alone();
    let looks = |one: &One| one.table.errands.later.take(9);
    assert!(one.open("a", 5).is_ok());
    one.pass(LOOK_AGAIN.saturating_sub(Duration::from_millis(1)));
    one.passes("a", 5);
    assert_eq!(looks(&one), []);
    one.pass(Duration::from_millis(1));
    one.passes("a", 5);
    one.passes("a", 5);
    assert_eq!(looks(&one), [key("a")], "once");
    one.pass(LOOK_AGAIN / 2);
    one.passes("a", 5);
    assert_eq!(looks(&one), []);
}

#[test]
fn a_row_that_nobody_else_can_change_is_not_read_again() {
    let mut one = One::alone();
    one.table.setup.shared = false;
    assert!(one.open("a", 5).is_ok());
    for _ in 0..3 {
        one.pass(LOOK_AGAIN.saturating_sub(SECOND));
        one.passes("a", 5);
    }
    assert_eq!(one.table.errands.later.take(9), []);
}

#[test]
fn all_open_epochs_are_found_shard_by_shard() {
    let one = One::alone();
    let mut names: Vec<String> = (0..500).map(|n| format!("r{n}")).collect();
    for name in &names {
        assert!(one.open(name, 5).is_ok());
    }
    assert!(one.want("raised", 5, Want::Raise).is_ok());
    let open = one.table.with_epochs().flatten();
    let mut open: Vec<String> = open.map(|key| key.to_string()).collect();
    open.sort();
    names.sort();
    assert_eq!(open, names);
}
