//! Holders of real locks, whose programs know nothing of tokens: a shell script under `etcdctl
//! lock`, a Python program with a lock of Redis, curl with a number of Postgres. (The Lease by file
//! is in [`super::sidecar`].)

use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{WRITE, attach, fenced, run, url};
use crate::fencing::lock_services::{Etcd, Redis, programs};
use crate::support::postgres::Cluster;
use crate::support::process::Group;
use crate::support::python::python;
use crate::support::store::{has_postgres, tool};
use crate::support::{eventually, or_return};

/// A script that writes for as long as it is let.
const NIGHTLY: &str = "while curl -sSf -o /dev/null -X PUT -d A $FENCEPOST_URL/orders/7; do sleep 0.02; done
    while :; do sleep 0.05; curl -s -o /dev/null -X PUT -d A $FENCEPOST_URL/orders/7 || [ $? -ne 7 ] || exit; done";

/// The arguments of `fencepost attach`, before the command.
fn attached(to: &str) -> Vec<String> {
    let mut command = vec![attach(to, &[]).get_program().to_string_lossy().into_owned()];
    let arguments = ["attach", "--to", to, "--token-env", "ETCD_LOCK_REV", "--"];
    command.extend(arguments.map(str::to_owned));
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_under_etcdctl_is_ended_once_its_lease_is_gone() {
    let [_curl] = or_return!(programs(["curl"]));
    let etcd = or_return!(Etcd::found().await);
    let (upstream, proxy) = fenced().await;
    let lock = |script: &str| {
        let mut command = etcd.ctl();
        command.args(["lock", "orders", "--ttl", "2", "--"]);
        command
            .args(attached(&url(&proxy)))
            .args(["sh", "-c", script]);
        command
    };
    let old = Group::start(&mut lock(NIGHTLY));
    upstream.reached(1).await;
    // Only the client of the lock is stopped: its lease ends, and the script goes on to write.
    old.leader().stop().await;
    let write = "curl -sSf -X PUT -d B $FENCEPOST_URL/orders/7";
    let ran = run(&mut lock(write)).await;
    ran.assert(0, "");
    let newest = *upstream
        .tokens("order:7")
        .iter()
        .max()
        .expect("B has written");
    eventually("the old holder's end", || async {
        let lines = old.leader().lines();
        let says = format!("the holder of token {newest} is newer");
        lines.iter().any(|line| line.contains(&says)).then_some(())
    })
    .await;
    old.signal(Signal::CONT);
    upstream.assert_no_overtaking();
    assert_eq!(
        upstream.last().text(),
        "B",
        "the last write is the newer holder's"
    );
}

/// A program that was written for a service without a fence.
const PROGRAM: &str = "
import os, pathlib, time, urllib.request
def write():
    request = urllib.request.Request('http://orders.example/orders/7', b'A', method='PUT')
    return urllib.request.urlopen(request).read()
write()
pathlib.Path(os.environ['WROTE']).touch()
while not os.path.exists(os.environ['GO']):
    time.sleep(0.02)
write()
";

/// Takes the lock for 300 ms, and prints the number that was drawn with it.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 300) \
     then return redis.call('INCR', KEYS[2]) end return ''";

#[tokio::test(flavor = "multi_thread")]
async fn a_python_program_with_a_lock_of_redis_is_refused_when_it_wakes() {
    let Some(python) = python() else { return };
    let redis = or_return!(Redis::found().await);
    let (upstream, proxy) = fenced().await;
    let dir = TempDir::new().expect("a directory");
    let take = format!(
        "token=; while [ -z \"$token\" ]; do
           token=$('{}' -p {} --raw EVAL \"{TAKE}\" 2 lock:orders fence:orders $$) && sleep 0.02
         done; echo $token",
        redis.cli.display(),
        redis.port
    );
    let proxied = ["--http-proxy=orders.example", "--"];
    let mut zombie = drawn(&url(&proxy), &take, &proxied);
    zombie.arg(python).args(["-c", PROGRAM]);
    for (name, file) in [("WROTE", "wrote"), ("GO", "go")] {
        zombie.env(name, dir.path().join(file));
    }
    let old = Group::start(&mut zombie);
    eventually("A's first write", || async {
        dir.path().join("wrote").exists().then_some(())
    })
    .await;
    old.stop().await;
    // The lock is free once its time is over: B takes it and writes.
    let curl = ["curl", "-sSf", "-X", "PUT", "-d", "B"];
    let order = "http://orders.example/orders/7";
    let mut command = drawn(&url(&proxy), &take, &proxied);
    let ran = run(command.args(curl).arg(order)).await;
    ran.assert(0, "");
    std::fs::write(dir.path().join("go"), "").expect("it is writable");
    old.signal(Signal::CONT);
    eventually("A's end", || async {
        let lines = old.leader().lines();
        let ended = "end=\"stale\" exit_code=75";
        lines.iter().any(|line| line.contains(ended)).then_some(())
    })
    .await;
    assert_eq!(upstream.tokens("order:7"), [1, 2]);
    assert_eq!(upstream.last().text(), "B");
}

/// `fencepost attach …` with the number that a shell draws before it.
fn drawn(to: &str, draw: &str, arguments: &[&str]) -> Command {
    let attach = attach(to, &[&["--token-env", "FENCE"], arguments].concat());
    let script = format!("FENCE=$({draw}) && export FENCE && exec \"$@\"");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, "sh"])
        .arg(attach.get_program());
    command.args(attach.get_args()).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_of_postgres_numbers_the_holders() {
    let psql = or_return!(tool("psql"));
    if !has_postgres() {
        return;
    }
    let postgres = Cluster::shared();
    let database = postgres.create_database().await;
    let name = database.rsplit('/').next().expect("its name");
    postgres.execute(name, "CREATE SEQUENCE fence").await;
    let (upstream, proxy) = fenced().await;
    let draw = format!(
        "'{}' -Atc \"select nextval('fence')\" '{database}'",
        psql.display()
    );
    let write = ["--", "sh", "-c", WRITE];
    for number in 1..=2 {
        let mut command = drawn(&url(&proxy), &draw, &[]);
        let ran = run(command.args(write)).await;
        ran.assert(0, "");
        assert_eq!(upstream.last().token(), Some(number));
    }
    let arguments = [&["--token", "1"], &write[..]].concat();
    let ran = run(&mut attach(&url(&proxy), &arguments)).await;
    ran.assert(75, "");
}
