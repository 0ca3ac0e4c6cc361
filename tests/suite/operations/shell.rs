//! What a package installs beside the program: completions, manual pages, and the version that both
//! belong to.

#[path = "../../../.ci/man.rs"]
mod man;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use crate::support::fenced;
use crate::support::proxy::fencepost;

fn ran(arguments: &[&str]) -> Output {
    fencepost().args(arguments).output().expect("it runs")
}

fn printed(arguments: &[&str]) -> String {
    let Output { status, stdout, .. } = ran(arguments);
    assert!(status.success(), "{arguments:?}: {status}");
    String::from_utf8(stdout).expect("UTF-8")
}

#[test]
fn shells_get_completions_of_each_command() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef fencepost"),
        ("fish", "complete -c"),
    ] {
        let text = printed(&["completions", shell]);
        assert!(text.contains(sign), "{shell}");
        for word in ["serve", "probe", "export", "accept-new-keys"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("fencepost.bash");
    std::fs::write(&file, printed(&["completions", "bash"])).expect("written");
    // bash itself completes it.
    let script = "source \"$1\"; COMP_WORDS=(fencepost marks exp); COMP_CWORD=2; \
        _fencepost fencepost exp marks; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash"])
        .arg(&file)
        .output()
        .expect("bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "export\n");
    assert_eq!(ran(&["completions", "tcsh"]).status.code(), Some(2));
}

/// The commands below this one, as its help lists them.
fn commands(path: &[&str]) -> Vec<String> {
    let help = printed(&[path, &["--help"]].concat());
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn each_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    man::write(dir.path()).expect("written");
    let listed = std::fs::read_dir(dir.path()).expect("a directory");
    let names = listed.map(|file| file.expect("a page").file_name());
    let pages: BTreeSet<_> = names.filter_map(|name| name.into_string().ok()).collect();
    let mut wanted = BTreeSet::from(["fencepost.1".to_owned()]);
    for command in commands(&[]) {
        wanted.insert(format!("fencepost-{command}.1"));
    }
    for command in ["marks", "operations"] {
        for verb in commands(&[command]) {
            wanted.insert(format!("fencepost-{command}-{verb}.1"));
        }
    }
    assert_eq!(pages, wanted);
    assert!(wanted.len() > 15, "{wanted:?}");
    for name in &pages {
        let text = std::fs::read_to_string(dir.path().join(name)).expect("a page");
        assert!(text.contains(".SH SYNOPSIS"), "{name}");
    }
}

/// `--version`, the metrics and the admin port name the same build.
#[tokio::test]
async fn the_version_has_its_commit() {
    let told = printed(&["--version"]);
    let inside = told.trim().strip_prefix("fencepost ").expect("its name");
    let (version, commit) = inside.split_once(' ').expect("a commit");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let commit = commit.trim_matches(['(', ')']);
    assert_ne!(commit, "", "{told}");
    let (_upstream, proxy) = fenced("{}").await;
    let labels = [("version", version), ("commit", commit)];
    assert_eq!(proxy.count("fencepost_build_info", &labels).await, 1);
}
