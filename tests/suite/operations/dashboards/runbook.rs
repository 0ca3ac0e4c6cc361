//! The runbook has a heading for each alert, and docs/problems.md one for each answer.

use std::collections::BTreeSet;
use std::process::Command;

use super::{alerts, read, text};
use crate::packaging::documents::headings;
use crate::support::fenced;
use crate::support::proxy::fencepost;
use crate::support::run::run;

/// The problem types of the admin port, as its code lists them: `NAME STATUS "type" "title"`.
fn admin_problem_types() -> BTreeSet<String> {
    let code = read("src/admin/problem.rs");
    let constant = |byte: u8| byte.is_ascii_uppercase() || b"_ ".contains(&byte);
    let rows = code.lines().filter_map(|line| {
        let (names, rest) = line.trim().split_once(" \"")?;
        let (kind, _) = rest.split_once('"')?;
        names.bytes().all(constant).then(|| kind.to_owned())
    });
    let types: BTreeSet<String> = rows.collect();
    assert!(types.len() > 10, "these are not all: {types:?}");
    types
}

#[test]
fn every_alert_and_every_admin_problem_has_its_place() {
    let problems = headings(&read("docs/problems.md"));
    let unexplained = &admin_problem_types() - &problems;
    assert!(unexplained.is_empty(), "docs/problems.md: {unexplained:?}");
    let runbook = read("docs/runbook.md");
    let mut headings = headings(&runbook);
    headings.retain(|heading| heading.starts_with("Fencepost"));
    let alerts = alerts().into_iter();
    let alerts: BTreeSet<_> = alerts
        .map(|alert| text(&alert, "alert").to_owned())
        .collect();
    assert_eq!(headings, alerts, "docs/runbook.md");
    // Each alert has the four parts, in this order, and the first command is one.
    for section in runbook.split("\n### ").skip(1) {
        let name = section.lines().next().unwrap_or_default();
        if name.starts_with("Fencepost") {
            let parts = ["Means.", "First.", "You see, you do.", "Never."];
            let at = parts.map(|part| section.find(&format!("**{part}**")));
            let whole = at[0].is_some() && at.is_sorted();
            assert!(whole, "{name} lacks one of {parts:?}");
            let first = section.contains("**First.** `");
            assert!(first, "{name} begins with no command");
        }
    }
}

/// The lines of a screen.
const SCREEN: usize = 40;

#[test]
fn no_section_is_longer_than_a_screen() {
    let runbook = read("docs/runbook.md");
    for section in runbook.split("\n#").skip(1) {
        let (name, lines) = (section.lines().next(), section.lines().count());
        assert!(lines <= SCREEN, "{name:?} has {lines} lines");
    }
}

#[tokio::test]
async fn every_metric_is_explained() {
    let (_upstream, proxy) = fenced("{}").await;
    let told = read("docs/metrics.md");
    for family in proxy.metrics().await.types.keys() {
        let mut forms = [format!("`{family}`"), format!("`{family}{{")].into_iter();
        let explained = forms.any(|form| told.contains(&form));
        assert!(explained, "{family} is explained nowhere");
    }
}

/// Each `fp …` of the runbook, with its quotes as a shell reads them, is a command that the program
/// has: `--help` at its end is answered only if everything before it parses.
#[tokio::test]
async fn the_program_has_the_commands_of_the_runbook() {
    let runbook = read("docs/runbook.md");
    let lines = runbook.lines();
    let blocks = lines.filter_map(|line| line.trim().strip_prefix("$ fp "));
    let pieces = runbook.split('`');
    let inline = pieces.filter_map(|piece| piece.strip_prefix("fp "));
    let inline = inline.filter(|piece| !piece.contains('\n') && !piece.contains('…'));
    let commands: BTreeSet<&str> = blocks
        .chain(inline)
        // What comes behind a pipe is another program's.
        .map(|line| line.split(" | ").next().unwrap_or(line))
        .filter(|line| !line.starts_with("()"))
        .collect();
    assert!(commands.len() > 4, "these are not all: {commands:?}");
    for command in commands {
        let script = format!("exec \"$PROGRAM\" {command} --help");
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", &script]).env("USER", "somebody");
        shell.env("PROGRAM", fencepost().get_program());
        let ended = run(shell).await;
        assert_eq!(ended.code, Some(0), "fp {command}\n{}", ended.text());
    }
}
