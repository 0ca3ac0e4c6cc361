//! The Helm chart, without a cluster: `tests/chart/check.py` has Helm's own engine render and lint it, Kubernetes'
//! schemas and the binary under test judge what comes out, and refuses what must be refused. One test per group of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::proxy::fencepost;

/// A Python that has the packages of `tests/tools/requirements.txt`; `None`, and a line that says so, if there is none.
fn python(test: &str) -> Option<PathBuf> {
    let python = std::env::var_os("FENCEPOST_TEST_PYTHON").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/python"),
        PathBuf::from,
    );
    let there = Command::new(&python)
        .args(["-c", "import helm_python, kubernetes_validate, yaml"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        eprintln!(
            "skipped: chart::{test} (no Python with tests/tools/requirements.txt at {})",
            python.display()
        );
    }
    there.then_some(python)
}

/// Runs one group of `check.py`, which has to find nothing wrong, and at least `cases` to look at.
fn check(group: &str, cases: usize) {
    let Some(python) = python(group) else {
        return;
    };
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/check.py"))
        .arg(group)
        .arg("--fencepost")
        .arg(fencepost().get_program())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let passed = said.lines().filter(|line| line.starts_with("ok")).count();
    assert!(passed >= cases, "{passed} of {cases} cases:\n{said}");
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
fn a_render_that_is_broken_is_found_out() {
    check("broken", 28);
}

#[test]
fn the_pods_roll_for_what_a_reload_cannot_change() {
    check("restarts", 13);
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
    check("examples", 7);
}

#[test]
fn the_readme_and_the_schema_have_every_value() {
    check("values", 3);
}

#[test]
fn alerts_and_dashboard_are_the_files_of_the_repository() {
    check("files", 7);
}
