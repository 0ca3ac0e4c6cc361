//! What a test does where the machine lacks a tool: it fails, unless `FENCEPOST_SKIP` names the tool.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Whether `FENCEPOST_SKIP`, names with commas between them, has `tool` or `all`.
pub fn is_skipped(tool: &str) -> bool {
    let skip = std::env::var("FENCEPOST_SKIP").unwrap_or_default();
    has(&skip, tool)
}

fn has(skip: &str, tool: &str) -> bool {
    let mut names = skip.split(',').map(str::trim);
    names.any(|name| name == tool || name == "all")
}

/// Leaves out (a part of) `test`, since this machine has no `tool`. `tests/again.sh` lists it as
/// ignored, by the full name of the test where the calling thread has it.
///
/// # Panics
/// Unless `FENCEPOST_SKIP` has `tool` or `all`.
#[track_caller]
pub fn lacks(test: &str, tool: &str) {
    assert!(
        is_skipped(tool),
        "{test} needs {tool}, which this machine lacks or does not allow. `tests/run.sh` installs what is missing; \
         FENCEPOST_SKIP={tool} leaves the test out, and says so"
    );
    eprintln!("ignored: {test} ({tool} is missing)");
    if let Some(list) = std::env::var_os("FENCEPOST_IGNORED") {
        let thread = std::thread::current();
        let test = thread
            .name()
            .filter(|name| name.contains("::"))
            .unwrap_or(test);
        let list = OpenOptions::new().create(true).append(true).open(list);
        let line = format!("test {test} ... ignored, without {tool}\n");
        let written = list.and_then(|mut list| list.write_all(line.as_bytes()));
        written.expect("the list of ignored tests can be written");
    }
}

#[test]
fn all_skips_every_tool_and_a_name_skips_one() {
    assert!(has("all", "postgres") && has("nginx, all", "a-tool-of-tomorrow"));
    assert!(has("nginx,postgres", "postgres") && has(" postgres ", "postgres"));
    assert!(!has("", "postgres") && !has("post,gres", "postgres"));
}
