//! Holders of real locks, whose programs know nothing of tokens: a shell script under `etcdctl
//! lock`, curl with a number of Postgres. (The Lease by file is in [`super::sidecar`].)

use std::process::Command;

use rustix::process::Signal;

use super::{WRITE, attach, fenced, run, url};
use crate::fencing::lock_services::{Etcd, programs};
use crate::support::postgres::Cluster;
use crate::support::process::Group;
use crate::support::store::{has_postgres, tool};
use crate::support::{eventually, or_return, return_unless};

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
        let attached = attached(&url(&proxy));
        command.args(attached).args(["sh", "-c", script]);
        command
    };
    let old = Group::start(&mut lock(NIGHTLY));
    upstream.reached(1).await;
    // The client of the lock and attach sleep past the end of the lease. They wake to a write of
    // the script, which has a process group of its own.
    old.signal(Signal::STOP);
    old.leader.stop().await;
    let write = "curl -sSf -X PUT -d B $FENCEPOST_URL/orders/7";
    let ran = run(&mut lock(write)).await;
    ran.assert(0, "");
    let newest = upstream.tokens("order:7").into_iter().max();
    let newest = newest.expect("B has written");
    old.signal(Signal::CONT);
    eventually("the old holder's end", || async {
        let lines = old.leader.lines();
        let says = format!("the holder of token {newest} is newer");
        lines.iter().any(|line| line.contains(&says)).then_some(())
    })
    .await;
    upstream.assert_no_overtaking();
    assert_eq!(upstream.last().text(), "B", "the newer holder's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_of_postgres_numbers_the_holders() {
    let psql = or_return!(tool("psql"));
    return_unless!(has_postgres());
    let postgres = Cluster::shared();
    let database = postgres.create_database().await;
    let name = database.rsplit('/').next().expect("its name");
    postgres.execute(name, "CREATE SEQUENCE fence").await;
    let (upstream, proxy) = fenced().await;
    let write = ["--", "sh", "-c", WRITE];
    let attach_with =
        |token: [&'static str; 2]| attach(&url(&proxy), &[&token[..], &write].concat());
    // A shell draws the number before it runs attach.
    let psql = psql.display();
    let number = format!("'{psql}' -Atc \"select nextval('fence')\" '{database}'");
    let draw = format!("FENCE=$({number}) && export FENCE && exec \"$@\"");
    for number in 1..=2 {
        let attach = attach_with(["--token-env", "FENCE"]);
        let mut command = Command::new("sh");
        command.args(["-c", &draw, "sh"]).arg(attach.get_program());
        let ran = run(command.args(attach.get_args())).await;
        ran.assert(0, "");
        assert_eq!(upstream.last().token(), Some(number));
    }
    let ran = run(&mut attach_with(["--token", "1"])).await;
    ran.assert(75, "");
}
