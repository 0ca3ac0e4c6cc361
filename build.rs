//! Names the commit that the program is built from, for `--version` and `fencepost_build_info`:
//! `FENCEPOST_COMMIT` if it is set, else what git says. Debug builds do not ask git, so that a
//! commit does not compile everything anew.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FENCEPOST_COMMIT");
    let given = env::var("FENCEPOST_COMMIT").ok();
    let given = given.filter(|commit| !commit.is_empty());
    let commit = given
        .or_else(of_git)
        .unwrap_or_else(|| "unknown".to_owned());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    assert!(
        commit.bytes().all(plain),
        "FENCEPOST_COMMIT is {commit:?}: write the hash of a commit"
    );
    println!("cargo:rustc-env=FENCEPOST_BUILD_COMMIT={commit}");
}

fn of_git() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" {
        return None;
    }
    // It grows with each commit and each checkout.
    let log = Path::new(".git/logs/HEAD");
    if log.exists() {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    let output = git.ok().filter(|output| output.status.success())?;
    let commit = String::from_utf8(output.stdout).ok()?;
    Some(commit.trim().to_owned())
}
