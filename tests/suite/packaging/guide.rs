//! The YAML in the documents: each block is rendered, validated or checked as what it is meant to
//! be (`tests/chart/guide.py`).

use std::process::Command;

use crate::support::or_return;
use crate::support::proxy::fencepost;
use crate::support::python::{python, script};

fn assert_good(command: &mut Command) -> String {
    let output = command.output().expect("Python can be run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    said
}

#[test]
fn every_block_of_yaml_in_the_documents_is_right() {
    let python = or_return!(python());
    let said = assert_good(
        script(&python, "guide.py")
            .args(["check", "--fencepost"])
            .arg(fencepost().get_program()),
    );
    for (kind, at_least) in [("config", 1), ("values", 2)] {
        let found = said
            .lines()
            .filter(|line| line.starts_with("ok") && line.contains(&format!(" {kind} ")))
            .count();
        assert!(found >= at_least, "{found} blocks of {kind}:\n{said}");
    }
}
