//! An etcd of one member.

use std::path::Path;
use std::process::Command;

use super::postgres::free_port;
use super::process::Process;

/// Starts it by this command, with its data in `dir`. Returns its port for clients.
pub fn start_etcd(mut command: Command, dir: &Path) -> (Process, u16) {
    let (port, peers) = (free_port(), free_port());
    let [client, peer] = [port, peers].map(|port| format!("http://127.0.0.1:{port}"));
    let arch = std::env::consts::ARCH.replace("aarch64", "arm64");
    command
        .current_dir(dir)
        .args(["--data-dir", "etcd", "--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .env("ETCD_UNSUPPORTED_ARCH", arch);
    (Process::start(&mut command), port)
}
