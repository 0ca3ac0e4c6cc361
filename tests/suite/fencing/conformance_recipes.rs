//! The programs of docs/clients against the conformance server, whose verdict on each must be that
//! it did right.

use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use super::client_recipes::{recipe, run};
use super::lock_services::{Etcd, Redis, programs};
use crate::support::conformance::Conformance;
use crate::support::python::python;

/// The scenarios that a recipe is run in, and whether it must succeed there. The others differ from
/// one of these in nothing that a recipe looks at.
const SCENARIOS: [(&str, Option<bool>); 8] = [
    ("accepted", Some(true)),
    ("stale-token", Some(false)),
    ("store-unavailable-spent", Some(false)),
    ("older-in-flight", Some(true)),
    ("outcome-unknown", Some(false)),
    ("connection-lost", Some(false)),
    ("claim-stale", Some(false)),
    // It does with the answer what it does with any other of its API.
    ("upstream-error", None),
];

/// Runs a client in each scenario, one after the other: a recipe has one lock. `client` makes its
/// command for a base URL.
pub async fn conforms(server: &Conformance, client: impl Fn(&str) -> Command) {
    for (scenario, succeeds) in SCENARIOS {
        let ran = run(&mut client(&server.url(scenario, "recipe"))).await;
        let verdict = server.verdict(scenario, "recipe").await;
        let said = &ran.said;
        assert_eq!(verdict["passed"], json!(true), "{said}\n{verdict:#}");
        if scenario != "claim-stale" {
            assert_eq!(verdict["claimed"], json!(true), "{said}\n{verdict:#}");
        }
        assert_eq!(succeeds.unwrap_or(ran.good), ran.good, "{scenario}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_recipe_conforms() {
    let test = "the_shell_recipe_conforms";
    let Some([etcd, ctl, _curl]) = programs(test, ["etcd", "etcdctl", "curl"]) else {
        return;
    };
    let (etcd, dir) = (
        Etcd::start(&etcd, &ctl).await,
        TempDir::new().expect("a directory"),
    );
    let script = recipe("shell.md", "nightly.sh", dir.path());
    conforms(&Conformance::start().await, |url| {
        let mut command = etcd.ctl();
        command.args(["lock", "orders", "--ttl", "10", "--"]);
        command.arg(&script).env("FENCEPOST_URL", url);
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_recipes_conform() {
    let test = "the_python_recipes_conform";
    let Some([server, cli]) = programs(test, ["redis-server", "redis-cli"]) else {
        return;
    };
    let Some(python) = python(test) else {
        return;
    };
    let (redis, dir) = (
        Redis::start(&server, &cli).await,
        TempDir::new().expect("a directory"),
    );
    let with = async |name: &str, database: usize| {
        let script = recipe("python.md", name, dir.path());
        let url_of_locks = format!("redis://127.0.0.1:{}/{database}", redis.port);
        conforms(&Conformance::start().await, |url| {
            let mut command = Command::new(&python);
            command.arg(&script).env("FENCEPOST_URL", url);
            command.env("REDIS_URL", &url_of_locks);
            command
        })
        .await;
    };
    // Each has a database, and so a lock, of its own.
    tokio::join!(
        with("nightly.py", 0),
        with("nightly_httpx.py", 1),
        with("nightly_aiohttp.py", 2),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_recipe_conforms() {
    let test = "the_node_recipe_conforms";
    let Some([etcd, ctl, node]) = programs(test, ["etcd", "etcdctl", "node"]) else {
        return;
    };
    let (etcd, dir) = (
        Etcd::start(&etcd, &ctl).await,
        TempDir::new().expect("a directory"),
    );
    let script = recipe("node.md", "nightly.mjs", dir.path());
    conforms(&Conformance::start().await, |url| {
        let mut command = Command::new(&node);
        command.arg(&script).env("FENCEPOST_URL", url);
        command.env("ETCD_URL", format!("http://127.0.0.1:{}", etcd.port));
        command
    })
    .await;
}
