//! What `.ci/release` makes a release of: one version everywhere, the workflow that calls it, and the
//! Debian package's unit and configuration. The script itself compiles for minutes, so it checks
//! what it made at its end, and `.ci/release VERSION --verify` compares two runs.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::documents::read;
use super::image::project;
use crate::support::or_return;
use crate::support::proxy::fencepost;
use crate::support::python::python;
use crate::support::run::run_with;
use crate::support::skip::lacks;
use crate::support::store::program;

/// The most that the unit may be exposed, in tenths of `systemd-analyze security`'s figure: of 10
/// for a service without any confinement to 0.
const EXPOSURE: &str = "--threshold=20";

#[test]
fn the_version_is_one_everywhere() {
    let (version, chart) = (env!("CARGO_PKG_VERSION"), "charts/fencepost/Chart.yaml");
    for (file, line) in [
        ("Dockerfile", format!("ARG VERSION={version}")),
        (chart, format!("version: {version}")),
        (chart, format!("appVersion: {version}")),
        ("CHANGELOG.md", format!("## [{version}]")),
    ] {
        let text = read(file);
        assert!(text.lines().any(|found| found == line), "{file}: {line}");
        // The script looks for the same lines.
        let looked_for = line.replace(version, "$version");
        let has = format!("has {file} \"{looked_for}\"");
        assert!(read(".ci/release").contains(&has), "{has}");
    }
}

#[test]
fn the_workflow_has_nothing_that_a_linter_warns_of() {
    let python = or_return!(python());
    // Its other linters are not installed everywhere.
    let output = Command::new(python.with_file_name("actionlint"))
        .args(["-color=false", "-shellcheck=", "-pyflakes="])
        .arg(project().join(".github/workflows/release.yml"))
        .output()
        .expect("actionlint can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");

    // A tag may be moved; a commit is one text.
    let workflow = read(".github/workflows/release.yml");
    for line in workflow.lines().filter(|line| line.contains("uses: ")) {
        let (_, commit) = line.split_once('@').expect("a version");
        let commit = commit.split(' ').next().expect("it is not empty");
        let digits = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(commit.len() == 40 && digits, "{line}");
    }
}

/// The build runs the code of the commit and of every crate: it must not be able to sign or publish.
#[test]
fn the_workflow_writes_only_where_it_runs_no_code_of_the_commit() {
    let workflow: Value =
        serde_saphyr::from_str(&read(".github/workflows/release.yml")).expect("YAML");
    assert_eq!(workflow["permissions"], json!({ "contents": "read" }));
    let jobs = workflow["jobs"].as_object().expect("jobs");
    let may = |job: &str| jobs[job].get("permissions").cloned();
    assert_eq!(may("build"), None);
    let signs = json!({ "id-token": "write", "attestations": "write" });
    for (job, publishes) in [("image", "packages"), ("files", "contents")] {
        let mut expected = signs.clone();
        expected[publishes] = json!("write");
        assert_eq!(may(job), Some(expected), "{job}");
        let steps = jobs[job]["steps"].to_string();
        let runs_it = steps.contains("checkout") || steps.contains(".ci/");
        assert!(!runs_it, "{job}");
        assert!(steps.contains("actions/attest-build-provenance@"), "{job}");
    }
    assert_eq!(jobs.len(), 3, "a job that this test does not know");
    // Nothing from the event or from another job is pasted into a script.
    let steps = |job: &Value| job["steps"].as_array().expect("steps").clone();
    for step in jobs.values().flat_map(steps) {
        let script = step["run"].as_str().unwrap_or_default();
        assert!(!script.contains("${{"), "{script}");
    }
    // The identity that readers verify is this workflow at the tag.
    assert_eq!(workflow["on"], json!({ "push": { "tags": ["v*"] } }));
    let version = env!("CARGO_PKG_VERSION");
    let identity = format!("/.github/workflows/release.yml@refs/tags/v{version}");
    assert!(read("docs/install.md").contains(&identity), "{identity}");
}

/// What `systemd-analyze` says of a unit: whether it is content, and its words.
fn analyze(arguments: &[&str], unit: &str) -> (bool, String) {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("fencepost.service");
    std::fs::write(&file, unit).expect("it is writable");
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .arg(&file)
        .output()
        .expect("systemd-analyze can be started");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

#[test]
fn the_unit_is_right_and_confined() {
    if program("systemd-analyze").is_none() {
        lacks("systemd-analyze");
        return;
    }
    // `verify` looks for the program and the manual pages where the package installs them.
    let here = fencepost().get_program().to_string_lossy().into_owned();
    let unit = read("config/debian/fencepost.service");
    let mut lines: Vec<&str> = unit.split('\n').collect();
    lines.retain(|line| !line.starts_with("Documentation="));
    let unit = lines.join("\n");
    let installed = unit.replace("/usr/bin/fencepost", &here);
    assert_ne!(installed, unit);
    let (good, said) = analyze(&["verify"], &installed);
    assert!(good && !said.contains("fencepost.service"), "{said}");

    let security = ["security", "--offline=true", EXPOSURE];
    let (good, said) = analyze(&security, &unit);
    assert!(good, "{said}");
    assert!(read(".ci/release").contains(EXPOSURE));
}

#[tokio::test]
async fn the_package_has_files_that_are_there_and_a_good_configuration() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let package = &manifest["package"]["metadata"]["deb"];
    let assets = package["assets"].as_array().expect("a list");
    assert!(assets.len() > 5);
    for asset in assets {
        let source = asset[0].as_str().expect("a path");
        // Made by the script.
        if source.starts_with("target/release/") {
            continue;
        }
        let (there, _) = source.split_once('*').unwrap_or((source, ""));
        assert!(project().join(there).exists(), "{source}");
    }
    let unit = read("config/debian/fencepost.service");
    let file = package["conf-files"][0].as_str().expect("a path");
    let reads = format!("--config {file}\n");
    assert!(unit.contains(&reads), "{reads}");

    let file = project().join("config/debian/fencepost.yaml");
    let checked = run_with(&["check", file.to_str().expect("text")]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for part in ["no errors, 0 warnings", "/var/lib/fencepost/"] {
        assert!(checked.out.contains(part), "{part}: {checked:?}");
    }
}
