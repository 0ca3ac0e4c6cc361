//! A Postgres of the tests' own: a throw-away cluster in a temporary directory, reachable over a
//! Unix socket and loopback TCP, that a test may kill and start again.
//!
//! Nothing here relies on a server that runs on the machine; only on its binaries. Postgres
//! refuses to run as root, so a test run as root hands the cluster to `nobody`.
//! A shell waits on a pipe held by the test process and takes the cluster down when that process
//! is gone, however it went: statics are never dropped, and a killed test run drops nothing.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection as _;
use tokio::net::TcpSocket;

use super::or_return;
use super::process::Process;
use super::small_disk::SmallDisk;
use super::sql::{shell, sql};
use super::store::{program, quick_dir};
use super::wait::Must;

/// How long a server may take to start or stop; reached only when something is broken.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running Postgres and its directory. Dropped: stopped and removed.
pub struct Cluster {
    dir: PathBuf,
    bin: PathBuf,
    port: u16,
    server: Mutex<Option<Process>>,
    /// Takes the cluster down when this process is gone; its stdin is the pipe it waits on.
    reaper: Child,
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
        cluster.start_with(&[]);
        cluster
    }

    /// As [`Self::start`], with its tables on a disk of their own, which is returned too. The
    /// server's log of changes is on another one.
    pub fn start_on_small_disk() -> Option<(SmallDisk, Self)> {
        let cluster = Self::bare();
        cluster.init();
        let (tables, disk) = (cluster.data().join("base"), cluster.dir.join("disk"));
        fs::create_dir(&disk).expect("the directory is ours");
        let small = SmallDisk::over(&disk)?;
        copy(&tables.join("."), &disk);
        fs::remove_dir_all(&tables).expect("it is ours");
        std::os::unix::fs::symlink(&disk, &tables).expect("it is ours");
        cluster.start_with(&[]);
        Some((small, cluster))
    }

    /// A directory, a port and a reaper; no data yet, and no server.
    pub(super) fn bare() -> Self {
        let bin = binaries().expect("Postgres is not installed: apt-get install postgresql");
        let dir = quick_dir().keep();
        if let Some((uid, gid)) = owner() {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).expect("root may chown");
        }
        Self {
            port: free_port(),
            server: Mutex::new(None),
            reaper: start_reaper(&dir, REAPER),
            dir,
            bin,
        }
    }

    fn server(&self) -> MutexGuard<'_, Option<Process>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fresh, empty database; returns its URL (over loopback TCP).
    pub async fn create_database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {name}");
        self.execute("postgres", &create).await;
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
        let dir = self.dir.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{dir}:{}/{database}", self.port)
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills every process of the server with SIGKILL and waits until they are gone, as a power
    /// cut would end them. Data that was not fsynced may still be in the kernel's cache.
    pub fn kill9(&self) {
        let mut postmaster = or_return!(self.server().take());
        // Or it forks another one meanwhile, which would live on.
        postmaster.signal(Signal::STOP);
        wait_until("the postmaster has stopped", || {
            stat(postmaster.id()).is_none_or(|(state, _)| matches!(state, 'T' | 'Z'))
        });
        let children = children_of(postmaster.id());
        postmaster.signal(Signal::KILL);
        for child in &children {
            signal(*child, Signal::KILL);
        }
        postmaster.gone();
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
        if let Some(postmaster) = &*self.server() {
            postmaster.signal(what);
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
        if let Some(mut postmaster) = self.server().take() {
            postmaster.signal(how);
            postmaster.gone();
        }
    }

    /// Starts the server, on the same port as before, with these settings beside its own, such as
    /// `fsync=off`, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// With the server's log, when it does not start.
    pub fn start_with(&self, settings: &[&str]) {
        let mut server = self.server();
        assert!(server.is_none(), "the server runs already");
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.dir);
        command.args(["-p", &self.port.to_string()]);
        let own = [
            "listen_addresses=127.0.0.1",
            "max_connections=200",
            // In its directory, and gone with it.
            "dynamic_shared_memory_type=mmap",
            "shared_buffers=32MB",
        ];
        for setting in own.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        let mut postmaster = Process::start(&mut command);
        wait_until("Postgres is ready", || {
            assert_eq!(postmaster.ended(), None, "Postgres ended");
            self.says_ready(postmaster.id())
        });
        *server = Some(postmaster);
    }

    /// Everything the server has logged since its latest start.
    pub fn log(&self) -> String {
        let server = self.server();
        let server = server.as_ref().expect("it has been started");
        server.lines().join("\n")
    }

    /// The directory of the socket; the data lies below it.
    pub fn dir(&self) -> &Path {
        &self.dir
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
        let built = built.expect("a date of today").as_nanos();
        let uid = owner().map_or(0, |(uid, _)| uid);
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("postgres-{built}-{uid}"));
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
        let mut command = self.command("initdb");
        command
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8"])
            .args(["--no-sync", "--locale=C.UTF-8"])
            .args(["--locale-provider=icu", "--icu-locale=en-US", "-D"]);
        let output = command.arg(self.data()).output();
        let output = output.expect("initdb can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb failed: {said}");
    }

    /// One of the server's programs, or any other, run as the server's user.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(&self.dir).env("LC_ALL", "C.UTF-8");
        let locales = self.locales();
        if locales.exists() {
            command.env("LOCPATH", locales);
        }
        if let Some((uid, gid)) = owner() {
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
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
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
    let found = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let found = found.flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let bin = entry.path().join("bin");
        bin.join("initdb").exists().then_some((version, bin))
    });
    let newest = found.max().map(|(_, bin)| bin);
    newest.or_else(|| Some(program("initdb")?.parent()?.to_owned()))
}

/// The user that the server runs as, when the tests run as root: `nobody`.
pub fn owner() -> Option<(u32, u32)> {
    rustix::process::geteuid()
        .is_root()
        .then_some((65534, 65534))
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
    let socket = TcpSocket::new_v4().expect("a socket can be made");
    socket.set_reuseaddr(true).expect("it can be set");
    socket.bind(([127, 0, 0, 1], port).into()).is_ok()
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
