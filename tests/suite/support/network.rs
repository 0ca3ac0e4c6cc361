//! A network of a test's own: the loopback, and one address that is not the loopback's, as a pod
//! has it.

use std::future::Future;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;
use rustix::thread::UnshareFlags;
use tokio::runtime::Builder;

use super::skip::or_lacks;
use super::store::program;

/// The only address beside the loopback's.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Returns whether a test can have one; says so where it cannot.
pub fn is_possible() -> bool {
    root_has(&["unshare", "ip"])
}

/// Returns whether this process is root's, and finds these programs; says so where it does not.
pub fn root_has(programs: &[&str]) -> bool {
    let mut programs = programs.iter();
    let is_root = geteuid().is_root().then_some(());
    or_lacks(is_root, "root").is_some()
        && programs.all(|name| or_lacks(program(name), name).is_some())
}

/// The name whose addresses [`resolving`] says.
pub const NAME: &str = "several.test";

/// Runs its arguments as a program for which [`NAME`] has these addresses; `dir` is its own.
pub fn resolving(addresses: &[Ipv4Addr], dir: &Path) -> Command {
    let hosts = dir.join("hosts");
    let lines = addresses.iter().map(|one| format!("{one} {NAME}\n"));
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
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(body());
    };
    std::thread::scope(|scope| drop(scope.spawn(thread)));
}

fn enter_a_network() {
    #[expect(
        deprecated,
        reason = "what is not needs an unsafe block, for other flags than this"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET).expect("root may have a network");
    let own = format!("address add {ADDRESS}/32 dev lo");
    for arguments in ["link set lo up", &own] {
        let done = Command::new(program("ip").expect("it is there"))
            .args(arguments.split(' '))
            .status();
        assert!(done.is_ok_and(|status| status.success()), "{arguments}");
    }
}
