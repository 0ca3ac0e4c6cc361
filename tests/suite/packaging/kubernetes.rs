//! `config/kubernetes`, without a cluster: kubectl builds its Kustomize components, and
//! `tests/chart/kubernetes.py` holds the result against Kubernetes' schemas and the chart's render.

use std::path::PathBuf;
use std::process::Command;

use crate::support::or_return;
use crate::support::python::{check_cases, python, script};
use crate::support::skip::{is_skipped, or_lacks};

/// A Python that has kubectl too; `None`, and a line that says so, if there is none.
fn python_with_kubectl() -> Option<PathBuf> {
    let python = python()?;
    let runs = |command: &mut Command| command.output().is_ok_and(|said| said.status.success());
    let there = !is_skipped("kubectl") && runs(&mut script(&python, "kubectl.py"));
    or_lacks(there.then_some(python), "kubectl")
}

/// Built, valid, those of the chart, with what a Deployment has of its own, and as README and
/// releases have them.
#[test]
fn the_components_are_right() {
    let python = or_return!(python_with_kubectl());
    check_cases(&mut script(&python, "kubernetes.py"), 42);
}
