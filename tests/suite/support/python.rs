//! The tests' own programs in Python: what reads YAML, renders charts.

use super::proxy::fencepost;
use super::skip::{is_skipped, lacks};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Of each package of `tests/tools/requirements.txt` and `programs.txt` that a test uses, a module.
const PACKAGES: &str = "aiohttp boto3 celery cheroot flask_cors grpc helm_python httpbin httpx kosoku \
     kubernetes_validate moto opentelemetry.proto patroni psycopg redbot redis requests schemathesis \
     temporalio webdav_tck websocket wsgidav yaml";

/// A Python that has the packages of `tests/tools/requirements.txt`; `None`, and a line that says
/// so, if there is none.
pub fn python() -> Option<PathBuf> {
    // To look for a package takes no time; to import them all takes a second.
    static HAS_PACKAGES: OnceLock<bool> = OnceLock::new();
    let python = std::env::var_os("FENCEPOST_TEST_PYTHON").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/python"),
        PathBuf::from,
    );
    let has_packages = || {
        let mut look = Command::new(&python);
        look.arg("-c").arg(
            "from importlib.util import find_spec; import sys\n\
             sys.exit(not all(find_spec(name) for name in sys.argv[1].split()))",
        );
        let found = look.arg(PACKAGES).output();
        found.is_ok_and(|output| output.status.success())
    };
    let there = !is_skipped("python-tools") && *HAS_PACKAGES.get_or_init(has_packages);
    if !there {
        lacks("python-tools");
    }
    there.then_some(python)
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
    let output = script
        .arg("--fencepost")
        .arg(fencepost().get_program())
        .output()
        .expect("Python can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let passed = said.lines().filter(|line| line.starts_with("ok")).count();
    assert!(passed >= cases, "{passed} of {cases} cases:\n{said}");
}
