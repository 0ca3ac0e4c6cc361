//! A Postgres of the tests' own: a throw-away cluster in a temporary directory, reachable over a
//! Unix socket and loopback TCP, that a test may kill and start again.
//!
//! Nothing here relies on a server that runs on the machine; only on its binaries. Postgres
//! refuses to run as root, so a test run as root hands the cluster to `postgres` or `nobody`.
//! A shell waits on a pipe held by the test process and takes the cluster down when that process
//! is gone, however it went: statics are never dropped, and a killed test run drops nothing.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};
use sqlx::Connection as _;

use super::faulty_disk::FaultyDisk;
use super::or_return;
use super::sql::{shell, sql};
use super::store::{program, quick_dir};
use super::wait::Must;

/// How long a server may take to start or stop; reached only when something is broken.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running Postgres and its directory. Dropped: stopped and removed.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    bin: PathBuf,
    port: u16,
    owner: Option<(u32, u32)>,
    server: Mutex<Option<Child>>,
    /// Takes the cluster down when this process is gone; its stdin is the pipe it waits on.
    reaper: Mutex<Child>,
}

impl Cluster {
    /// The cluster that the tests of this process share. Each takes a database of its own.
    ///
    /// # Panics
    ///
    /// When Postgres is not installed or does not start; says what was missing.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A cluster of one's own, for tests that kill or stop it.
    ///
    /// # Panics
    ///
    /// When Postgres is not installed or does not start; says what was missing.
    pub fn start() -> Self {
        let cluster = Self::bare();
        cluster.init();
        cluster.start_again();
        cluster
    }

    /// As [`Self::start`], with its tables on this disk. The server's log of changes is on another
    /// one.
    pub fn start_on(disk: &FaultyDisk) -> Self {
        let cluster = Self::bare();
        cluster.init();
        cluster.start_in(&disk.of(&cluster.data().join("base")), &[]);
        cluster
    }

    /// A directory, a port and a reaper; no data yet, and no server.
    pub(super) fn bare() -> Self {
        let bin = binaries().expect("Postgres is not installed: apt-get install postgresql");
        let owner = owner();
        let dir = quick_dir().keep();
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).expect("root may chown");
        }
        let reaper = start_reaper(&dir, REAPER);
        Self {
            port: free_port(),
            server: Mutex::new(None),
            reaper: Mutex::new(reaper),
            dir,
            bin,
            owner,
        }
    }

    /// A fresh, empty database; returns its URL (over loopback TCP).
    pub async fn create_database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE {name}"))
            .await;
        self.url(&name)
    }

    /// Runs statements as the superuser, in the database named.
    pub async fn execute(&self, database: &str, statements: &str) {
        let mut admin = shell(&self.url(database)).await;
        sql(&mut admin, statements).await;
        admin.close().must().await;
    }

    /// The URL of a database, over loopback TCP, as the superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The same over the Unix socket.
    pub fn socket_url(&self, database: &str) -> String {
        format!(
            "postgres://postgres@{}:{}/{database}",
            self.dir.display().to_string().replace('/', "%2F"),
            self.port
        )
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills every process of the server with SIGKILL and waits until they are gone, as a power
    /// cut would end them. Data that was not fsynced may still be in the kernel's cache.
    pub fn kill9(&self) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let mut postmaster = or_return!(server.take());
        // Or it forks another one meanwhile, which would live on.
        signal(postmaster.id(), Signal::STOP);
        wait_until("the postmaster has stopped", || {
            stat(postmaster.id()).is_none_or(|(state, _)| matches!(state, 'T' | 'Z'))
        });
        let children = children_of(postmaster.id());
        signal(postmaster.id(), Signal::KILL);
        for child in &children {
            signal(*child, Signal::KILL);
        }
        postmaster
            .wait()
            .expect("the server is a child of this process");
        wait_until("the server's processes are gone", || {
            children.iter().all(|child| !alive(*child))
        });
    }

    /// Freezes the postmaster and every backend (SIGSTOP), so that nothing answers and no
    /// connection breaks.
    pub fn freeze(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Continues a frozen server.
    pub fn thaw(&self) {
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, what: Signal) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(postmaster) = server.as_ref() {
            signal(postmaster.id(), what);
            for child in children_of(postmaster.id()) {
                signal(child, what);
            }
        }
    }

    /// Stops the server at once but in order (`pg_ctl`'s "fast").
    pub fn stop(&self) {
        self.end(Signal::INT);
    }

    fn end(&self, how: Signal) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut postmaster) = server.take() {
            signal(postmaster.id(), how);
            postmaster
                .wait()
                .expect("the server is a child of this process");
        }
    }

    /// Starts the server after [`Self::stop`] or [`Self::kill9`], on the same port, and waits
    /// until it accepts connections.
    ///
    /// # Panics
    ///
    /// With the server's log, when it does not start.
    pub fn start_again(&self) {
        self.start_with(&[]);
    }

    /// The same with settings of the caller's, such as `fsync=off`.
    ///
    /// # Panics
    ///
    /// With the server's log, when it does not start.
    pub fn start_with(&self, settings: &[&str]) {
        self.start_in(&[], settings);
    }

    fn start_in(&self, environment: &[(&str, PathBuf)], settings: &[&str]) {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(server.is_none(), "the server runs already");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .expect("the log can be written");
        let mut command = self.command("postgres");
        command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string()])
            .arg("-k")
            .arg(&self.dir);
        for setting in [
            "listen_addresses=127.0.0.1",
            "max_connections=200",
            // In its directory, and gone with it.
            "dynamic_shared_memory_type=mmap",
            "shared_buffers=32MB",
        ]
        .iter()
        .chain(settings)
        {
            command.args(["-c", setting]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("postgres can be run");
        wait_until("Postgres is ready", || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("Postgres ended with {status}:\n{}", self.log());
            }
            self.says_ready(child.id())
        });
        *server = Some(child);
    }

    /// Everything the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The directory of the socket and the log; the data lies below it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The user and group that the server runs as, where it is not this process's own.
    pub fn owner(&self) -> Option<(u32, u32)> {
        self.owner
    }

    fn locales(&self) -> PathBuf {
        self.dir.join("locales")
    }

    /// Makes a locale for the server to speak in; `false` where the machine lacks what that takes.
    pub(super) fn learn(&self, language: &str) -> bool {
        fs::create_dir_all(self.locales()).expect("the directory is ours");
        let made = Command::new("localedef")
            .args(["-i", language, "-f", "UTF-8"])
            .arg(self.locales().join(format!("{language}.UTF-8")))
            .status();
        // Its messages are the server's own, and some systems go without them.
        let short = language.split('_').next().unwrap_or(language);
        let messages = fs::read_dir(format!("/usr/share/locale/{short}/LC_MESSAGES"));
        let speaks = messages.into_iter().flatten().flatten().any(|file| {
            let name = file.file_name();
            name.to_string_lossy().starts_with("postgres-")
        });
        speaks && made.is_ok_and(|status| status.success())
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The postmaster writes its state to the eighth line of its pid file, as `pg_ctl` reads it.
    fn says_ready(&self, pid: u32) -> bool {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = file.lines();
        lines.next() == Some(&pid.to_string()) && lines.nth(6).map(str::trim_end) == Some("ready")
    }

    /// Fills the data directory: with a copy of an earlier one, since `initdb` takes ten times as
    /// long.
    pub(super) fn init(&self) {
        let built = fs::metadata(self.bin.join("postgres")).and_then(|file| file.modified());
        let built = built.expect("it is installed").duration_since(UNIX_EPOCH);
        let name = format!(
            "postgres-{}-{}",
            built.expect("a date of today").as_nanos(),
            self.owner.map_or(0, |(uid, _)| uid)
        );
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if kept.exists() {
            copy(&kept, &self.data());
            return;
        }
        self.initdb();
        let own = kept.with_extension(format!("{}-{}", std::process::id(), self.port));
        copy(&self.data(), &own);
        // Another test may have been quicker.
        if fs::rename(&own, &kept).is_err() {
            fs::remove_dir_all(&own).expect("it is ours");
        }
    }

    /// Sorts by the rules of a language, so that a query that forgets `COLLATE "C"` shows.
    fn initdb(&self) {
        let output = self
            .command("initdb")
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--no-sync", "--locale=C.UTF-8"])
            .args(["--locale-provider=icu", "--icu-locale=en-US"])
            .arg("-D")
            .arg(self.data())
            .output()
            .expect("initdb can be run");
        assert!(
            output.status.success(),
            "initdb failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// One of the server's programs, run as the server's user.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(&self.dir).env("LC_ALL", "C.UTF-8");
        let locales = self.locales();
        if locales.exists() {
            command.env("LOCPATH", locales);
        }
        if let Some((uid, gid)) = self.owner {
            command.uid(uid).gid(gid);
        }
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.thaw();
        // At once: nothing in there is worth a checkpoint any more. Killed, it would leave its
        // shared memory behind.
        self.end(Signal::QUIT);
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reaper.stdin.take());
        let _ = reaper.wait();
    }
}

