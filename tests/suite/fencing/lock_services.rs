//! End to end with other people's software: Debian's etcd and Redis hand out the tokens, `etcdctl
//! lock` and curl are the clients, nginx stores the writes. A holder is stopped with SIGSTOP until
//! its lease is gone; another one locks and writes; the first one continues and writes. Each test
//! has a control without the proxy, in which the zombie must win.

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

/// The server that is fenced: an unmodified nginx that takes PUT. The holders write with curl.
async fn storing() -> Option<Nginx> {
    let [nginx, _curl] = programs(["nginx", "curl"])?;
    let nginx = Nginx::start(
        &nginx,
        "dav_methods PUT DELETE; create_full_put_path on;",
        "",
    )
    .await;
    Some(nginx)
}

/// The content that it has stored.
fn content(nginx: &Nginx) -> String {
    let file = nginx.dir.path().join("root/files/ledger");
    std::fs::read_to_string(file).expect("something is stored")
}

pub async fn listens(what: &str, port: u16) {
    eventually(&format!("{what} to listen"), || async {
        tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .ok()
    })
    .await;
}

/// A lock service, and how a holder takes its lock.
trait Locks {
    /// The command of a holder: takes the lock, then runs `critical`, a shell script that finds its
    /// token in `$token`.
    fn holder(&self, critical: &str) -> Command;
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
        Some(Self::start(&etcd, &ctl).await)
    }

    async fn start(etcd: &Path, ctl: &Path) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let (process, port) = start_etcd(Command::new(etcd), dir.path());
        let etcd = Self {
            ctl: ctl.to_owned(),
            port,
            _dir: dir,
            _process: process,
        };
        eventually("etcd to serve", || async {
            let mut probe = etcd.ctl();
            probe
                .args(["endpoint", "health"])
                .output()
                .ok()
                .filter(|output| output.status.success())
        })
        .await;
        etcd
    }

    pub fn ctl(&self) -> Command {
        let mut command = Command::new(&self.ctl);
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &format!("127.0.0.1:{}", self.port)]);
        command
    }
}

impl Locks for Etcd {
    fn holder(&self, critical: &str) -> Command {
        let mut command = self.ctl();
        let script = format!("token=$ETCD_LOCK_REV; {critical}");
        command.args(["lock", "ledger", "--ttl", "2", "--", "sh", "-c", &script]);
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
        Some(Self::start(&server, &cli).await)
    }

    async fn start(server: &Path, cli: &Path) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let port = free_port();
        let process = Process::start(
            Command::new(server)
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--dir",
                ])
                .arg(dir.path()),
        );
        listens("redis", port).await;
        Self {
            cli: cli.to_owned(),
            port,
            _dir: dir,
            _process: process,
        }
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

impl Locks for Redis {
    fn holder(&self, critical: &str) -> Command {
        // The counter beside the lock, in one script, without an expiry of its own.
        const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) \
             then return string.format('%015d', redis.call('INCR', KEYS[2])) end return ''";
        let mut command = Command::new("sh");
        let script = format!(
            "token=; while [ -z \"$token\" ]; do
               token=$('{}' -p {} --raw EVAL \"$TAKE\" 2 lock:ledger fence:ledger $$ 1500)
               [ -n \"$token\" ] || sleep 0.05
             done; {critical}",
            self.cli.display(),
            self.port,
        );
        command.args(["-c", &script]).env("TAKE", TAKE);
        command
    }
}

/// One who takes the lock, waits for the word, and writes its name.
struct Holder {
    dir: PathBuf,
    name: &'static str,
    group: Group,
}

impl Holder {
    fn start(locks: &impl Locks, name: &'static str, dir: &Path, to: &str) -> Self {
        let script = format!(
            "cd '{dir}'; printf %s \"$token\" >{name}.new; mv {name}.new {name}.token
             until [ -e {name}.go ]; do sleep 0.02; done
             curl -s -o {name}.answer -w '%{{http_code}}' -X PUT -H \"X-Fencing-Token: $token\" \
               --data-binary 'written by {name}' '{to}/files/ledger' >{name}.new
             mv {name}.new {name}.status",
            dir = dir.display(),
        );
        let group = Group::start(&mut locks.holder(&script));
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
async fn zombie_story(locks: &impl Locks, nginx: &Nginx, to: &str) -> Story {
    let dir = TempDir::new().expect("a temporary directory");
    let a = Holder::start(locks, "A", dir.path(), to);
    let old = a.token().await;
    a.group.stop().await;
    a.go();
    // The lock is exclusive: that B gets it shows that A's lease is gone.
    let b = Holder::start(locks, "B", dir.path(), to);
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

/// The story with the proxy in front of nginx: the zombie is refused.
async fn assert_fenced(locks: &impl Locks, nginx: &Nginx) {
    let config = Config::to(&nginx.url(), &Store::sqlite())
        .with("routes: [{ path: '/files/{name}', resource: 'file:{name}' }]");
    let proxy = Proxy::start(&config).await;
    let story = zombie_story(locks, nginx, &format!("http://{}", proxy.data())).await;
    assert_eq!(story.status, "412", "{}", story.answer);
    assert!(
        story.answer.contains("urn:fencepost:problem:stale-token"),
        "{}",
        story.answer
    );
    assert!(story.old < story.new, "tokens grow with every grant");
    assert_eq!(proxy.token("file:ledger").await, Some(story.new));
    assert_eq!(content(nginx), "written by B");
}

/// The story without the proxy: the zombie's write lands. Otherwise the test above shows nothing.
async fn assert_corrupted(locks: &impl Locks, nginx: &Nginx) {
    let story = zombie_story(locks, nginx, &nginx.url()).await;
    assert_eq!(story.status, "204", "{}", story.answer);
    assert_eq!(content(nginx), "written by A");
}

#[tokio::test]
async fn a_zombie_of_an_etcd_lock_is_refused() {
    let etcd = or_return!(Etcd::found().await);
    let nginx = or_return!(storing().await);
    assert_fenced(&etcd, &nginx).await;
}

#[tokio::test]
async fn a_zombie_of_an_etcd_lock_corrupts_without_the_proxy() {
    let etcd = or_return!(Etcd::found().await);
    let nginx = or_return!(storing().await);
    assert_corrupted(&etcd, &nginx).await;
}

#[tokio::test]
async fn a_zombie_of_a_redis_lock_is_refused() {
    let redis = or_return!(Redis::found().await);
    let nginx = or_return!(storing().await);
    assert_fenced(&redis, &nginx).await;
}

#[tokio::test]
async fn a_zombie_of_a_redis_lock_corrupts_without_the_proxy() {
    let redis = or_return!(Redis::found().await);
    let nginx = or_return!(storing().await);
    assert_corrupted(&redis, &nginx).await;
}
