//! README's commands, in their order and in one directory, as a reader types them.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use tokio::net::TcpStream;

use super::commands::Stage;
use super::documents::read;
use crate::fencing::lock_services::{Etcd, programs};
use crate::support::pages::{Shown, blocks, commands};
use crate::support::postgres::free_port;
use crate::support::process::{Group, Process};
use crate::support::{Upstream, eventually, or_return};

/// The part of README between two headings.
fn section(from: &str, to: &str) -> String {
    let text = read("README.md");
    let (_, text) = text.split_once(from).expect("the first heading");
    let (text, _) = text.split_once(to).expect("the second heading");
    text.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn its_commands_work_one_after_the_other() {
    let [_curl] = or_return!(programs(["curl"]));
    let etcd = or_return!(Etcd::found().await);
    let upstream = Upstream::start().await;
    let (data, admin) = (free_port(), free_port());
    let stage = Stage::new(&[
        ("127.0.0.1:3000", upstream.address().to_string()),
        ("127.0.0.1:7080", format!("127.0.0.1:{data}")),
    ]);
    let script = stage.dir.path().join("nightly.sh");
    let write = "#!/bin/sh\nexec curl -sSf -X PUT -d nightly $FENCEPOST_URL/orders/7\n";
    std::fs::write(&script, write).expect("the script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("its mode");
    let shell = |command: &str| {
        let mut shell = stage.command(command);
        let listen = format!("127.0.0.1:{admin}");
        shell.env("FENCEPOST_ADMIN_URL", format!("http://{listen}"));
        shell.env("FENCEPOST_ADMIN_LISTEN", listen);
        shell.env("ETCDCTL_ENDPOINTS", format!("127.0.0.1:{}", etcd.port));
        shell
    };
    let route = section("## One route", "## What it promises");
    let (_, file) = route.split_once("```yaml\n").expect("a configuration");
    let file = file.split_once("\n```").expect("its end").0;
    let mut proxy: Option<Group> = None;
    let first = commands(&section("## First requests", "## One route"));
    let mut played = 0;
    for Shown { command, output } in first.into_iter().chain(commands(&route)) {
        played += 1;
        if command.contains("fencepost serve") {
            if let Some(before) = proxy.take() {
                before.signal(Signal::INT);
                eventually("the port to be free", || async {
                    TcpStream::connect(("127.0.0.1", data)).await.err()
                })
                .await;
            }
            let own = stage.dir.path().join("fencepost.yaml");
            std::fs::write(own, stage.real(file)).expect("the file");
            proxy = Some(Group::start(&mut shell(&command)));
            eventually("the proxy to listen", || async {
                TcpStream::connect(("127.0.0.1", data)).await.ok()
            })
            .await;
            continue;
        }
        let mut process = Process::start(&mut shell(&command));
        let status = process.exit().await;
        let text = process.output();
        assert!(status.success(), "{command}: {text}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let varies = |line: &str| line.contains('…') || line.starts_with("Via:");
        for line in output.iter().filter(|line| !varies(line)) {
            let there = words(&text).contains(&words(line));
            assert!(there, "{command}: no {line:?} in {text}");
        }
    }
    let blocks = blocks(&read("README.md")).into_iter();
    let blocks = blocks.filter(|block| block.info == "console");
    let lines = blocks.flat_map(|block| block.lines);
    let all = lines.filter(|line| line.starts_with("$ ")).count();
    assert_eq!(played, all, "README has other commands than these");
    let request = "curl -sf -X PUT http://127.0.0.1:7080/orders/7/items/3 -H 'X-Fencing-Token: 1'";
    let mut process = Process::start(&mut shell(request));
    assert!(process.exit().await.success(), "{}", process.output());
}
