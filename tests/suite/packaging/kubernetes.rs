//! `config/kubernetes`, without a cluster: kubectl builds its Kustomize components, and
//! `tests/chart/kubernetes.py` holds the result against Kubernetes' schemas and the chart's render.

use std::path::PathBuf;
use std::process::Command;

use crate::support::or_return;
use crate::support::python::{check_cases, python, script};
use crate::support::skip::{is_skipped, lacks};

/// A Python that has kubectl too; `None`, and a line that says so, if there is none.
fn python_with_kubectl() -> Option<PathBuf> {
    let python = python()?;
    let runs = |command: &mut Command| command.output().is_ok_and(|said| said.status.success());
    let there = !is_skipped("kubectl") && runs(&mut script(&python, "kubectl.py"));
    if !there {
        lacks("kubectl");
    }
    there.then_some(python)
}

/// Runs these groups of `kubernetes.py`, which must find nothing wrong, and at least `cases` cases.
fn check(groups: &[&str], cases: usize) {
    let python = or_return!(python_with_kubectl());
    check_cases(script(&python, "kubernetes.py").args(groups), cases);
}

#[test]
fn every_component_is_built_the_same_by_two_kubectls_and_is_valid() {
    check(&["builds", "configs"], 14);
}

#[test]
fn the_pods_are_those_of_the_chart() {
    check(&["chart"], 8);
}

#[test]
fn a_deployment_keeps_its_own_parts_and_a_wrong_name_is_refused() {
    check(&["own"], 12);
}

#[test]
fn what_the_readme_shows_and_plain_manifests_are_built_and_valid() {
    check(&["readme", "plain"], 8);
}
