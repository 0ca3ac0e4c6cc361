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
const LOSING: Bounds = Bounds {
    features: Features::FAILOVER,
    ..PLAIN
};

#[test]
fn forward_before_commit() {
    refute(PLAIN.with(Mutant::ForwardBeforeCommit, Broken::ORDER));
}

#[test]
fn barrier_per_process() {
    refute(PLAIN.with(Mutant::BarrierPerProcess, Broken::ORDER));
}

#[test]
fn dead_epochs_deleted_without_settle() {
    refute(MORTAL.with(Mutant::BuryWithoutSettle, Broken::ORDER));
}

#[test]
fn buried_without_a_look_whether_dead() {
    refute(MORTAL.with(Mutant::BuryWithoutLook, Broken::ORDER));
}

#[test]
fn lease_looked_at_only_before_the_send() {
    refute(MORTAL.with(Mutant::LeaseOnlyBeforeSend, Broken::ORDER));
}

#[test]
fn lease_looked_at_for_the_first_part_of_a_body_only() {
    // The first byte goes out under the lease and what follows does not: found with one write as
    // with two.
    let two_parts = Bounds {
        features: Features::LEASE | Features::BODY,
        ..MORTAL
    };
    refute(two_parts.with(Mutant::LeaseOnlyBeforeSend, Broken::ORDER));
}

#[test]
fn declared_dead_before_the_lease_has_lapsed() {
    refute(MORTAL.with(Mutant::DeclaredTooSoon, Broken::ORDER));
}

#[test]
fn older_epochs_read_in_the_advance_itself() {
    refute(PLAIN.with(Mutant::EpochsInOwnStatement, Broken::ORDER));
}

#[test]
fn close_travelling_with_an_advance() {
    let room = Bounds {
        tokens: 3,
        openings: 2,
        ..PLAIN
    };
    refute(room.with(Mutant::CloseWithAdvance, Broken::ORDER));
}

#[test]
fn no_look_again_after_a_wait() {
    let three = Bounds {
        tokens: 3,
        openings: 2,
        ..PLAIN
    };
    refute(three.with(Mutant::NoSecondLook, Broken::ORDER));
}

#[test]
fn select_then_update() {
    refute(PLAIN.with(Mutant::SelectThenUpdate, Broken::FELL));
}

#[test]
fn late_answer_used() {
    refute(MORTAL.with(Mutant::LateAnswerUsed, Broken::ORDER));
}

#[test]
fn epoch_closed_before_drained() {
    refute(PLAIN.with(Mutant::CloseBeforeDrained, Broken::ORDER));
}

#[test]
fn broken_exchange_taken_for_over() {
    let breaking = Bounds {
        features: Features::BREAK,
        ..PLAIN
    };
    refute(breaking.with(Mutant::BrokenIsOver, Broken::ORDER));
}

/// What is sent is in transit before it arrives.
const IN_TRANSIT: Bounds = Bounds {
    features: Features::LEASE.and(Features::CRASH).and(Features::TRANSIT),
    ..MORTAL
};

/// What is in transit, or queued in the library, of exchanges that break.
const BREAKING: [Bounds; 2] = [
    Bounds {
        features: Features::BREAK.and(Features::TRANSIT),
        ..PLAIN
    },
    Bounds {
        features: Features::BREAK.and(Features::TRANSIT).and(Features::QUEUE),
        ..PLAIN
    },
];

#[test]
fn early_answer_ends_the_permit() {
    for bounds in BREAKING {
        refute(bounds.with(Mutant::EarlyAnswerSettles, Broken::ORDER));
    }
}

#[test]
fn closed_in_order_with_bytes_undelivered() {
    for bounds in BREAKING {
        refute(bounds.with(Mutant::ClosedInOrder, Broken::ORDER));
    }
}

#[test]
fn given_up_without_a_reset() {
    refute(BREAKING[0].with(Mutant::GiveUpWithoutReset, Broken::ORDER));
}

#[test]
fn queued_in_the_library_and_not_reset() {
    refute(BREAKING[1].with(Mutant::QueueNotReset, Broken::ORDER));
}

#[test]
fn dead_waited_for_without_the_user_timeout() {
    refute(IN_TRANSIT.with(Mutant::NoUserTimeout, Broken::ORDER));
}

#[test]
fn death_that_leaves_bytes_to_the_kernel() {
    // Bytes that do not move are given up after the user timeout, which is waited for. Those that
    // trickle are not.
    let trickling = Bounds {
        features: IN_TRANSIT.features | Features::TRICKLE,
        ..IN_TRANSIT
    };
    refute(trickling.with(Mutant::NoLinger, Broken::ORDER));
}

#[test]
fn lapsed_and_not_cut_off_within_the_user_timeout() {
    let trickling = Bounds {
        features: IN_TRANSIT.features | Features::TRICKLE,
        ..IN_TRANSIT
    };
    refute(trickling.with(Mutant::LateCutoff, Broken::ORDER));
}

#[test]
fn acknowledged_commit_lost() {
    refute(PLAIN.with(Mutant::LostCommit, Broken::ORDER));
}

#[test]
fn loss_without_bar() {
    refute(LOSING.with(Mutant::LossWithoutBar, Broken::ORDER));
}

#[test]
fn loss_without_settle() {
    refute(LOSING.with(Mutant::LossWithoutSettle, Broken::ORDER));
}

#[test]
fn loss_with_epochs_from_before() {
    refute(LOSING.with(Mutant::LossKeepsEpochs, Broken::ORDER));
}

#[test]
fn override_without_an_era() {
    let lowered = Bounds {
        features: Features::OVERRIDE,
        ..PLAIN
    };
    refute(lowered.with(Mutant::EraStays, Broken::UNDONE));
}

#[test]
fn override_without_an_era_is_forgotten_by_nobody() {
    let lowered = Bounds {
        features: Features::OVERRIDE,
        ..PLAIN
    };
    refute(lowered.with(Mutant::EraStays, Broken::REMEMBERED));
}

#[test]
fn override_without_a_look_at_epochs() {
    let lowered = Bounds {
        features: Features::OVERRIDE,
        ..PLAIN
    };
    refute(lowered.with(Mutant::OverrideWithoutLook, Broken::UNDER_WAY));
}

#[test]
fn spent_after_the_send() {
    let once = Bounds {
        features: Features::SPEND,
        ..PLAIN
    };
    refute(once.with(Mutant::SpendAfterSend, Broken::TWICE));
}

#[test]
fn given_back_without_its_name() {
    // Where a mark comes to the same token again: the giving back was sent before an override.
    let once = Bounds {
        proxies: 1,
        openings: 2,
        late: 1,
        features: Features::SPEND | Features::OVERRIDE,
        ..PLAIN
    };
    refute(once.with(Mutant::GiveBackWithoutName, Broken::TWICE));
}
