//! The Helm chart, without a cluster: `tests/chart/check.py` has Helm's own engine render and lint
//! it, Kubernetes' schemas and the binary under test judge what comes out, and refuses what must be
//! refused. One test per group of it.

use crate::support::or_return;
use crate::support::python::{check_cases, python, script};

/// Runs one group of `check.py`, which has to find nothing wrong, and at least `cases` to look at.
fn check(group: &str, cases: usize) {
    let python = or_return!(python());
    check_cases(script(&python, "check.py").arg(group), cases);
}

#[test]
fn every_render_passes_helms_linter_and_the_schemas_of_kubernetes() {
    check("renders", 14);
}

#[test]
fn the_parts_of_every_render_fit_each_other() {
    check("sense", 20);
}

#[test]
fn the_pods_roll_for_what_a_reload_cannot_change() {
    check("restarts", 14);
}

#[test]
fn every_rendered_configuration_passes_the_programs_own_check() {
    check("configs", 16);
}

#[test]
fn what_does_not_fence_is_refused_with_the_reason() {
    check("refused", 70);
}

#[test]
fn the_examples_are_what_the_chart_renders() {
    check("examples", 2);
}

#[test]
fn the_readme_and_the_schema_have_every_value() {
    check("values", 2);
}

#[test]
fn alerts_and_dashboard_are_the_files_of_the_repository() {
    check("files", 60);
}
