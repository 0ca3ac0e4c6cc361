//! Each way to break the protocol, and that the model finds it: the shortest way to it is printed
//! (`--nocapture`), and its length.

use fencepost_model::outcome::{self, Bounds as OutcomeBounds, Request};
use fencepost_model::{self as protocol, Bounds, Features, refute};

/// Two proxies, two tokens, and nothing unusual.
const PLAIN: Bounds = Bounds {
    tokens: 2,
    exchanges: 1,
    openings: 1,
    late: 0,
    ..Bounds::PLAIN
};

/// One of them can be declared dead.
const MORTAL: Bounds = Bounds {
    lives: 2,
    mortal: 1,
    features: Features::LEASE,
    ..PLAIN
};

/// More tokens, and epochs that open again.
const ROOMY: Bounds = Bounds {
    tokens: 3,
    openings: 2,
    ..PLAIN
};

/// Epochs end by publication.
const PUBLISHING: Bounds = Bounds {
    mortal: 1,
    features: Features::PUBLISH,
    ..PLAIN
};

/// A test for each: the bounds, what may happen besides, the mistake, and what it must break.
macro_rules! refuted {
    ($of:ident: $(
        $test:ident: $base:ident { $($field:ident: $value:expr),* } $($feature:ident)*
            => $mutant:ident $broken:ident;
    )*) => {$(
        #[test]
        fn $test() {
            let bounds = $of::Bounds { $($field: $value,)* ..$base };
            $(let bounds = bounds.and(Features::$feature);)*
            let bounds = bounds.with($of::Mutant::$mutant, $of::Broken::$broken);
            refute(stringify!($test), &bounds);
        }
    )*};
}

refuted! { protocol:
    forward_before_commit: PLAIN {} => ForwardBeforeCommit ORDER;
    barrier_per_process: PLAIN {} => BarrierPerProcess ORDER;
    settled_at_once: MORTAL {} => SettledAtOnce ORDER;
    dead_ignored_before_it_has_settled: MORTAL {} => DeadIgnored ORDER;
    dead_removed_before_it_has_settled: MORTAL {} => DeadRemoved ORDER;
    settled_without_a_look_whether_dead: MORTAL {} => SettledWithoutLook ORDER;
    // A failover has lost an instance's row: a watcher records the id as settled, and the owner
    // records itself again.
    settled_in_a_table_of_its_own: MORTAL {} UNKNOWN => SettledInAnotherTable ORDER;
    lease_looked_at_only_before_the_send: MORTAL {} => LeaseOnlyBeforeSend ORDER;
    // The first byte goes out under the lease and what follows does not: found with one write as
    // with two.
    lease_looked_at_for_the_first_part_of_a_body_only: MORTAL {} BODY => LeaseOnlyBeforeSend ORDER;
    declared_dead_before_the_lease_has_lapsed: MORTAL {} => DeclaredTooSoon ORDER;
    older_epochs_as_of_the_start_of_the_statement: PLAIN {} => EpochsOfTheStart ORDER;
    used_epochs_removed_by_a_statement: ROOMY {} => KeepsNone ORDER;
    removed_and_not_closing_when_sent: ROOMY {} => NotClosingWhenSent ORDER;
    later_epochs_removed_by_a_late_statement: PLAIN { openings: 2, late: 1 } => RemovesLater ORDER;
    unanswered_openings_removed_by_a_statement: PLAIN { openings: 2 } => UnansweredNotKept ORDER;
    previous_epoch_removed_when_it_is_opened_again:
        PLAIN { openings: 2 } REFRESH => RefreshedNotKept ORDER;
    unanswered_openings_published_as_over: PUBLISHING {} => UnansweredNotPublished ORDER;
    idle_epochs_published_as_over_and_not_closing: PUBLISHING {} => NotClosingWhenPublished ORDER;
    published_in_two_steps: PUBLISHING {} => ComposedInTwoSteps ORDER;
    one_field_beside_the_other_of_an_earlier_publication: PUBLISHING {} => FieldsMixed ORDER;
    left_open_cut_to_a_length: PUBLISHING {} => LeftOpenCut ORDER;
    idle_epochs_ceded_and_not_closing: PLAIN {} => NotClosingWhenCeded ORDER;
    unanswered_openings_ceded: PLAIN {} => UnansweredCeded ORDER;
    look_that_frees_later_epochs: PLAIN {} LOOK => LookFreesLater ORDER;
    look_that_finds_later_epochs_lost: PLAIN {} LOOK => LookLosesLater ALARM;
    look_that_finds_former_epochs_lost: PLAIN {} LOOK => LookLosesFormer ALARM;
    look_that_finds_settled_epochs_lost: MORTAL {} LOOK => LookLosesSettled ALARM;
    everything_over_with_a_stop: MORTAL {} LEAVE => StopClosesAll ORDER;
    pruned_without_a_look_at_epochs: PLAIN {} PRUNE => PruneWithoutLook UNDER_WAY;
    no_look_again_after_a_wait: ROOMY {} => NoSecondLook ORDER;
    select_then_update: PLAIN {} => SelectThenUpdate FELL;
    late_answer_used: MORTAL {} => LateAnswerUsed ORDER;
    answer_entered_after_a_rejoin: MORTAL {} => EnteredAfterRejoin ORDER;
    epoch_closed_before_drained: PLAIN {} => CloseBeforeDrained ORDER;
    broken_exchange_taken_for_over: PLAIN {} BREAK => BrokenIsOver ORDER;
    early_answer_ends_the_permit: PLAIN {} BREAK TRANSIT => EarlyAnswerSettles ORDER;
    early_answer_ends_the_permit_with_bytes_queued:
        PLAIN {} BREAK TRANSIT QUEUE => EarlyAnswerSettles ORDER;
    closed_in_order_with_bytes_undelivered: PLAIN {} BREAK TRANSIT => ClosedInOrder ORDER;
    closed_in_order_with_bytes_queued: PLAIN {} BREAK TRANSIT QUEUE => ClosedInOrder ORDER;
    given_up_without_a_reset: PLAIN {} BREAK TRANSIT => GiveUpWithoutReset ORDER;
    queued_in_the_library_and_not_reset: PLAIN {} BREAK TRANSIT QUEUE => QueueNotReset ORDER;
    dead_waited_for_without_the_user_timeout: MORTAL {} CRASH TRANSIT => NoUserTimeout ORDER;
    // Bytes that do not move are given up after the user timeout, which is waited for. Those that
    // trickle are not.
    death_that_leaves_bytes_to_the_kernel: MORTAL {} CRASH TRANSIT TRICKLE => NoLinger ORDER;
    lapsed_and_not_cut_off_within_the_user_timeout:
        MORTAL {} CRASH TRANSIT TRICKLE => LateCutoff ORDER;
    acknowledged_commit_lost: PLAIN {} => LostCommit ORDER;
    loss_without_bar: PLAIN {} FAILOVER => LossWithoutBar ORDER;
    loss_without_settle: PLAIN {} FAILOVER => LossWithoutSettle ORDER;
    loss_with_epochs_from_before: PLAIN {} FAILOVER => LossKeepsEpochs ORDER;
    override_without_an_era: PLAIN {} OVERRIDE => EraStays UNDONE;
    override_without_an_era_is_forgotten_by_nobody: PLAIN {} OVERRIDE => EraStays REMEMBERED;
    statement_of_an_earlier_era_takes_effect: PLAIN {} OVERRIDE => EraIgnored UNDONE;
    override_without_a_look_at_epochs: PLAIN {} OVERRIDE => OverrideWithoutLook UNDER_WAY;
    spent_after_the_send: PLAIN {} SPEND => SpendAfterSend TWICE;
    given_back_without_its_name:
        PLAIN { proxies: 1, openings: 2, late: 1 } SPEND OVERRIDE => GiveBackWithoutName TWICE;
}

