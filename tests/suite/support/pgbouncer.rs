//! A pooler in front of a cluster, for the one test that must see it refused.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::postgres::{Cluster, free_port, wait_until};
use super::process::Process;

pub struct PgBouncer {
    port: u16,
    _process: Process,
}

impl PgBouncer {
    /// Starts Debian's `PgBouncer` in transaction mode; `None` where it is not installed.
    pub fn start(cluster: &Cluster, settings: &str) -> Option<Self> {
        let program = Path::new("/usr/sbin/pgbouncer");
        if !program.exists() {
            return None;
        }
        let port = free_port();
        // Their reader is the server's user too.
        let write = |name: &str, text: &str| -> PathBuf {
            let path = cluster.dir().join(format!("pgbouncer-{port}.{name}"));
            fs::write(&path, text).expect("the directory is writable");
            path
        };
        let users = write("users", "\"postgres\" \"\"\n");
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
             listen_port={port}\nunix_socket_dir=\nauth_type=trust\nauth_file={}\n\
             pool_mode=transaction\n{settings}\n",
            cluster.port(),
            users.display()
        );
        let config = write("ini", &config);
        let mut command = Command::new(program);
        if let Some((uid, gid)) = cluster.owner() {
            command.uid(uid).gid(gid);
        }
        let mut process = Process::start(command.arg("-q").arg(config));
        wait_until("PgBouncer listens", || {
            if let Some(status) = process.ended() {
                panic!("PgBouncer ended with {status}: {}", process.output());
            }
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(Self {
            port,
            _process: process,
        })
    }

    /// The URL of a database through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}
