//! What a test does where the machine lacks a tool: it fails, unless `FENCEPOST_SKIP` names the tool.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Whether `FENCEPOST_SKIP`, names with commas between them, has `tool`.
pub fn is_skipped(tool: &str) -> bool {
    let skip = std::env::var("FENCEPOST_SKIP").unwrap_or_default();
    skip.split(',').any(|name| name.trim() == tool)
}

/// Leaves out (a part of) `test`, since this machine has no `tool`. `tests/again.sh` lists it as ignored.
///
/// # Panics
/// Unless `FENCEPOST_SKIP` has `tool`.
#[track_caller]
pub fn lacks(test: &str, tool: &str) {
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
