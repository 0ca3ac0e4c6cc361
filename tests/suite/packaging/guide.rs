//! The YAML in the documents: each block is rendered, validated or checked as what it is meant to
//! be (`tests/chart/guide.py`).

use crate::support::or_return;
use crate::support::python::{check_cases, python, script};

#[test]
fn every_block_of_yaml_in_the_documents_is_right() {
    let python = or_return!(python());
    check_cases(&mut script(&python, "guide.py"), 20);
}
