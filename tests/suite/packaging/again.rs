//! `tests/again.sh`: which failed tests get a second run, and what it prints of both. A script
//! plays cargo.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Fails the tests that `FAILED` names, and passes `flaky` when it is run alone.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
*--exact*flaky) echo "test result: ok. 1 passed; 0 failed; 0 ignored"; exit 0 ;;
*--exact*) echo "test result: FAILED. 0 passed; 1 failed; 0 ignored"; exit 101 ;;
esac
for name in $FAILED; do echo "test $name ... FAILED"; done
count=$(echo $FAILED | wc -w)
[ "$count" != 0 ] || { echo "test result: ok. 9 passed; 0 failed; 0 ignored"; exit 0; }
echo "test result: FAILED. 9 passed; $count failed; 0 ignored"
exit 101
"#;

/// Returns whether the run passes, and what it says.
fn run(failed: &str) -> (bool, String) {
    let dir = TempDir::new().expect("a directory");
    let cargo = dir.path().join("cargo");
    std::fs::write(&cargo, CARGO).expect("it is writable");
    std::fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("it is ours");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/again.sh"))
        .arg("--locked")
        .env("PATH", format!("{}:{path}", dir.path().display()))
        .env("FAILED", failed)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

#[test]
fn a_failed_test_is_run_again_alone_and_a_broken_guarantee_is_not() {
    assert_eq!(run(""), (true, String::new()));
    let flaky = "tests/again.sh: a::flaky failed beside others, and passed alone\n";
    assert_eq!(run("a::flaky"), (true, flaky.to_owned()));

    let (passed, said) = run("a::flaky b::broken");
    assert!(!passed);
    assert!(said.contains(flaky), "{said}");
    assert!(
        said.contains("b::broken failed beside others, and failed alone"),
        "{said}"
    );

    // The one catches a mutant, the other one plays with crashes.
    for name in [
        "fencing::barrier::a_timeout_is_not_completion::flaky",
        "fencing::crash::flaky",
    ] {
        let (passed, said) = run(name);
        assert!(!passed);
        assert!(said.contains("is not run again"), "{said}");
        assert!(!said.contains("alone"), "{said}");
    }
    let (passed, said) = run("a::flaky b::flaky c::flaky d::flaky e::flaky f::flaky");
    assert!(!passed);
    assert!(
        said.contains("failed tests: 6; none is run again"),
        "{said}"
    );
}
