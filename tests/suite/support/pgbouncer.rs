//! A pooler in front of a cluster, for the one test that must see it refused.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::postgres::{Cluster, free_port, wait_until};

#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    port: u16,
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
        let port = free_port();
        let write = |name: &str, text: &str| -> io::Result<PathBuf> {
            let path = dir.path().join(name);
            fs::File::create(&path)?.write_all(text.as_bytes())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
            Ok(path)
        };
        let users = write("users.txt", "\"postgres\" \"\"\n").expect("the file can be written");
        let config = write(
            "pgbouncer.ini",
            &format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
                 listen_port={port}\nunix_socket_dir=\nauth_type=trust\nauth_file={}\n\
                 pool_mode=transaction\n{settings}\n",
                cluster.port(),
                users.display()
            ),
        )
        .expect("the file can be written");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let mut command = Command::new(program);
        if let Some((uid, gid)) = cluster.owner() {
            command.uid(uid).gid(gid);
        }
        let mut child = command
            .arg("-q")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pgbouncer can be run");
        wait_until("PgBouncer listens", || {
            if let Ok(Some(status)) = child.try_wait() {
                let mut said = String::new();
                if let Some(mut stderr) = child.stderr.take() {
                    let _ = stderr.read_to_string(&mut said);
                }
                panic!("PgBouncer ended with {status}: {said}");
            }
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(Self {
            child,
            port,
            _dir: dir,
        })
    }

    /// The URL of a database through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