/// Copies a directory, with its owners and rights.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    let from = from.display();
    assert!(copied.is_ok_and(|status| status.success()), "{from}");
}

/// The programs of the newest Postgres installed: Debian's places first, then the path.
pub fn binaries() -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let bin = entry.path().join("bin");
            bin.join("initdb").exists().then_some((version, bin))
        })
        .collect();
    found.sort();
    let newest = found.pop().map(|(_, bin)| bin);
    newest.or_else(|| Some(program("initdb")?.parent()?.to_owned()))
}

/// The user that the server runs as, when the tests run as root.
pub(super) fn owner() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
    let find = |name: &str| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        })
    };
    Some(
        find("postgres")
            .or_else(|| find("nobody"))
            .expect("there is a user postgres or nobody"),
    )
}

/// Takes a cluster down. A pid is only believed while the process still stands in its data
/// directory.
const REAPER: &str = r#"
    pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
    if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$1/data" ]; then
        kill -CONT "$pid"; kill -QUIT "$pid"
        for i in $(seq 100); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
    fi
"#;

/// Runs this script over the directory once its stdin is closed, and removes the directory.
pub(super) fn start_reaper(dir: &Path, script: &str) -> Child {
    let script = format!(r#"cat >/dev/null; {script} rm -rf "$1""#);
    Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(dir)
        .current_dir("/")
        // The interrupt that a terminal sends to the whole group would end it too early.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh can be run")
}

/// A port that was free a moment ago, and that this process hands out once. It is none of those
/// that the system gives to connections (`ip_local_port_range`), which may take one at any moment.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    (0..20_000)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000 + 12_000)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| can_be_bound(*port))
        .expect("loopback has a free port")
}

/// Looks without listening. A child that is being started holds a copy of each socket until it
/// executes its program: one that listens would keep the port from its new owner.
fn can_be_bound(port: u16) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket can be made");
    socket.set_reuse_address(true).expect("it can be set");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    socket.bind(&address.into()).is_ok()
}

pub(super) fn signal(pid: u32, what: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // One that is gone needs no signal.
    let _ = kill_process(pid.expect("a pid is positive"), what);
}

pub(super) fn children_of(parent: u32) -> Vec<u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent))
        .collect()
}

pub(super) fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// State and parent, from `/proc/<pid>/stat`; the name in brackets may hold anything.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
