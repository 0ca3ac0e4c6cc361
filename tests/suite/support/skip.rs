//! A test whose tool the machine lacks fails, unless `FENCEPOST_SKIP` names the
//! tool.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Returns whether `FENCEPOST_SKIP`, names with commas between them, has `tool` or `all`.
pub fn is_skipped(tool: &str) -> bool {
    let skip = std::env::var("FENCEPOST_SKIP").unwrap_or_default();
    let mut names = skip.split(',').map(str::trim);
    names.any(|name| name == tool || name == "all")
}

/// Leaves out (a part of) the test, since this machine has no `tool`. `tests/again.sh` lists it as
/// ignored, by the name of the thread, which is the test's.
///
/// # Panics
/// Unless `FENCEPOST_SKIP` has `tool` or `all`.
#[track_caller]
pub fn lacks(tool: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(
        is_skipped(tool),
        "{test} needs {tool}, which this machine lacks or does not allow. `tests/run.sh` installs what is missing; \
         FENCEPOST_SKIP={tool} leaves the test out, and says so"
    );
    eprintln!("ignored: {test} ({tool} is missing)");
    if let Some(list) = std::env::var_os("FENCEPOST_IGNORED") {
        let list = OpenOptions::new().create(true).append(true).open(list);
        let line = format!("test {test} ... ignored, without {tool}\n");
        let written = list.and_then(|mut list| list.write_all(line.as_bytes()));
        written.expect("the list of ignored tests can be written");
    }
}

/// What was found; where that is nothing, the machine [lacks] the tool.
#[track_caller]
pub fn or_lacks<T>(found: Option<T>, tool: &str) -> Option<T> {
    if found.is_none() {
        lacks(tool);
    }
    found
}
