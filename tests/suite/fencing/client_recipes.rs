//! The programs of docs/clients, as they stand there: each takes a lock of a real lock service, claims
//! and writes, and does the right thing with each answer.

mod consul;
mod rust;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use super::lock_services::{Etcd, Redis, programs};
use crate::support::conformance::Conformance;
use crate::support::pages::command;
use crate::support::postgres::Cluster;
use crate::support::process::Process;
use crate::support::python::python;
use crate::support::skip::{is_skipped, lacks};
use crate::support::store::has_postgres;
use crate::support::zookeeper::{JAR, QUICK, ZooKeeper, java};
use crate::support::{Proxy, Step, Upstream, fenced, or_return, put, return_unless};

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
    let good = process.exit().await.success();
    let said = process.output();
    Ran { good, said }
}

/// A command of a page in this directory.
fn sh(text: &str, dir: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text]).current_dir(dir);
    command.envs(variables.iter().copied());
    command
}

/// An upstream, a proxy, and where that is.
async fn fence() -> (Upstream, Proxy, String) {
    let (upstream, proxy) = fenced("barrier: { wait: 1s }").await;
    let url = format!("http://{}", proxy.data());
    (upstream, proxy, url)
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

/// What each recipe must do: its command gets a URL of fencepost.
async fn obeys(client: &mut Command) {
    let (upstream, proxy, url) = fence().await;
    let mut ran_at = async |url: &str| run(client.env("FENCEPOST_URL", url)).await;

    // Everything is well: one write arrives, under a token that the lock service gave.
    upstream.next([Step::answer("200 OK", "", "done")]);
    let ran = ran_at(&url).await;
    assert!(ran.good && ran.said.contains("done"), "{}", ran.said);
    let first = upstream.only();
    assert_eq!((first.method(), first.target()), ("PUT", "/orders/7"));
    assert_eq!(first.text(), "{\"state\":\"paid\"}");
    let token = first.token().expect("it is fenced");
    assert!(token > 0 && proxy.token("order:7").await == Some(token));

    // The lock is somebody else's: it stops, and nothing arrives.
    proxy.forward(put("/orders/7").token(1_000_000)).await;
    let ran = ran_at(&url).await;
    let stops = !ran.good && ran.said.contains("stale-token: never");
    assert!(stops, "{}", ran.said);
    assert_eq!(upstream.count(), 2, "the newer one's write, and no other");

    // Each kind of answer, one after the other: a recipe has one lock.
    let server = Conformance::start().await;
    for (scenario, succeeds, says) in SCENARIOS {
        let ran = ran_at(&server.url(scenario, "recipe")).await;
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
    obeys(&mut sh(&shown.command, &dir, &etcd)).await;
}

/// What another lock in front of a loop that [`obeys`] must do: its numbers grow.
async fn grants_grow(client: &mut Command) {
    let (upstream, _proxy, url) = fence().await;
    for _ in 0..2 {
        let ran = run(client.env("FENCEPOST_URL", &url)).await;
        assert!(ran.good, "{}", ran.said);
    }
    let tokens = upstream.tokens("order:7");
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{tokens:?}");
}

/// A database with the sequence of the pages.
async fn sequence() -> String {
    let cluster = Cluster::shared();
    let database = cluster.create_database().await;
    let name = database.rsplit('/').next().expect("its name");
    cluster.execute(name, "CREATE SEQUENCE orders_fence").await;
    database
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_recipe_takes_a_lock_of_postgres() {
    let [_psql, _curl] = or_return!(programs(["psql", "curl"]));
    return_unless!(has_postgres());
    let dir = TempDir::new().expect("a directory");
    let files = ["fenced.sh", "nightly.sh", "postgres_lock.sql"];
    program_of("shell.md", files, dir.path());
    let database = sequence().await;
    let shown = command("docs/clients/shell.md", "psql");
    grants_grow(&mut sh(
        &shown.command,
        &dir,
        &[("POSTGRES_URL", &database)],
    ))
    .await;
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
    let mut client = sh(&text, &dir, &[]);
    let alone = run(&mut client).await;
    let stops = !alone.good && alone.said.contains("no replica has the number");
    assert!(stops, "{}", alone.said);
    let replica = or_return!(Redis::found().await);
    replica.say(&["REPLICAOF", "127.0.0.1", &redis.port.to_string()]);
    let replicas = redis.say(&["WAIT", "1", "20000"]);
    assert_eq!(replicas, "1", "the replica is there");
    grants_grow(&mut client).await;
    let number = replica.say(&["GET", "fence:orders"]);
    assert_eq!(number, redis.say(&["GET", "fence:orders"]));
}

/// Writes a file of a page under another name.
fn put_for(page: &str, file: &str, name: &str, dir: &TempDir) {
    std::fs::write(dir.path().join(name), text_of(page, file)).expect("the directory is writable");
}

/// One of the programs in Python, with this `send.py`.
async fn python_obeys(name: &str, send: &str) {
    let python = or_return!(python());
    let redis = or_return!(Redis::found().await);
    let dir = TempDir::new().expect("a directory");
    put_for("python.md", send, "send.py", &dir);
    let script = program_of(
        "python.md",
        ["fenced.py", "redis_lock.py", name],
        dir.path(),
    );
    let redis = format!("redis://127.0.0.1:{}", redis.port);
    obeys(Command::new(python).arg(script).env("REDIS_URL", redis)).await;
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
    put_for("node.md", send, "send.mjs", &dir);
    let files = ["fenced.mjs", "etcd_lock.mjs", "nightly.mjs"];
    let script = program_of("node.md", files, dir.path());
    std::os::unix::fs::symlink(MODULES, dir.path().join("node_modules")).expect("it is ours");
    let mut command = Command::new(node);
    // The modules of Debian find each other from where they seem to be.
    command.args(["--preserve-symlinks", "--preserve-symlinks-main"]);
    command.env("ETCD_URL", format!("http://127.0.0.1:{}", etcd.port));
    obeys(command.arg(script)).await;
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
    let java = or_return!(java());
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
    let zookeeper = format!("127.0.0.1:{}", zookeeper.port);
    obeys(played("java -cp").env("ZOOKEEPER", zookeeper)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_recipe_obeys() {
    let [go] = or_return!(programs(["go"]));
    let dir = TempDir::new().expect("a directory");
    program_of("go.md", ["fenced.go", "nightly.go"], dir.path());
    let mut build = Command::new(go);
    build.args(["build", "-o", "nightly", "fenced.go", "nightly.go"]);
    // What it needs of the standard library is kept, for those versions of Go that bring it as
    // source only.
    let cache = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/go");
    build.env("GO111MODULE", "off").env("CGO_ENABLED", "0");
    build.env("GOCACHE", cache);
    let compiled = run(build.current_dir(&dir)).await;
    assert!(compiled.good, "{}", compiled.said);

    let mut client = Command::new(dir.path().join("nightly"));
    // In the second run, somebody else has it, and then it is free.
    let consul = consul::start(&[(true, true), (false, false)]).await;
    obeys(client.env("CONSUL_URL", consul.url())).await;
    // Two runs, and one for each scenario of the conformance server.
    consul::assert_used(&consul, 2 + SCENARIOS.len());

    // It is granted the lock, and loses it before it has read the number, which is its successor's.
    let (_upstream, proxy, url) = fence().await;
    let consul = consul::start(&[(true, false), (false, false)]).await;
    client.env("CONSUL_URL", consul.url());
    let ran = run(client.env("FENCEPOST_URL", url)).await;
    assert!(ran.good, "{}", ran.said);
    consul::assert_used(&consul, 1);
    let mark = proxy.token("order:7").await;
    assert_eq!(mark, Some(4), "it does not use a number of another session");

    // An answer that is no JSON.
    consul.next([Step::answer("400 Bad Request", "", "not expected")]);
    let ran = run(&mut client).await;
    let stops = !ran.good && ran.said.contains("check first");
    assert!(stops, "{}", ran.said);
}
