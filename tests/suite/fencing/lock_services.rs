//! End to end with other people's software: Debian's etcd hands out the tokens, `etcdctl lock` and
//! curl are the clients, nginx stores the writes. A holder is stopped with SIGSTOP until its lease is
//! gone; another one locks and writes; the first one continues and writes. Without the proxy the
//! zombie must win. (Zombies of other locks: `attach::holders`.)

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::etcd::start_etcd;
use crate::support::nginx::Nginx;
use crate::support::postgres::free_port;
use crate::support::process::{Group, Process};
use crate::support::skip::lacks;
use crate::support::store::program;
use crate::support::{Config, Proxy, Store, eventually, or_return};

/// Where each program is; `None`, and a line that says so, if one is missing.
pub fn programs<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let found = names.map(program);
    if let Some(at) = found.iter().position(Option::is_none) {
        lacks(names[at]);
        return None;
    }
    Some(found.map(Option::unwrap_or_default))
}

/// The content that it has stored.
fn content(nginx: &Nginx) -> String {
    let file = nginx.dir.path().join("root/files/ledger");
    std::fs::read_to_string(file).expect("something is stored")
}

pub struct Etcd {
    ctl: PathBuf,
    pub port: u16,
    _dir: TempDir,
    _process: Process,
}

impl Etcd {
    /// Starts the etcd of this machine; `None`, and a line that says so, without it.
    pub async fn found() -> Option<Self> {
        let [etcd, ctl] = programs(["etcd", "etcdctl"])?;
        let dir = TempDir::new().expect("a temporary directory");
        let (process, port) = start_etcd(Command::new(etcd), dir.path());
        let etcd = Self {
            ctl,
            port,
            _dir: dir,
            _process: process,
        };
        eventually("etcd to serve", || async {
            let probed = etcd.ctl().args(["endpoint", "health"]).output().ok()?;
            probed.status.success().then_some(())
        })
        .await;
        Some(etcd)
    }

    pub fn ctl(&self) -> Command {
        let mut command = Command::new(&self.ctl);
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &format!("127.0.0.1:{}", self.port)]);
        command
    }
}

pub struct Redis {
    pub cli: PathBuf,
    pub port: u16,
    _dir: TempDir,
    _process: Process,
}

impl Redis {
    /// Starts the Redis of this machine; `None`, and a line that says so, without it.
    pub async fn found() -> Option<Self> {
        let [server, cli] = programs(["redis-server", "redis-cli"])?;
        let dir = TempDir::new().expect("a temporary directory");
        let port = free_port();
        let mut command = Command::new(server);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]);
        let mut process = Process::start(command.arg(dir.path()));
        process.listens_on(port).await;
        Some(Self {
            cli,
            port,
            _dir: dir,
            _process: process,
        })
    }

    /// Its answer to a command.
    pub fn say(&self, command: &[&str]) -> String {
        let output = Command::new(&self.cli)
            .args(["-p", &self.port.to_string(), "--raw"])
            .args(command)
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// One who takes the lock, waits for the word, and writes its name.
struct Holder {
    dir: PathBuf,
    name: &'static str,
    group: Group,
}

impl Holder {
    fn start(etcd: &Etcd, name: &'static str, dir: &Path, to: &str) -> Self {
        let script = format!(
            "cd '{dir}'; printf %s $ETCD_LOCK_REV >{name}.new; mv {name}.new {name}.token
             until [ -e {name}.go ]; do sleep 0.02; done
             curl -s -o {name}.answer -w '%{{http_code}}' -X PUT -H \"X-Fencing-Token: $ETCD_LOCK_REV\" \
               --data-binary 'written by {name}' '{to}/files/ledger' >{name}.new
             mv {name}.new {name}.status",
            dir = dir.display(),
        );
        let mut command = etcd.ctl();
        command.args(["lock", "ledger", "--ttl", "2", "--", "sh", "-c", &script]);
        let group = Group::start(&mut command);
        Self {
            dir: dir.to_owned(),
            name,
            group,
        }
    }

    async fn file(&self, kind: &str) -> String {
        let file = self.dir.join(format!("{}.{kind}", self.name));
        eventually(&format!("{} of {}", kind, self.name), || async {
            std::fs::read_to_string(&file).ok()
        })
        .await
    }

    /// The number it was granted the lock with.
    async fn token(&self) -> u64 {
        self.file("token").await.parse().expect("a number")
    }

    /// Gives the word.
    fn go(&self) {
        std::fs::write(self.dir.join(format!("{}.go", self.name)), "")
            .expect("the directory is writable");
    }

    /// The status of its write.
    async fn status(&self) -> String {
        self.file("status").await
    }
}

/// How the zombie's write was answered (status and body), and the two tokens.
struct Story {
    status: String,
    answer: String,
    old: u64,
    new: u64,
}

/// A takes the lock and is stopped; B takes it when A's lease is gone, and writes; A wakes and
/// writes. Both write to `to`.
async fn zombie_story(etcd: &Etcd, nginx: &Nginx, to: &str) -> Story {
    let dir = TempDir::new().expect("a temporary directory");
    let a = Holder::start(etcd, "A", dir.path(), to);
    let old = a.token().await;
    a.group.stop().await;
    a.go();
    // The lock is exclusive: that B gets it shows that A's lease is gone.
    let b = Holder::start(etcd, "B", dir.path(), to);
    let new = b.token().await;
    b.go();
    let status = b.status().await;
    assert!(status == "201" || status == "204", "B's write: {status}");
    assert_eq!(content(nginx), "written by B");
    a.group.signal(Signal::CONT);
    let status = a.status().await;
    let answer = std::fs::read_to_string(dir.path().join("A.answer")).unwrap_or_default();
    Story {
        status,
        answer,
        old,
        new,
    }
}

#[tokio::test]
async fn a_zombie_of_an_etcd_lock_is_refused() {
    let etcd = or_return!(Etcd::found().await);
    let [nginx, _curl] = or_return!(programs(["nginx", "curl"]));
    // It is unmodified, and takes PUT.
    let puts = "dav_methods PUT DELETE; create_full_put_path on;";
    let nginx = Nginx::start(&nginx, puts, "").await;
    let config = Config::to(&nginx.url(), &Store::sqlite())
        .with("routes: [{ path: '/files/{name}', resource: 'file:{name}' }]");
    let proxy = Proxy::start(&config).await;
    let story = zombie_story(&etcd, &nginx, &format!("http://{}", proxy.data())).await;
    assert_eq!(story.status, "412", "{}", story.answer);
    let stale = story.answer.contains("urn:fencepost:problem:stale-token");
    assert!(stale, "{}", story.answer);
    assert!(story.old < story.new, "tokens grow with every grant");
    assert_eq!(proxy.token("file:ledger").await, Some(story.new));
    assert_eq!(content(&nginx), "written by B");

    // Without the proxy its write lands. Otherwise the story shows nothing.
    let story = zombie_story(&etcd, &nginx, &nginx.url()).await;
    assert_eq!(story.status, "204", "{}", story.answer);
    assert_eq!(content(&nginx), "written by A");
}
