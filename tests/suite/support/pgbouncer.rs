//! A pooler in front of a cluster, for the one test that must see it refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::postgres::{Cluster, free_port, wait_until};
use super::process::Process;

pub struct PgBouncer {
    port: u16,
    _process: Process,
    _dir: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts Debian's `PgBouncer` in transaction mode; `None` where it is not installed.
    pub fn start(cluster: &Cluster, settings: &str) -> Option<Self> {
        let program = Path::new("/usr/sbin/pgbouncer");
        if !program.exists() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let allow = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        allow(dir.path(), 0o755);
        let write = |name: &str, text: &str| -> PathBuf {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("the directory is writable");
            allow(&path, 0o644);
            path
        };
        let port = free_port();
        let users = write("users.txt", "\"postgres\" \"\"\n");
        let config = write(
            "pgbouncer.ini",
            &format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
                 listen_port={port}\nunix_socket_dir=\nauth_type=trust\nauth_file={}\n\
                 pool_mode=transaction\n{settings}\n",
                cluster.port(),
                users.display()
            ),
        );
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
            _dir: dir,
        })
    }

    /// The URL of a database through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}
