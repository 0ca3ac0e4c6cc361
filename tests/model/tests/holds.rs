//! The protocol, exhausted within the bounds of each configuration: no guarantee is broken
//! in any state, and everything that is meant to happen does. Each prints what it has looked at
//! (`--nocapture`).
//!
//! The ignored ones are the same with more room, and take minutes and gigabytes:
//! `cargo test -p fencepost-model -- --ignored --nocapture --test-threads 1`.

use fencepost_model::outcome::{self, Request};
use fencepost_model::{self as protocol, Bounds, Features, exhaust};

const SMALL: Bounds = Bounds {
    tokens: 2,
    openings: 1,
    exchanges: 1,
    ..Bounds::PLAIN
};

/// One proxy can lose its lease and be declared dead, and come back as another instance.
const DEATH: Bounds = Bounds {
    lives: 2,
    mortal: 1,
    features: Features::LEASE,
    ..SMALL
};

/// A test for each, with this attribute: its bounds, and what may happen besides.
macro_rules! exhausted {
    (#[$meta:meta] $of:ident: $(
        $test:ident: $base:path { $($field:ident: $value:expr),* } $($feature:ident)*;
    )*) => {$(
        #[$meta]
        #[test]
        fn $test() {
            let bounds = $of::Bounds { $($field: $value,)* ..$base };
            $(let bounds = bounds.and(Features::$feature);)*
            exhaust(stringify!($test), &bounds);
        }
    )*};
}

exhausted! { #[cfg(test)] protocol:
    two_proxies_three_tokens: Bounds::PLAIN { exchanges: 1 };
    three_proxies_three_tokens: SMALL { proxies: 3, tokens: 3 };
    several_exchanges_that_break: SMALL { openings: 2, exchanges: 2 } BREAK;
    leases_lapse_and_the_dead_settle: DEATH {};
    epochs_ended_by_publication: SMALL { openings: 2, mortal: 1 } PUBLISH;
    publications_of_both: SMALL { openings: 2, late: 0 } PUBLISH;
    publications_of_those_who_die: DEATH { late: 0 } CRASH PUBLISH;
    publications_a_failover_loses: SMALL { late: 0, mortal: 1, publications: 1 } PUBLISH FAILOVER;
    publications_and_looks: SMALL { late: 0, openings: 2, mortal: 1 } PUBLISH LOOK;
    publications_of_epochs_opened_again:
        SMALL { late: 0, openings: 2, exchanges: 2, mortal: 1 } PUBLISH REFRESH;
    marks_pruned: SMALL { late: 0 } PRUNE;
    crashes_amid_a_body_and_with_bytes_in_transit: DEATH { late: 0 } CRASH BODY TRANSIT;
    a_path_that_trickles: DEATH { late: 0 } CRASH TRANSIT TRICKLE;
    requests_queued_in_the_library: SMALL { openings: 2, exchanges: 2 } BREAK TRANSIT QUEUE;
    graceful_stops: DEATH { late: 0 } LEAVE PUBLISH;
    epochs_opened_again_while_in_use: SMALL { openings: 2, exchanges: 2 } REFRESH;
    looks_entered_late: SMALL { openings: 2 } LOOK;
    looks_of_those_who_die: DEATH { late: 0 } CRASH LOOK;
    an_instance_that_is_not_on_record: DEATH { late: 0 } CRASH UNKNOWN;
    tokens_spent_once: SMALL { exchanges: 2 } SPEND;
    marks_overridden: SMALL { late: 0 } OVERRIDE;
    failover_that_loses: SMALL {} FAILOVER CRASH;
}

exhausted! { #[ignore = "minutes"] protocol:
    long_two_proxies: Bounds::PLAIN {} BREAK;
    long_three_proxies: SMALL { proxies: 3, tokens: 3 } BREAK;
    long_three_proxies_one_of_them_mortal: DEATH { proxies: 3, late: 0 } CRASH;
    long_death_of_either: DEATH { mortal: 2, late: 0 } CRASH TRANSIT;
    long_publications_and_overrides: SMALL { tokens: 3 } PUBLISH OVERRIDE;
    long_spending_and_overrides: SMALL { late: 0 } SPEND OVERRIDE;
    long_override_and_death: DEATH { late: 0 } OVERRIDE;
    long_override: SMALL {} OVERRIDE;
    long_crash: DEATH {} CRASH BODY LEAVE TRANSIT;
    long_failover: SMALL { tokens: 3, late: 0 } FAILOVER CRASH;
}

/// One of the requests is at the proxy that can die, and two are at the other.
const REFUSED: outcome::Bounds =
    outcome::Bounds::new(&[Request::mortal(1), Request::new(1), Request::new(2)]);

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

exhausted! { #[cfg(test)] outcome:
    outcomes_refused: REFUSED {};
    outcomes_looked_up: REFUSED { look_up: true, resolves: false };
    outcomes_forwarded: REFUSED { forward: true, resolves: false };
    outcomes_of_a_newer_token: REFUSED { look_up: true, resolves: false, requests: &NEWER };
    outcomes_of_a_newer_token_forwarded:
        REFUSED { forward: true, resolves: false, requests: &NEWER };
    outcomes_of_two_digests: REFUSED { forward: true, resolves: false, requests: &DIGESTS };
}

exhausted! { #[ignore = "minutes"] outcome:
    long_outcomes_refused: FOUR { resolves: false };
    long_outcomes_looked_up: FOUR { look_up: true, resolves: false };
    long_outcomes_forwarded: FOUR { forward: true, overrides: false, resolves: false };
}
