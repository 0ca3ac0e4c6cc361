//! A pooler in front of a cluster, for the one test that must see it refused.

use super::postgres::{Cluster, free_port};
use super::process::Process;
use super::store::tool;

pub struct PgBouncer {
    port: u16,
    _process: Process,
}

impl PgBouncer {
    /// Starts `PgBouncer` in transaction mode; `None`, and a line that says so, where it is not
    /// installed.
    pub async fn start(cluster: &Cluster, settings: &str) -> Option<Self> {
        let program = tool("pgbouncer")?;
        let (port, server) = (free_port(), cluster.port());
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\n\
             listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=any\n\
             pool_mode=transaction\n{settings}\n"
        );
        // Its reader is the server's user too.
        let file = cluster.dir().join(format!("pgbouncer-{port}.ini"));
        std::fs::write(&file, config).expect("the directory is writable");
        let mut process = Process::start(cluster.command(program).arg("-q").arg(file));
        process.listens_on(port).await;
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
