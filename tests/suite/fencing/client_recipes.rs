//! The programs of docs/clients, as they stand there: each takes a lock of a real lock service, claims
//! and writes, and does the right thing with each answer.

mod consul;
mod rust;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use self::consul::Consul;
use super::lock_services::{Etcd, Redis, programs};
use crate::support::conformance::Conformance;
use crate::support::pages::command;
use crate::support::postgres::Cluster;
use crate::support::process::Process;
use crate::support::python::python;
use crate::support::skip::{is_skipped, lacks};
use crate::support::store::has_postgres;
use crate::support::zookeeper::{JAR, Java, QUICK, ZooKeeper};
use crate::support::{
    Config, Proxy, Step, Store, Upstream, eventually, or_return, put, return_unless,
};

/// The recipe of a page (relative to docs/clients): at most 60 lines.
pub fn text_of(page: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients");
    let text = std::fs::read_to_string(path.join(page)).expect("the page is there");
    let mark = format!("<!-- recipe: {name} -->\n```");
    let (_, block) = text.split_once(&mark).expect("the page has the recipe");
    let (_, block) = block.split_once('\n').expect("the name of its language");
    let (program, _) = block.split_once("\n```").expect("its end");
    // gofmt demands blank lines between declarations.
    let go = page == "go.md";
    let lines = program.lines().filter(|line| !(go && line.is_empty()));
    assert!(lines.count() <= 60, "{name} is long");
    program.to_owned()
}

/// Writes the recipe of a page as a file, and returns its path.
pub fn recipe(page: &str, name: &str, dir: &Path) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, text_of(page, name)).expect("the directory is writable");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    file
}

/// Writes the files of a program, of which the last is started, and returns its path.
pub fn program_of<const N: usize>(page: &str, files: [&str; N], dir: &Path) -> PathBuf {
    let files = files.map(|file| recipe(page, file, dir));
    files.last().expect("a file").clone()
}

/// How a run ended, and what it wrote.
pub struct Ran {
    pub good: bool,
    pub said: String,
}

/// Runs a client to its end.
pub async fn run(command: &mut Command) -> Ran {
    let mut process = Process::start(command);
    let status = process.exit().await;
    Ran {
        good: status.success(),
        said: process.output(),
    }
}

/// A command of a page in this directory.
fn sh(text: &str, dir: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text]).current_dir(dir);
    command.envs(variables.iter().copied());
    command
}

async fn fence(upstream: &Upstream) -> Proxy {
    let more = "barrier: { wait: 1s }";
    Proxy::start(&Config::new(upstream, &Store::sqlite()).with(more)).await
}

/// The scenarios of the conformance server that a recipe is run in: whether it must succeed there,
/// and what it must say. The others differ from one of these in nothing that a recipe looks at.
const SCENARIOS: [(&str, Option<bool>, &str); 8] = [
    ("accepted", Some(true), ""),
    ("stale-token", Some(false), "orders/7: stale-token: never"),
    ("store-unavailable-spent", Some(false), ""),
    ("older-in-flight", Some(true), ""),
    (
        "outcome-unknown",
        Some(false),
        "orders/7: outcome-unknown: check-first",
    ),
    ("connection-lost", Some(false), ""),
    ("claim-stale", Some(false), ""),
    // It does with the answer what it does with any other of its API.
    ("upstream-error", None, ""),
];

