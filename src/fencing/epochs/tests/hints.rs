//! Notifications, which any login of the database can send, and operators' overrides.

use super::*;

fn looks(one: &One) -> Vec<ResourceKey> {
    one.table.errands.looks.take(9)
}

fn hinted(one: &One, on: &str, waits: Option<i64>) {
    one.table.hinted(&hint(on, waits));
}

#[test]
fn a_hint_cedes_what_is_idle_without_a_read() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    assert!(two.open("a", 6).is_ok());
    hinted(&one, "a", Some(6));
    assert!(!one.is_open("a", 5));
    assert_eq!((looks(&one), one.cede()), (vec![], vec![5]));
    assert_eq!(two.in_store("a"), [(1, 6)]);
    hinted(&two, "a", None);
    assert_eq!(
        looks(&two),
        [key("a")],
        "one was closed, and 5 is waited for"
    );
    two.look("a");
    two.passes("a", 6);
    hinted(&two, "a", None);
    assert_eq!(looks(&two), []);
}

#[test]
fn a_hint_about_what_is_busy_has_the_row_read() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    let held = one.permit("a", 5);
    // Forged, or early: nothing is concluded from it.
    hinted(&one, "a", Some(6));
    assert_eq!(looks(&one), [key("a")]);
    one.look("a");
    assert_eq!(one.recall("a", 5), Ok(true));
    assert!(!held.superseded.is_cancelled());
    assert!(two.open("a", 6).is_ok());
    hinted(&one, "a", Some(6));
    assert_eq!(looks(&one), [key("a")]);
    one.look("a");
    assert!(held.superseded.is_cancelled());
    hinted(&one, "a", Some(6));
    assert_eq!(looks(&one), [], "known already");
    one.end("a", &held, Ending::Settled);
    assert_eq!(one.cede(), [5]);
}

/// Its requests wait themselves, and would be sent to the store again and again.
#[test]
fn a_hint_closes_nothing_that_requests_wait_with() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    assert!(two.open("a", 6).is_ok());
    two.table.queue(&key("a"), token(6), ROOM).expect("a place");
    hinted(&two, "a", Some(7));
    assert!(two.waits("a", 6));
    assert_eq!((looks(&two), two.cede()), (vec![key("a")], vec![]));
}

#[test]
fn a_hint_that_is_not_newer_or_about_nothing_here_changes_nothing() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    for (on, waits, read) in [
        ("a", Some(5), true),
        ("a", Some(4), true),
        ("a", None, false),
        ("b", Some(i64::MAX), true),
        ("b", None, false),
    ] {
        hinted(&one, on, waits);
        let read = if read { vec![key(on)] } else { vec![] };
        assert_eq!((looks(&one), one.cede()), (read, vec![]), "{on} {waits:?}");
        one.look(on);
    }
    assert!(one.cede().is_empty());
    one.passes("a", 5);
    assert_eq!((one.known("b"), one.active()), (None, 1));
}

/// The statement was given up, and has opened an epoch after all.
#[test]
fn a_hint_about_an_epoch_that_was_never_used_cedes_it() {
    let (one, two) = One::pair();
    let asked = one.ask("a", 5);
    let sent = one.compose();
    one.advance(&sent);
    one.give_up(sent);
    drop(asked);
    assert!(two.open("a", 6).is_ok());
    assert!(two.waits("a", 6));
    hinted(&one, "a", Some(6));
    assert_eq!(looks(&one), [key("a")]);
    one.look("a");
    assert_eq!(one.cede(), [5]);
    two.look("a");
    two.passes("a", 6);
}

// --- overrides ---

fn released(one: &One, on: &str) -> Vec<i64> {
    let open = one.rows.borrow().open(&key(on));
    let me = one.by.borrow().instance;
    let released = one.table.release(&key(on), me, &open);
    released.iter().map(|epoch| epoch.token.get()).collect()
}

#[test]
fn an_override_releases_what_this_instance_does_not_use() {
    let (one, two) = One::pair();
    assert!(one.open("a", 5).is_ok());
    assert!(two.open("a", 5).is_ok());
    let held = one.permit("a", 5);
    assert!(released(&one, "a").is_empty(), "it is in flight");
    one.end("a", &held, Ending::Settled);
    assert_eq!(released(&one, "a"), [5], "its own, and no other's");
    assert!(!one.is_open("a", 5));
}

#[test]
fn an_override_does_not_release_the_opening_of_a_statement_on_its_way() {
    let one = One::alone();
    let asked = one.ask("a", 5);
    let sent = one.compose();
    let found = one.advance(&sent);
    assert!(released(&one, "a").is_empty());
    one.answered(sent, Ok(found));
    assert_eq!(answer(asked), Ok(true));
    one.passes("a", 5);

    let _asked = one.ask("a", 6);
    let sent = one.compose();
    one.advance(&sent);
    one.give_up(sent);
    assert_eq!(released(&one, "a"), [6], "that one is never used");
}
