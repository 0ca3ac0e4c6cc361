//! `ZooKeeper`, from Debian's jars, and programs in Java that talk to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::postgres::free_port;
use super::process::Process;
use super::skip::{is_skipped, or_lacks};
use super::store::program;
use super::wait::eventually;

/// Where `libzookeeper-java` puts the server and the client; its manifest names what they need.
pub const JAR: &str = "/usr/share/java/zookeeper.jar";

/// A Java that starts soon, rather than runs fast.
pub const QUICK: [&str; 3] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"];

/// A Java, beside `ZooKeeper`'s jars; `None`, and a line that says so, if the machine lacks a part
/// of it.
pub fn java() -> Option<PathBuf> {
    let there = !is_skipped("zookeeper") && Path::new(JAR).exists();
    or_lacks(there.then_some(()), "zookeeper")?;
    or_lacks(program("javac").and(program("java")), "java")
}

/// A server of its own.
pub struct ZooKeeper {
    pub port: u16,
    _dir: TempDir,
    _process: Process,
}

impl ZooKeeper {
    pub async fn start(java: &Path) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let (here, port) = (dir.path().display(), free_port());
        let file = dir.path().join("zoo.cfg");
        let configuration = format!(
            "dataDir={here}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=2000\n\
             admin.enableServer=false\n"
        );
        std::fs::write(&file, configuration).expect("the directory is writable");
        let process = Process::start(
            Command::new(java)
                .args(QUICK)
                .args(["-cp", JAR])
                .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
                .arg(&file),
        );
        // It listens before it serves, and may never answer what it was asked meanwhile.
        eventually("ZooKeeper to serve", || async {
            let asked = tokio::time::timeout(Duration::from_secs(1), state(port)).await;
            let state = asked.ok()?.ok()?;
            state.contains("Mode: standalone").then_some(())
        })
        .await;
        Self {
            port,
            _dir: dir,
            _process: process,
        }
    }
}

/// What the server says of itself.
async fn state(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"srvr").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