/// Operations whose outcome is remembered: requests with one token, and nothing unusual.
const EQUAL: OutcomeBounds = OutcomeBounds {
    death: false,
    overrides: false,
    resolves: false,
    ..OutcomeBounds::new(&[Request::mortal(1), Request::new(1)])
};

/// Two of them have a newer token.
const RISING: OutcomeBounds = OutcomeBounds {
    requests: &[Request::mortal(1), Request::new(2), Request::new(2)],
    ..EQUAL
};

/// Two of them have an older token, which an operator admits again.
const FALLING: OutcomeBounds = OutcomeBounds {
    requests: &[Request::mortal(2), Request::new(1), Request::new(1)],
    death: true,
    overrides: true,
    ..EQUAL
};

/// Two digests.
const DIFFERENT: OutcomeBounds = OutcomeBounds {
    requests: &[Request::mortal(1), Request::new(1).other()],
    ..EQUAL
};

refuted! { outcome:
    permit_ended_before_the_answer_is_recorded:
        RISING { forward: true } => EndsBeforeRecord OVERTAKEN;
    attempt_of_the_dead_taken_for_settled:
        EQUAL { death: true, forward: true } => DeadIsSettled TOGETHER;
    attempt_of_the_same_token_taken_for_settled: EQUAL { forward: true } => EqualIsSettled TOGETHER;
    attempt_of_a_newer_token_taken_for_settled:
        RISING { death: true, forward: true } => NewerIsSettled TOGETHER;
    // Stopped from its permit to the death of its instance and an override, a proxy wakes.
    older_token_judged_without_the_lease: FALLING { forward: true } => OlderWithoutLease TOGETHER;
    older_token_judged_without_the_lease_and_looked_up:
        FALLING { look_up: true } => OlderWithoutLease TWICE;
    attempt_recorded_as_settled_when_it_breaks: EQUAL { forward: true } => SettledAtOnce TOGETHER;
    attempt_recorded_as_settled_without_its_name:
        RISING { look_up: true } => SettledWithoutName TWICE;
    looked_up_before_it_has_settled: EQUAL { look_up: true } => LookUpTooSoon TWICE;
    retaken_without_the_name: RISING { look_up: true } => RetakeWithoutName TWICE;
    operation_given_back_without_its_name: RISING {} => GiveBackWithoutName TWICE;
    operation_given_back_after_it_was_sent: EQUAL {} => GiveBackOfSent TWICE;
    answer_recorded_without_its_name: RISING { look_up: true } => KnownWithoutName FOREIGN;
    outcome_resolved_without_its_name:
        RISING { resolves: true, look_up: true } => ResolveWithoutName TWICE;
    sent_without_an_answer_of_the_store: EQUAL {} => SendWithoutAnswer TWICE;
    first_attempt_forgotten_with_the_second: EQUAL { forward: true } => GiveBackForgets FORGOTTEN;
    unknown_outcome_expires: EQUAL {} => UnknownExpires TWICE;
    digests_not_compared: DIFFERENT {} => AnyDigest FOREIGN;
}
