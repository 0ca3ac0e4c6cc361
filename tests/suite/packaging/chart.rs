//! The Helm chart, without a cluster: `tests/chart/check.py` has Helm's own engine render and lint
//! it, Kubernetes' schemas and the binary under test judge what comes out, and refuses what must be
//! refused.

use crate::support::or_return;
use crate::support::python::{check_cases, python, script};

/// Runs these groups of `check.py`, which must find nothing wrong, and look at so many cases.
fn check(groups: &[&str], cases: usize) {
    let python = or_return!(python());
    check_cases(script(&python, "check.py").args(groups), cases);
}

#[test]
fn every_render_is_valid_and_fits_itself_and_the_examples() {
    check(&["renders", "sense", "configs", "examples"], 52);
}

#[test]
fn the_pods_roll_for_what_a_reload_cannot_change() {
    check(&["restarts"], 14);
}

#[test]
fn what_does_not_fence_is_refused_with_the_reason() {
    check(&["refused"], 137);
}

#[test]
fn readme_schema_alerts_and_dashboard_are_those_of_the_chart() {
    check(&["values", "files"], 62);
}
