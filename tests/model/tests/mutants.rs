//! Each way to break the protocol, and that the model finds it: the shortest way to it is printed
//! (`--nocapture`), and its length.

use fencepost_model::state::Broken;
use fencepost_model::{Bounds, Features, Mutant, refute};

/// Two proxies, two tokens, and nothing unusual.
const PLAIN: Bounds = Bounds {
    tokens: 2,
    exchanges: 1,
    openings: 1,
    late: 0,
    ..Bounds::new("mutant", Features::NONE)
};

/// One of them can be declared dead.
const MORTAL: Bounds = Bounds {
    lives: 2,
    mortal: 1,
    features: Features::LEASE,
    ..PLAIN
};

/// The store fails over.
const LOSING: Bounds = PLAIN.having(Features::FAILOVER);

/// What is sent is in transit before it arrives.
const IN_TRANSIT: Bounds =
    MORTAL.having(Features::LEASE.and(Features::CRASH).and(Features::TRANSIT));

/// Some of it trickles.
const TRICKLING: Bounds = IN_TRANSIT.having(IN_TRANSIT.features.and(Features::TRICKLE));

/// What is in transit, of exchanges that break.
const BREAKING: Bounds = PLAIN.having(Features::BREAK.and(Features::TRANSIT));

/// The same, with a queue in the library.
const QUEUED: Bounds = PLAIN.having(Features::BREAK.and(Features::TRANSIT).and(Features::QUEUE));

/// More tokens, and epochs that open again.
const ROOMY: Bounds = Bounds {
    tokens: 3,
    openings: 2,
    ..PLAIN
};

/// One proxy whose mark comes to the same token again: it may be given back before an override.
const AGAIN: Bounds = Bounds {
    proxies: 1,
    openings: 2,
    late: 1,
    features: Features::SPEND.and(Features::OVERRIDE),
    ..PLAIN
};

/// A test for each: the bounds, the mistake in them, and what it must break.
macro_rules! refuted {
    ($($test:ident: $bounds:expr, $mutant:ident, $broken:ident;)*) => {$(
        #[test]
        fn $test() {
            refute($bounds.with(Mutant::$mutant, Broken::$broken));
        }
    )*};
}

refuted! {
    forward_before_commit: PLAIN, ForwardBeforeCommit, ORDER;
    barrier_per_process: PLAIN, BarrierPerProcess, ORDER;
    dead_epochs_deleted_without_settle: MORTAL, BuryWithoutSettle, ORDER;
    buried_without_a_look_whether_dead: MORTAL, BuryWithoutLook, ORDER;
    lease_looked_at_only_before_the_send: MORTAL, LeaseOnlyBeforeSend, ORDER;
    // The first byte goes out under the lease and what follows does not: found with one write as
    // with two.
    lease_looked_at_for_the_first_part_of_a_body_only:
        MORTAL.having(Features::LEASE | Features::BODY), LeaseOnlyBeforeSend, ORDER;
    declared_dead_before_the_lease_has_lapsed: MORTAL, DeclaredTooSoon, ORDER;
    older_epochs_read_in_the_advance_itself: PLAIN, EpochsInOwnStatement, ORDER;
    close_travelling_with_an_advance: ROOMY, CloseWithAdvance, ORDER;
    no_look_again_after_a_wait: ROOMY, NoSecondLook, ORDER;
    select_then_update: PLAIN, SelectThenUpdate, FELL;
    late_answer_used: MORTAL, LateAnswerUsed, ORDER;
    epoch_closed_before_drained: PLAIN, CloseBeforeDrained, ORDER;
    broken_exchange_taken_for_over: PLAIN.having(Features::BREAK), BrokenIsOver, ORDER;
    early_answer_ends_the_permit: BREAKING, EarlyAnswerSettles, ORDER;
    early_answer_ends_the_permit_with_bytes_queued: QUEUED, EarlyAnswerSettles, ORDER;
    closed_in_order_with_bytes_undelivered: BREAKING, ClosedInOrder, ORDER;
    closed_in_order_with_bytes_queued: QUEUED, ClosedInOrder, ORDER;
    given_up_without_a_reset: BREAKING, GiveUpWithoutReset, ORDER;
    queued_in_the_library_and_not_reset: QUEUED, QueueNotReset, ORDER;
    dead_waited_for_without_the_user_timeout: IN_TRANSIT, NoUserTimeout, ORDER;
    // Bytes that do not move are given up after the user timeout, which is waited for. Those that
    // trickle are not.
    death_that_leaves_bytes_to_the_kernel: TRICKLING, NoLinger, ORDER;
    lapsed_and_not_cut_off_within_the_user_timeout: TRICKLING, LateCutoff, ORDER;
    acknowledged_commit_lost: PLAIN, LostCommit, ORDER;
    loss_without_bar: LOSING, LossWithoutBar, ORDER;
    loss_without_settle: LOSING, LossWithoutSettle, ORDER;
    loss_with_epochs_from_before: LOSING, LossKeepsEpochs, ORDER;
    override_without_an_era: PLAIN.having(Features::OVERRIDE), EraStays, UNDONE;
    override_without_an_era_is_forgotten_by_nobody:
        PLAIN.having(Features::OVERRIDE), EraStays, REMEMBERED;
    override_without_a_look_at_epochs:
        PLAIN.having(Features::OVERRIDE), OverrideWithoutLook, UNDER_WAY;
    spent_after_the_send: PLAIN.having(Features::SPEND), SpendAfterSend, TWICE;
    given_back_without_its_name: AGAIN, GiveBackWithoutName, TWICE;
}
