//! A test whose tool the machine lacks fails, unless `FENCEPOST_SKIP` names the
//! tool.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Returns whether `FENCEPOST_SKIP`, names with commas between them, has `tool` or `all`.
pub fn is_skipped(tool: &str) -> bool {
    let skip = std::env::var("FENCEPOST_SKIP").unwrap_or_default();
    has(&skip, tool)
}

fn has(skip: &str, tool: &str) -> bool {
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

/// Run by [`a_missing_tool_fails_its_test_unless_it_is_named`], as `tests/again.sh` runs any other.
#[test]
#[ignore = "it is played by another test"]
fn needs_a_tool_of_tomorrow() {
    lacks("a-tool-of-tomorrow");
}

#[test]
fn a_missing_tool_fails_its_test_unless_it_is_named() {
    let list = tempfile::NamedTempFile::new().expect("a file");
    let run = |skip: &str| {
        let suite = std::env::current_exe().expect("a path");
        let output = std::process::Command::new(suite)
            .args([
                "--ignored",
                "--exact",
                "support::skip::needs_a_tool_of_tomorrow",
            ])
            .env("FENCEPOST_SKIP", skip)
            .env("FENCEPOST_IGNORED", list.path())
            .output()
            .expect("the suite runs");
        let told = std::fs::read_to_string(list.path()).expect("a list");
        (output.status.success(), told)
    };
    assert_eq!(run("postgres"), (false, String::new()));
    let told = "test support::skip::needs_a_tool_of_tomorrow ... ignored, \
                without a-tool-of-tomorrow\n";
    assert_eq!(run("postgres,a-tool-of-tomorrow"), (true, told.to_owned()));
}

#[test]
fn all_skips_every_tool_and_a_name_skips_one() {
    assert!(has("all", "postgres") && has("nginx, all", "a-tool-of-tomorrow"));
    assert!(has("nginx,postgres", "postgres") && has(" postgres ", "postgres"));
    assert!(!has("", "postgres") && !has("post,gres", "postgres"));
}
