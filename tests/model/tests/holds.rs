//! The protocol, exhausted within the bounds of each configuration: no guarantee is broken
//! in any state, and everything that is meant to happen does. Each prints what it has looked at
//! (`--nocapture`).
//!
//! The ignored ones are the same with more room, and take minutes and gigabytes:
//! `cargo test -p fencepost-model -- --ignored --nocapture --test-threads 1`.

use fencepost_model::outcome;
use fencepost_model::outcome::Request;
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

/// Leases lapse, and processes are killed.
const MORTAL: Features = Features::LEASE.and(Features::CRASH);

/// A test for each.
macro_rules! exhausted {
    ($($(#[$meta:meta])* $test:ident: $bounds:expr;)*) => {$(
        $(#[$meta])*
        #[test]
        fn $test() {
            exhaust(&$bounds);
        }
    )*};
}

exhausted! {
    two_proxies_three_tokens: Bounds { exchanges: 1, ..Bounds::new("two proxies", Features::NONE) };
    three_proxies_three_tokens: Bounds {
        proxies: 3, tokens: 3,
        ..SMALL.named("three proxies", Features::NONE)
    };
    several_exchanges_that_break: Bounds {
        openings: 2, exchanges: 2,
        ..SMALL.named("in flight", Features::BREAK)
    };
    leases_lapse_and_the_dead_settle: DEATH;
    epochs_ended_by_publication: Bounds {
        openings: 2, mortal: 1,
        ..SMALL.named("publication", Features::PUBLISH)
    };
    publications_of_both: Bounds {
        openings: 2, late: 0,
        ..SMALL.named("publication, both", Features::PUBLISH)
    };
    publications_of_those_who_die: Bounds {
        late: 0,
        ..DEATH.named("publication, death", MORTAL.and(Features::PUBLISH))
    };
    publications_a_failover_loses: Bounds {
        late: 0, mortal: 1, publications: 1,
        ..SMALL.named("publication, failover", Features::PUBLISH.and(Features::FAILOVER))
    };
    publications_and_looks: Bounds {
        late: 0, openings: 2, mortal: 1,
        ..SMALL.named("publication, looks", Features::PUBLISH.and(Features::LOOK))
    };
    publications_of_epochs_opened_again: Bounds {
        late: 0, openings: 2, exchanges: 2, mortal: 1,
        ..SMALL.named("publication, refresh", Features::PUBLISH.and(Features::REFRESH))
    };
    marks_pruned: Bounds { late: 0, ..SMALL.named("pruning", Features::PRUNE) };
    crashes_amid_a_body_and_with_bytes_in_transit: Bounds {
        late: 0,
        ..DEATH.named("crash", MORTAL.and(Features::BODY).and(Features::TRANSIT))
    };
    a_path_that_trickles: Bounds {
        late: 0,
        ..DEATH.named("trickle", MORTAL.and(Features::TRANSIT).and(Features::TRICKLE))
    };
    requests_queued_in_the_library: Bounds {
        openings: 2, exchanges: 2,
        ..SMALL.named("queued", Features::BREAK.and(Features::TRANSIT).and(Features::QUEUE))
    };
    graceful_stops: Bounds {
        late: 0,
        ..DEATH.named("stop", Features::LEASE.and(Features::LEAVE).and(Features::PUBLISH))
    };
    epochs_opened_again_while_in_use: Bounds {
        openings: 2, exchanges: 2,
        ..SMALL.named("refresh", Features::REFRESH)
    };
    looks_entered_late: Bounds { openings: 2, ..SMALL.named("looks", Features::LOOK) };
    looks_of_those_who_die: Bounds {
        late: 0,
        ..DEATH.named("looks, death", MORTAL.and(Features::LOOK))
    };
    an_instance_that_is_not_on_record: Bounds {
        late: 0,
        ..DEATH.named("unknown", MORTAL.and(Features::UNKNOWN))
    };
    tokens_spent_once: Bounds { exchanges: 2, ..SMALL.named("spending", Features::SPEND) };
    marks_overridden: Bounds { late: 0, ..SMALL.named("override", Features::OVERRIDE) };
    failover_that_loses: SMALL.named("failover", Features::FAILOVER.and(Features::CRASH));
    #[ignore = "minutes"]
    long_two_proxies: Bounds::new("long: two proxies", Features::BREAK);
    #[ignore = "minutes"]
    long_three_proxies: Bounds {
        proxies: 3, tokens: 3,
        ..SMALL.named("long: three proxies", Features::BREAK)
    };
    #[ignore = "minutes"]
    long_three_proxies_one_of_them_mortal: Bounds {
        proxies: 3, late: 0,
        ..DEATH.named("long: three proxies, death", MORTAL)
    };
    #[ignore = "minutes"]
    long_death_of_either: Bounds {
        mortal: 2, late: 0,
        ..DEATH.named("long: either dies", MORTAL.and(Features::TRANSIT))
    };
    #[ignore = "minutes"]
    long_publications_and_overrides: Bounds {
        tokens: 3,
        ..SMALL.named("long: publications, override", Features::PUBLISH.and(Features::OVERRIDE))
    };
    #[ignore = "minutes"]
    long_spending_and_overrides: Bounds {
        late: 0,
        ..SMALL.named("long: spending, override", Features::SPEND.and(Features::OVERRIDE))
    };
    #[ignore = "minutes"]
    long_override_and_death: Bounds {
        late: 0,
        ..DEATH.named("long: override, death", Features::OVERRIDE.and(Features::LEASE))
    };
    #[ignore = "minutes"]
    long_override: SMALL.named("long: override", Features::OVERRIDE);
    #[ignore = "minutes"]
    long_crash: DEATH.named(
        "long: crash, stop",
        MORTAL.and(Features::BODY).and(Features::LEAVE).and(Features::TRANSIT)
    );
    #[ignore = "minutes"]
    long_failover: Bounds {
        tokens: 3, late: 0,
        ..SMALL.named("long: failover", Features::FAILOVER.and(Features::CRASH))
    };
}

/// One of the requests is at the proxy that can die, and two are at the other.
const REFUSED: outcome::Bounds = outcome::Bounds::new(
    "outcome, refused",
    &[Request::mortal(1), Request::new(1), Request::new(2)],
);

/// The one has the newer token.
const NEWER: [Request; 3] = [Request::mortal(2), Request::new(1), Request::new(1)];

/// The one has another digest than the next.
const DIGESTS: [Request; 3] = [Request::mortal(1), Request::new(2).other(), Request::new(2)];

/// Two at each proxy.
const FOUR: outcome::Bounds = outcome::Bounds {
    requests: &[
        Request::mortal(1),
        Request::mortal(2),
        Request::new(1),
        Request::new(2),
    ],
    ..REFUSED
};

exhausted! {
    outcomes_refused: REFUSED;
    outcomes_looked_up: outcome::Bounds {
        name: "outcome, looked up", look_up: true, resolves: false,
        ..REFUSED
    };
    outcomes_forwarded: outcome::Bounds {
        name: "outcome, forwarded", forward: true, resolves: false,
        ..REFUSED
    };
    outcomes_of_a_newer_token: outcome::Bounds {
        name: "outcome, newer", look_up: true, resolves: false, requests: &NEWER,
        ..REFUSED
    };
    outcomes_of_a_newer_token_forwarded: outcome::Bounds {
        name: "outcome, newer, forwarded", forward: true, resolves: false, requests: &NEWER,
        ..REFUSED
    };
    outcomes_of_two_digests: outcome::Bounds {
        name: "outcome, digests", forward: true, resolves: false, requests: &DIGESTS,
        ..REFUSED
    };
    #[ignore = "minutes"]
    long_outcomes_refused: outcome::Bounds {
        name: "long: outcome, refused", resolves: false,
        ..FOUR
    };
    #[ignore = "minutes"]
    long_outcomes_looked_up: outcome::Bounds {
        name: "long: outcome, looked up", look_up: true, resolves: false,
        ..FOUR
    };
    #[ignore = "minutes"]
    long_outcomes_forwarded: outcome::Bounds {
        name: "long: outcome, forwarded", forward: true, overrides: false, resolves: false,
        ..FOUR
    };
}
