//! The programs of docs/clients against the conformance server, whose verdict on each must be that
//! it did right. The tests of `client_recipes` run it.

use std::process::Command;

use serde_json::json;

use super::client_recipes::run;
use crate::support::conformance::Conformance;

/// The scenarios that a recipe is run in, and whether it must succeed there. The others differ from
/// one of these in nothing that a recipe looks at.
pub const SCENARIOS: [(&str, Option<bool>); 8] = [
    ("accepted", Some(true)),
    ("stale-token", Some(false)),
    ("store-unavailable-spent", Some(false)),
    ("older-in-flight", Some(true)),
    ("outcome-unknown", Some(false)),
    ("connection-lost", Some(false)),
    ("claim-stale", Some(false)),
    // It does with the answer what it does with any other of its API.
    ("upstream-error", None),
];

/// Runs a client in each scenario, one after the other: a recipe has one lock. `client` makes its
/// command for a base URL.
pub async fn conforms(server: &Conformance, client: impl Fn(&str) -> Command) {
    for (scenario, succeeds) in SCENARIOS {
        let ran = run(&mut client(&server.url(scenario, "recipe"))).await;
        let verdict = server.verdict(scenario, "recipe").await;
        let said = &ran.said;
        assert_eq!(verdict["passed"], json!(true), "{said}\n{verdict:#}");
        if scenario != "claim-stale" {
            assert_eq!(verdict["claimed"], json!(true), "{said}\n{verdict:#}");
        }
        assert_eq!(succeeds.unwrap_or(ran.good), ran.good, "{scenario}: {said}");
    }
}
