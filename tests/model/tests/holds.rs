//! The protocol as coded, exhausted within the bounds of each configuration: no guarantee is broken
//! in any state, and everything that is meant to happen does. Each prints what it has looked at
//! (`--nocapture`).
//!
//! The ignored ones are the same with more room, and take minutes and gigabytes:
//! `cargo test -p fencepost-model -- --ignored --nocapture --test-threads 1`.

use fencepost_model::{Bounds, Features, exhaust};

/// One proxy can lose its lease and be declared dead, and come back as another instance.
const DEATH: Bounds = Bounds {
    tokens: 2,
    openings: 1,
    exchanges: 1,
    lives: 2,
    mortal: 1,
    ..Bounds::new("death", Features::LEASE)
};

const SMALL: Bounds = Bounds {
    tokens: 2,
    openings: 1,
    exchanges: 1,
    ..Bounds::new("small", Features::NONE)
};

#[test]
fn two_proxies_three_tokens() {
    exhaust(Bounds {
        exchanges: 1,
        ..Bounds::new("two proxies", Features::NONE)
    });
}

#[test]
fn three_proxies_three_tokens() {
    exhaust(Bounds {
        proxies: 3,
        tokens: 3,
        ..SMALL.named("three proxies", Features::NONE)
    });
}

#[test]
fn several_exchanges_that_break() {
    exhaust(Bounds {
        openings: 2,
        exchanges: 2,
        ..SMALL.named("in flight", Features::BREAK)
    });
}

#[test]
fn idle_epochs_closed() {
    exhaust(Bounds {
        openings: 2,
        exchanges: 2,
        ..SMALL.named("idle close", Features::IDLE)
    });
}

#[test]
fn leases_lapse_and_the_dead_are_buried() {
    exhaust(DEATH);
}

#[test]
fn crashes_amid_a_body_and_with_bytes_in_transit() {
    let features = Features::LEASE | Features::CRASH | Features::BODY | Features::TRANSIT;
    exhaust(Bounds {
        late: 0,
        ..DEATH.named("crash", features)
    });
}

#[test]
fn a_path_that_trickles() {
    let features = Features::LEASE | Features::CRASH | Features::TRANSIT | Features::TRICKLE;
    exhaust(Bounds {
        late: 0,
        ..DEATH.named("trickle", features)
    });
}

#[test]
fn requests_queued_in_the_library() {
    let features = Features::BREAK | Features::TRANSIT | Features::QUEUE;
    exhaust(Bounds {
        openings: 2,
        exchanges: 2,
        ..SMALL.named("queued", features)
    });
}

#[test]
fn graceful_stops() {
    exhaust(Bounds {
        late: 0,
        ..DEATH.named("stop", Features::LEASE | Features::LEAVE)
    });
}

#[test]
fn row_locks() {
    exhaust(Bounds {
        openings: 2,
        ..SMALL.named("row locks", Features::LOCKS)
    });
}

#[test]
fn tokens_spent_once() {
    exhaust(Bounds {
        exchanges: 2,
        ..SMALL.named("spending", Features::SPEND)
    });
}

#[test]
fn marks_overridden() {
    exhaust(Bounds {
        late: 0,
        ..SMALL.named("override", Features::OVERRIDE)
    });
}

#[test]
fn failover_that_loses() {
    exhaust(SMALL.named("failover", Features::FAILOVER | Features::CRASH));
}

#[test]
#[ignore = "minutes"]
fn long_two_proxies() {
    let features = Features::BREAK | Features::IDLE;
    exhaust(Bounds::new("long: two proxies", features));
}

#[test]
#[ignore = "minutes"]
fn long_three_proxies() {
    exhaust(Bounds {
        proxies: 3,
        tokens: 3,
        ..SMALL.named("long: three proxies", Features::BREAK | Features::IDLE)
    });
}

#[test]
#[ignore = "minutes"]
fn long_three_proxies_one_of_them_mortal() {
    let features = Features::LEASE | Features::CRASH;
    exhaust(Bounds {
        proxies: 3,
        late: 0,
        ..DEATH.named("long: three proxies, death", features)
    });
}

#[test]
#[ignore = "minutes"]
fn long_death_of_either() {
    let features = Features::LEASE | Features::CRASH | Features::TRANSIT;
    exhaust(Bounds {
        mortal: 2,
        late: 0,
        ..DEATH.named("long: either dies", features)
    });
}

#[test]
#[ignore = "minutes"]
fn long_row_locks() {
    exhaust(Bounds {
        tokens: 3,
        ..SMALL.named("long: row locks", Features::LOCKS | Features::OVERRIDE)
    });
}

#[test]
#[ignore = "minutes"]
fn long_spending_and_overrides() {
    let features = Features::SPEND | Features::OVERRIDE;
    exhaust(Bounds {
        late: 0,
        ..SMALL.named("long: spending, override", features)
    });
}

#[test]
#[ignore = "minutes"]
fn long_override_and_death() {
    let features = Features::OVERRIDE | Features::LEASE;
    exhaust(Bounds {
        late: 0,
        ..DEATH.named("long: override, death", features)
    });
}

#[test]
#[ignore = "minutes"]
fn long_override() {
    exhaust(SMALL.named("long: override", Features::OVERRIDE));
}

#[test]
#[ignore = "minutes"]
fn long_crash() {
    let features =
        Features::LEASE | Features::CRASH | Features::BODY | Features::LEAVE | Features::TRANSIT;
    exhaust(DEATH.named("long: crash, stop", features));
}

#[test]
#[ignore = "minutes"]
fn long_failover() {
    let features = Features::FAILOVER | Features::CRASH;
    exhaust(Bounds {
        tokens: 3,
        late: 0,
        ..SMALL.named("long: failover", features)
    });
}
