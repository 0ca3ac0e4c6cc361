//! A network of a test's own: the loopback, and one address that is not the loopback's, as a pod
//! has it.

use std::fs::File;
use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::skip;
use super::store::program;

/// The only address beside the loopback's.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Returns whether a test can have one; says so where it cannot.
pub fn is_possible() -> bool {
    let missing = if geteuid().is_root() {
        ["unshare", "ip"]
            .into_iter()
            .find(|name| program(name).is_none())
    } else {
        Some("root")
    };
    if let Some(missing) = missing {
        skip::lacks(missing);
    }
    missing.is_none()
}

/// The name whose addresses [`resolving`] says.
pub const NAME: &str = "several.test";

/// Runs its arguments as a program for which [`NAME`] has these addresses; `dir` is its own.
pub fn resolving(addresses: &[Ipv4Addr], dir: &Path) -> Command {
    let hosts = dir.join("hosts");
    let lines = addresses
        .iter()
        .map(|address| format!("{address} {NAME}\n"));
    let lines: String = lines.chain(["127.0.0.1 localhost\n".to_owned()]).collect();
    std::fs::write(&hosts, lines).expect("the directory is writable");
    let script = "mount --bind \"$0\" /etc/hosts; exec \"$@\"";
    let mut runner = Command::new("unshare");
    runner.args(["--mount", "sh", "-ec", script]).arg(hosts);
    runner
}

/// Runs `body` on a thread that has a network of its own; what it starts is in there too.
pub fn in_a_network<F: Future<Output = ()>>(body: impl FnOnce() -> F + Send) {
    let thread = || {
        enter_a_network();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(body());
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(thread).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn enter_a_network() {
    let ip = program("ip").expect("it is there");
    let ip = ip.display();
    let script =
        format!("{ip} link set lo up; {ip} address add {ADDRESS}/32 dev lo; echo up; exec cat");
    let mut holder = Command::new("unshare")
        .args(["--net", "sh", "-ec", &script])
        // It stays for as long as this is open.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare can be started");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().expect("it is a pipe"))
        .read_line(&mut line)
        .expect("it can be read");
    let network = File::open(format!("/proc/{}/ns/net", holder.id())).expect("it has a network");
    holder.kill().expect("it is ours");
    holder.wait().expect("it is ours");
    assert_eq!(line, "up\n", "the network is not up");
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter a network");
}
