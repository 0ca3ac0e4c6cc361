//! `WebDAV`: litmus over nginx, and webdav-tck over `WsgiDAV`.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::Way::{Attach, Bypass};
use super::http::listening;
use super::{Outcomes, Suite, compare};
use crate::fencing::webdav::{EXTENSION, extended};
use crate::support::or_return;
use crate::support::postgres::free_port;
use crate::support::python::{installed, python};
use crate::support::skip::lacks;
use crate::support::store::{program, tool};

const LITMUS: Suite = Suite {
    name: "litmus",
    tests: 60,
    ways: &[Bypass, Attach],
    differences: &[(
        "basic delete_fragment",
        &[Bypass],
        "fencepost refuses a fragment, and nginx deletes `/frag/` at `DELETE /frag/#ment`, of \
         which litmus warns",
    )],
};

#[tokio::test]
async fn litmus() {
    let Some(nginx) = program("nginx").filter(|_| Path::new(EXTENSION).exists()) else {
        return lacks("nginx");
    };
    let litmus = or_return!(tool("litmus"));
    let upstream = async || {
        let nginx = extended(&nginx).await;
        (nginx.url(), nginx)
    };
    compare(&LITMUS, upstream, async |route, _| {
        let mut command = Command::new(&litmus);
        command.args(["-k", &format!("{}/", route.url)]);
        let said = route.run(command).await;
        let mut tests = Outcomes::new();
        let mut program = "";
        for line in said.lines() {
            let line = line.rsplit('\r').next().unwrap_or(line);
            let line = line.trim_start_matches([' ', '.']);
            if let Some(name) = line.strip_prefix("-> running `") {
                program = name.trim_end_matches("':");
            } else if let Some((number, rest)) = line.split_once(". ")
                && number.parse::<u8>().is_ok()
            {
                let (name, outcome) = rest.split_once('.').unwrap_or((rest, ""));
                let outcome = outcome.trim_start_matches(['.', ' ']);
                tests.push((format!("{program} {name}"), outcome.to_owned()));
            } else if line.starts_with("pass") || line.starts_with("FAIL") {
                // It comes behind a warning, in a line of its own.
                tests.last_mut().expect("a test").1.extend(["; ", line]);
            }
        }
        tests
    })
    .await;
}

const TCK: Suite = Suite {
    name: "webdav-tck",
    tests: 65,
    ways: &[Bypass, Attach],
    differences: &[],
};

#[tokio::test]
async fn webdav_tck() {
    let python = or_return!(python());
    let upstream = async || {
        let (dir, port) = (TempDir::new().expect("a directory"), free_port());
        let mut command = installed(&python, "wsgidav");
        command.args(["--host", "127.0.0.1", "--auth", "anonymous", "--no-config"]);
        command
            .arg(format!("--port={port}"))
            .arg("--root")
            .arg(dir.path());
        let (url, process) = listening(&mut command, port).await;
        (url, (dir, process))
    };
    compare(&TCK, upstream, async |route, _| {
        let mut command = installed(&python, "dav-tck");
        // Without `largefile`: two minutes of bytes.
        let suites = "--suites=basic,copymove,props,locks,http";
        command.args(["--no-colour", suites, &route.url]);
        let said = route.run(command).await;
        let mut outcomes = Outcomes::new();
        let mut suite = "";
        for line in said.lines() {
            if let Some(name) = line.strip_prefix("Running ") {
                suite = name;
            } else if let Some((name, outcome)) = line.trim().split_once(": ")
                && name.starts_with("test_")
            {
                outcomes.push((format!("{suite} {name}"), outcome.to_owned()));
            }
        }
        outcomes
    })
    .await;
}
