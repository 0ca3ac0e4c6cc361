//! The tests' own programs in Python: what reads YAML, renders charts.

use super::proxy::fencepost;
use super::skip::{is_skipped, or_lacks};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python for which `tests/run.sh` has installed `tests/tools/requirements.txt`; `None`, and a
/// line that says so, if there is none.
pub fn python() -> Option<PathBuf> {
    let python = std::env::var_os("FENCEPOST_TEST_PYTHON").map(PathBuf::from);
    let own = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/target/tools/python/bin/python"
    );
    let python = python.unwrap_or_else(|| own.into());
    let there = !is_skipped("python-tools") && python.is_file();
    or_lacks(there.then_some(python), "python-tools")
}

/// A program in Python below `tests`, run by this one.
pub fn program(python: impl AsRef<std::ffi::OsStr>, file: impl AsRef<Path>) -> Command {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut command = Command::new(python);
    command.arg(tests.join(file));
    command
}

/// A program that is installed beside this Python.
pub fn installed(python: &Path, name: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(python.with_file_name(name));
    command
}

/// One of the programs in `tests/chart`.
pub fn script(python: &Path, name: &str) -> Command {
    program(python, format!("chart/{name}"))
}

/// Runs one of these programs that prints a line per case: it must find nothing wrong, and look at
/// no fewer than `cases`. It gets the binary under test.
pub fn check_cases(script: &mut Command, cases: usize) {
    script.arg("--fencepost").arg(fencepost().get_program());
    let output = script.output().expect("Python can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let passed = said.lines().filter(|line| line.starts_with("ok")).count();
    assert!(passed >= cases, "{passed} of {cases} cases:\n{said}");
}
