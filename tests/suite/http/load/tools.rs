//! Load from tools that others wrote to break servers: slowhttptest and h2load.

use std::process::Stdio;
use std::time::Duration;

use super::{Healthy, ROOM, scale, started};
use crate::support::store::tool;

/// Runs a tool to its end beside a healthy client; `None`, and a line that says so, if it is not
/// installed.
async fn beside(name: &str, more: &str, arguments: impl Fn(&str) -> Vec<String>) -> Option<String> {
    let path = tool(name)?;
    let (_upstream, mut proxy) = started(more).await;
    let healthy = Healthy::start(&mut proxy).await;
    let mut command = tokio::process::Command::new(path);
    command
        .args(arguments(&proxy.data().to_string()))
        .kill_on_drop(true);
    command.stdin(Stdio::null());
    let output = tokio::time::timeout(Duration::from_mins(5), command.output());
    let output = output.await.expect("the tool ends").expect("the tool runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let grown = healthy.end(name, &mut proxy).await;
    assert!(grown < ROOM + scale(32 << 20, 512 << 20), "{grown} bytes");
    Some(said)
}

/// slowhttptest opens this many connections in one of its ways.
async fn slowly(way: &[&str]) {
    let limits = "{ limits: { head_timeout: 2s, write_timeout: 2s }, body: { timeout: 2s, progress_timeout: 2s } }";
    let (connections, seconds) = (scale("200", "2000"), scale("6", "60"));
    let said = beside("slowhttptest", limits, |to| {
        let common = ["-c", connections, "-r", "1000", "-l", seconds, "-p", "3"];
        let url = format!("http://{to}/orders/7?size=1000000");
        let all = way.iter().chain(&common).map(ToString::to_string);
        all.chain(["-u".to_owned(), url]).collect()
    })
    .await;
    if let Some(said) = said {
        // Its probe, a request of its own each second, was answered: the service was there.
        assert!(!said.contains("service available:   NO"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowhttptest_headers() {
    slowly(&["-H", "-i", "1", "-t", "GET", "-x", "24"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowhttptest_bodies() {
    slowly(&["-B", "-i", "1", "-s", "8192", "-t", "POST", "-x", "10"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowhttptest_reading() {
    slowly(&[
        "-X", "-w", "10", "-y", "20", "-n", "1", "-z", "32", "-k", "3",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2load_with_many_streams() {
    // A hundred streams of each at once: no more than `limits.in_flight`.
    let (requests, clients) = (scale("4000", "200000"), scale("10", "40"));
    // All of them are of one resource.
    let limits = "{ limits: { in_flight_per_resource: none } }";
    let said = beside("h2load", limits, |to| {
        let arguments = [
            "-n",
            requests,
            "-c",
            clients,
            "-m",
            "100",
            "-H",
            ":method: PUT",
        ];
        let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        arguments.extend(["-H".to_owned(), "x-fencing-token: 7".to_owned()]);
        arguments.push(format!("http://{to}/orders/h2load"));
        arguments
    })
    .await;
    if let Some(said) = said {
        let figures = said
            .lines()
            .filter(|line| line.starts_with("finished") || line.starts_with("requests"));
        println!("load: h2load: {}", figures.collect::<Vec<_>>().join("; "));
        assert!(said.contains(&format!("{requests} succeeded")), "{said}");
    }
}