/// What each recipe must do. `client` makes its command for a URL of fencepost.
async fn obeys(client: impl Fn(&str) -> Command) {
    let upstream = Upstream::start().await;
    let proxy = fence(&upstream).await;
    let url = format!("http://{}", proxy.data());

    // Everything is well: one write arrives, under a token that the lock service gave.
    upstream.next([Step::answer("200 OK", "", "done")]);
    let ran = run(&mut client(&url)).await;
    assert!(ran.good && ran.said.contains("done"), "{}", ran.said);
    let first = upstream.only();
    assert_eq!((first.method(), first.target()), ("PUT", "/orders/7"));
    assert_eq!(first.text(), "{\"state\":\"paid\"}");
    let token = first.token().expect("it is fenced");
    assert!(token > 0 && proxy.token("order:7").await == Some(token));

    // The lock is somebody else's: it stops, and nothing arrives.
    proxy.forward(put("/orders/7").token(1_000_000)).await;
    let ran = run(&mut client(&url)).await;
    let stops = !ran.good && ran.said.contains("stale-token: never");
    assert!(stops, "{}", ran.said);
    assert_eq!(upstream.count(), 2, "the newer one's write, and no other");

    // Each kind of answer, one after the other: a recipe has one lock.
    let server = Conformance::start().await;
    for (scenario, succeeds, says) in SCENARIOS {
        let ran = run(&mut client(&server.url(scenario, "recipe"))).await;
        let verdict = server.verdict(scenario, "recipe").await;
        let said = &ran.said;
        assert_eq!(verdict["passed"], json!(true), "{said}\n{verdict:#}");
        if scenario != "claim-stale" {
            assert_eq!(verdict["claimed"], json!(true), "{said}\n{verdict:#}");
        }
        assert_eq!(succeeds.unwrap_or(ran.good), ran.good, "{scenario}: {said}");
        assert!(said.contains(says), "{scenario}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_recipe_obeys() {
    let [_curl] = or_return!(programs(["curl"]));
    let etcd = or_return!(Etcd::found().await);
    let dir = TempDir::new().expect("a directory");
    program_of("shell.md", ["fenced.sh", "nightly.sh"], dir.path());
    let shown = command("docs/clients/shell.md", "etcdctl");
    let etcd = format!("127.0.0.1:{}", etcd.port);
    let etcd = [("ETCDCTL_API", "3"), ("ETCDCTL_ENDPOINTS", &*etcd)];
    obeys(|url| {
        sh(
            &shown.command,
            &dir,
            &[&etcd[..], &[("FENCEPOST_URL", url)]].concat(),
        )
    })
    .await;
}

/// What another lock in front of a loop that [`obeys`] must do: its numbers grow.
async fn grants_grow(client: impl Fn(&str) -> Command) {
    let upstream = Upstream::start().await;
    let proxy = fence(&upstream).await;
    let url = format!("http://{}", proxy.data());
    for _ in 0..2 {
        let ran = run(&mut client(&url)).await;
        assert!(ran.good, "{}", ran.said);
    }
    let tokens = upstream.tokens("order:7");
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_recipe_takes_a_lock_of_postgres() {
    let [_psql, _curl] = or_return!(programs(["psql", "curl"]));
    return_unless!(has_postgres());
    let dir = TempDir::new().expect("a directory");
    let files = ["fenced.sh", "nightly.sh", "postgres_lock.sql"];
    program_of("shell.md", files, dir.path());
    let cluster = Cluster::shared();
    let database = cluster.create_database().await;
    let name = database.rsplit('/').next().expect("its name");
    cluster.execute(name, "CREATE SEQUENCE orders_fence").await;
    let shown = command("docs/clients/shell.md", "psql");
    let own = ("POSTGRES_URL", &*database);
    grants_grow(|url| sh(&shown.command, &dir, &[("FENCEPOST_URL", url), own])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_recipe_takes_a_lock_of_redis_that_a_replica_has() {
    let [_curl] = or_return!(programs(["curl"]));
    let redis = or_return!(Redis::found().await);
    let dir = TempDir::new().expect("a directory");
    let files = ["fenced.sh", "nightly.sh", "redis_lock.sh"];
    program_of("shell.md", files, dir.path());
    let shown = command("docs/clients/shell.md", "REDIS_URL");
    let here = format!("redis://127.0.0.1:{}", redis.port);
    let text = shown.command.replace("redis://locks:6379", &here);
    let client = |url: &str| sh(&text, &dir, &[("FENCEPOST_URL", url)]);
    let alone = run(&mut client("http://127.0.0.1:1")).await;
    let stops = !alone.good && alone.said.contains("no replica has the number");
    assert!(stops, "{}", alone.said);
    let replica = or_return!(Redis::found().await);
    replica.say(&["REPLICAOF", "127.0.0.1", &redis.port.to_string()]);
    eventually("the replica to be there", || async {
        (redis.say(&["WAIT", "1", "100"]) == "1").then_some(())
    })
    .await;
    grants_grow(client).await;
    let number = replica.say(&["GET", "fence:orders"]);
    assert_eq!(number, redis.say(&["GET", "fence:orders"]));
}

/// One of the programs in Python, with this `send.py`.
async fn python_obeys(name: &str, send: &str) {
    let python = or_return!(python());
    let redis = or_return!(Redis::found().await);
    let dir = TempDir::new().expect("a directory");
    let files = ["fenced.py", "redis_lock.py", send, name];
    let script = program_of("python.md", files, dir.path());
    let named = dir.path().join("send.py");
    std::fs::rename(dir.path().join(send), named).expect("it is ours");
    obeys(|url| {
        let mut command = Command::new(&python);
        command.arg(&script).env("FENCEPOST_URL", url);
        command.env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.port));
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_with_requests_obeys() {
    python_obeys("nightly.py", "send.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_with_httpx_obeys() {
    python_obeys("nightly.py", "send_httpx.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_with_aiohttp_obeys() {
    python_obeys("nightly_aiohttp.py", "send.py").await;
}

/// The program for Node, with this `send.mjs`.
async fn node_obeys(send: &str) {
    let [node] = or_return!(programs(["node"]));
    let etcd = or_return!(Etcd::found().await);
    let dir = TempDir::new().expect("a directory");
    let files = ["fenced.mjs", "etcd_lock.mjs", send, "nightly.mjs"];
    let script = program_of("node.md", files, dir.path());
    let named = dir.path().join("send.mjs");
    std::fs::rename(dir.path().join(send), named).expect("it is ours");
    std::os::unix::fs::symlink(MODULES, dir.path().join("node_modules")).expect("it is ours");
    obeys(|url| {
        let mut command = Command::new(&node);
        // The modules of Debian find each other from where they seem to be.
        command.args(["--preserve-symlinks", "--preserve-symlinks-main"]);
        command.arg(&script).env("FENCEPOST_URL", url);
        command.env("ETCD_URL", format!("http://127.0.0.1:{}", etcd.port));
        command
    })
    .await;
}

/// Where Debian puts the modules of Node.
const MODULES: &str = "/usr/share/nodejs";

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_with_fetch_obeys() {
    node_obeys("send.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_with_axios_obeys() {
    if is_skipped("axios") || !Path::new(MODULES).join("axios").exists() {
        return lacks("axios");
    }
    node_obeys("send_axios.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_java_recipe_obeys() {
    let java = or_return!(Java::find());
    let dir = TempDir::new().expect("a directory");
    program_of("java.md", ["Fenced.java", "Nightly.java"], dir.path());
    let played = |begins: &str| {
        let shown = command("docs/clients/java.md", begins);
        let text = shown.command.replace("zookeeper/lib/*", JAR);
        sh(&text, &dir, &[("JAVA_TOOL_OPTIONS", &*QUICK.join(" "))])
    };
    let compiled = run(&mut played("javac")).await;
    assert!(compiled.good, "{}", compiled.said);
    let zookeeper = ZooKeeper::start(&java).await;
    obeys(|url| {
        let mut command = played("java -cp");
        command.env("FENCEPOST_URL", url);
        command.env("ZOOKEEPER", format!("127.0.0.1:{}", zookeeper.port));
        command
    })
    .await;
}

/// Compiles the program in Go. What it needs of the standard library is kept, for those versions of
/// Go that bring it as source only.
fn go(go: &Path, dir: &Path) -> PathBuf {
    let [fenced, source] = ["fenced.go", "nightly.go"].map(|name| recipe("go.md", name, dir));
    let program = dir.join("nightly");
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/go");
    let output = Command::new(go)
        .args(["build", "-o"])
        .args([&program, &fenced, &source])
        .current_dir(dir)
        .env("GOCACHE", cache)
        .envs([("GO111MODULE", "off"), ("CGO_ENABLED", "0")])
        .output()
        .expect("go can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_recipe_obeys() {
    let [compiler] = or_return!(programs(["go"]));
    let dir = TempDir::new().expect("a directory");
    let program = go(&compiler, dir.path());
    let mut consul = Consul::start().await;
    // Two runs, and one for each scenario of the conformance server.
    let runs = 2 + u64::try_from(SCENARIOS.len()).expect("a few");
    for grant in 1..=runs {
        consul.begins(grant);
        if grant == 2 {
            // Somebody else has it, and then it is free.
            consul.asks(grant, false, 1);
        }
        consul.asks(grant, true, grant);
        consul.ends(grant);
    }
    obeys(|url| {
        let mut command = Command::new(&program);
        command.envs([("FENCEPOST_URL", url), ("CONSUL_URL", consul.url())]);
        command
    })
    .await;
    consul.assert_complete();

    // It is granted the lock, and loses it before it has read the number, which is its successor's.
    let (upstream, mut consul) = (Upstream::start().await, Consul::start().await);
    let proxy = fence(&upstream).await;
    consul.begins(5);
    consul.asks(5, true, 6);
    consul.asks(5, false, 6);
    let url = format!("http://{}", proxy.data());
    let mut command = Command::new(&program);
    command.envs([("FENCEPOST_URL", &url[..]), ("CONSUL_URL", consul.url())]);
    let ran = run(&mut command).await;
    let stops = !ran.good && ran.said.contains("check first");
    assert!(stops, "{}", ran.said);
    consul.assert_complete();
    let mark = proxy.token("order:7").await;
    assert_eq!(mark, None, "it does not use a number of another session");
}
