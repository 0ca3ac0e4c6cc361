//! Spent tokens: a spending that a failover has lost, alone or with its mark, and states that only
//! look like one.

use super::*;

fn spend(one: &One, name: &str) -> Answer {
    one.want("a", 5, Want::Spend(name.to_owned()))
}

/// An instance that has spent 5 under this name.
fn spent(one: &One, name: &str) {
    assert!(one.open("a", 5).is_ok());
    assert_eq!(spend(one, name), Ok(false));
}

fn spent_by(one: &One) -> Option<String> {
    one.rows.borrow().marks[&key("a")].spent_by.clone()
}

/// A failover to a replica that has the mark and not the spending.
fn lose_spending(one: &One) {
    let mut rows = one.rows.borrow_mut();
    rows.marks.get_mut(&key("a")).expect("a mark").spent_by = None;
}

fn give_back(one: &One, name: &str) {
    one.table.give_up_spent(&key("a"), name);
    one.rows.borrow_mut().give_back(&key("a"), token(5), name);
}

/// Refuses the token until it is repaired and has settled, and then because it is spent.
fn is_repaired(one: &One) {
    assert!(one.is_repairing("a", 5));
    let losses = one.losses();
    one.repair();
    assert!(spent_by(one).is_some(), "written back");
    one.pass(LOSS);
    assert!(one.open("a", 5).is_ok());
    assert_eq!(spend(one, "later"), Err(Refused::Spent));
    assert_eq!(one.losses(), losses, "one loss, once");
}

#[test]
fn a_token_is_spent_once_also_within_a_statement_and_given_back_by_name() {
    let one = One::alone();
    assert!(one.open("a", 5).is_ok());
    let spends = ["x", "y"].map(|name| one.ask_for("a", 5, Want::Spend(name.into()), None));
    one.turns();
    assert_eq!(spends.map(answer), [Ok(false), Err(Refused::Spent)]);
    give_back(&one, "y");
    assert_eq!(spend(&one, "z"), Err(Refused::Spent));
    give_back(&one, "x");
    assert_eq!(spend(&one, "z"), Ok(false));
    assert_eq!(one.losses(), 0);
}

#[test]
fn a_lost_spending_is_a_loss_whatever_asks() {
    for want in [Want::Spend("y".into()), Want::Raise] {
        let one = One::alone();
        spent(&one, "x");
        lose_spending(&one);
        assert_eq!(kind(one.want("a", 5, want)), "lost");
        assert_eq!(one.losses(), 1);
        is_repaired(&one);
    }
}

/// No client asks this instance for it, and it would pass at any other one.
#[test]
fn a_lost_spending_is_found_by_a_look() {
    let one = One::alone();
    spent(&one, "x");
    one.look("a");
    assert_eq!(one.losses(), 0);
    lose_spending(&one);
    one.look("a");
    assert_eq!(one.losses(), 1);
    is_repaired(&one);
}

/// A row that was read while it was given back, and one in which it was given back elsewhere.
#[test]
fn a_spending_that_a_look_finds_given_back_is_no_loss() {
    let (one, two) = One::pair();
    spent(&one, "x");
    assert_eq!(spend(&two, "y"), Err(Refused::Spent));
    let looking = one.looking("a");
    give_back(&one, "x");
    one.looked(&looking, &one.row("a"), 0);
    two.look("a");
    assert_eq!((one.losses(), two.losses()), (0, 0));
}

#[test]
fn a_spending_that_is_lost_with_its_mark_is_written_back_with_it() {
    let one = One::alone();
    assert!(one.want("a", 4, Want::Raise).is_ok());
    let behind = one.snapshot();
    spent(&one, "x");
    one.fail_over(behind);
    assert_eq!(kind(one.want("a", 5, Want::Raise)), "lost");
    is_repaired(&one);
    assert_eq!(spent_by(&one).as_deref(), Some("x"));
}

/// An override or a prune elsewhere begins an era. What is open here cannot have been touched.
#[test]
fn a_spending_is_missed_in_a_later_era_too_while_its_epoch_is_open() {
    let one = One::alone();
    spent(&one, "x");
    one.table.adopt(1);
    one.look("a");
    lose_spending(&one);
    assert_eq!(kind(one.want("a", 5, Want::Raise)), "lost");
    is_repaired(&one);
    assert_eq!(spent_by(&one).as_deref(), Some("x"));
}

/// A mark that is made again after a prune has era 0.
#[test]
fn a_spending_that_was_pruned_is_no_loss() {
    let one = One::alone();
    assert!(one.want("a", 5, Want::Spend("x".into())).is_ok());
    one.rows.borrow_mut().marks.remove(&key("a"));
    one.table.adopt(1);
    assert!(one.open("a", 3).is_ok());
    assert_eq!(one.losses(), 0);
}

#[test]
fn what_was_seen_spent_elsewhere_is_missed_too() {
    let (one, two) = One::pair();
    spent(&one, "x");
    assert_eq!(spend(&two, "y"), Err(Refused::Spent));
    lose_spending(&one);
    assert_eq!(kind(spend(&two, "z")), "lost");
    assert_eq!(two.losses(), 1);
}

#[test]
fn what_was_given_back_is_no_loss() {
    let (one, two) = One::pair();
    spent(&one, "x");
    assert_eq!(spend(&two, "y"), Err(Refused::Spent));
    give_back(&one, "x");
    assert!(one.open("a", 5).is_ok());
    assert_eq!(spend(&two, "z"), Ok(false));
    // Another name stands there now, and that is no loss either.
    assert_eq!(spend(&one, "w"), Err(Refused::Spent));
    assert_eq!((one.losses(), two.losses()), (0, 0));
}

/// Its outcome is unknown, and it may still be done at any time.
#[test]
fn a_giving_back_in_doubt_leaves_nothing_known() {
    for commits in ["never", "before", "after"] {
        let one = One::alone();
        spent(&one, "x");
        one.table.give_up_spent(&key("a"), "x");
        let commit = || give_back(&one, "x");
        if commits == "before" {
            commit();
        }
        let spent = spend(&one, "y");
        assert_eq!(spent.is_ok(), commits == "before");
        if commits == "after" {
            commit();
        }
        let again = spend(&one, "z");
        assert!(matches!(again, Ok(_) | Err(Refused::Spent)));
        assert_eq!(one.losses(), 0, "{commits}");
    }
}

#[test]
fn an_override_that_clears_what_is_spent_is_no_loss() {
    let one = One::alone();
    assert!(one.want("a", 5, Want::Raise).is_ok());
    assert_eq!(spend(&one, "x"), Ok(false));
    let done = one
        .rows
        .borrow_mut()
        .override_mark(&key("a"), token(5), &signed("why", "who"));
    assert!(matches!(done, Override::Done { .. }), "{done:?}");
    assert!(one.open("a", 5).is_ok());
    assert_eq!(spend(&one, "y"), Ok(false));
    assert_eq!(one.losses(), 0);
}

/// An instance that knew of nothing has spent the token once more. That cannot be undone, but it is
/// reported, once.
#[test]
fn a_token_that_was_spent_again_behind_a_loss_is_reported_once() {
    let (one, two) = One::pair();
    spent(&one, "x");
    lose_spending(&one);
    assert_eq!(spend(&two, "y"), Ok(false));
    assert_eq!(kind(one.want("a", 5, Want::Raise)), "lost");
    is_repaired(&one);
    assert_eq!(one.losses(), 1);
}
