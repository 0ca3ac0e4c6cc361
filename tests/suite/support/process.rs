//! A child process that does not outlive its test, and the signals a test sends it.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process, kill_process_group, setrlimit,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use tokio::net::TcpStream;

use super::wait::eventually;

/// A running program. Killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// While it is locked, no further line of its output is read, and its pipes stay open.
    pub deaf: Arc<tokio::sync::Mutex<()>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Process {
    /// Starts it with its output (both streams) kept as lines.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let lines = Arc::default();
        let deaf = Arc::default();
        let readers = vec![
            keep(child.stdout.take(), &lines, &deaf),
            keep(child.stderr.take(), &lines, &deaf),
        ];
        Self {
            name,
            child,
            lines,
            deaf,
            readers,
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of it that are in memory now.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most that [`Self::memory`] has ever been.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("an own child has a status");
        let (_, size) = status.split_once(field).expect("it has a size");
        let kilobytes = size.split_whitespace().next().map(str::parse::<u64>);
        kilobytes.expect("a size").expect("in kB") << 10
    }

    /// Its output so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("readers do not panic").clone()
    }

    /// All that it has written; waits for the end of its output.
    pub fn output(&mut self) -> String {
        for reader in self.readers.drain(..) {
            reader.join().expect("readers do not panic");
        }
        self.lines().join("\n")
    }

    pub fn signal(&self, signal: Signal) {
        // The child has not been waited for, so the id is still its own.
        kill_process(Pid::from_child(&self.child), signal).expect("an own child takes signals");
    }

    /// SIGSTOP; returns when every thread has stopped. Until the first of them takes the signal,
    /// the others run on. A thread that the kernel holds (`D`) stops before it runs again: a shell,
    /// for one, while its child is stopped between vfork and exec.
    pub async fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.id());
        eventually("every thread to stop", || async {
            let stopped = |task: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with(['T', 'D']))
            };
            let tasks = std::fs::read_dir(&tasks).expect("an own child has tasks");
            tasks.flatten().all(stopped).then_some(())
        })
        .await;
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill9(&mut self) {
        // Fails only if it has been waited for already, and then it is gone.
        let _ = self.child.kill();
        self.gone();
    }

    /// Waits until it listens on this port of the loopback.
    ///
    /// # Panics
    /// If it ends instead.
    pub async fn listens_on(&mut self, port: u16) {
        let what = format!("{} to listen", self.name);
        let connected = || {
            assert_eq!(self.ended(), None, "{what}");
            async move { TcpStream::connect(("127.0.0.1", port)).await.ok() }
        };
        eventually(&what, connected).await;
    }

    /// Waits for a line of its output in which this finds something.
    ///
    /// # Panics
    /// If it ends before.
    pub async fn says<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        eventually(what, || {
            let ended = self.ended();
            let found = self.lines().iter().find_map(|line| find(line));
            let name = &self.name;
            let early = found.is_none() && ended.is_some();
            assert!(!early, "{name} ended before {what}, {ended:?}");
            std::future::ready(found)
        })
        .await
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("an own child can be waited for")
    }

    /// As [`Self::exit`], on the spot: for something that has been told to end.
    pub fn gone(&mut self) {
        // Fails only if it has been waited for already, and then it is gone.
        let _ = self.child.wait();
    }

    /// Waits for it to end by itself.
    pub async fn exit(&mut self) -> ExitStatus {
        let what = format!("{} to exit", self.name);
        eventually(&what, || std::future::ready(self.ended())).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            let lines = self.lines();
            let last = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- the last lines of {} ---\n{last}", self.name);
        }
    }
}

fn keep(
    stream: Option<impl Read + Send + 'static>,
    lines: &Arc<Mutex<Vec<String>>>,
    deaf: &Arc<tokio::sync::Mutex<()>>,
) -> std::thread::JoinHandle<()> {
    let stream = stream.expect("both streams are pipes");
    let (lines, deaf) = (Arc::clone(lines), Arc::clone(deaf));
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            lines.lock().expect("readers do not panic").push(text);
            drop(deaf.blocking_lock());
        }
    })
}

/// A program and all that it starts, which are stopped and continued as one.
pub struct Group {
    pub leader: Process,
}

impl Group {
    /// Starts it as the leader of a process group of its own.
    pub fn start(command: &mut Command) -> Self {
        let leader = Process::start(command.process_group(0));
        Self { leader }
    }

    pub fn signal(&self, signal: Signal) {
        // The leader has not been waited for, so the group's id is still its own.
        kill_process_group(Pid::from_child(&self.leader.child), signal)
            .expect("an own group takes signals");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Raises the limit of this process's descriptors, and returns it: a test needs one for each of its
/// own ends.
pub fn many_descriptors() -> usize {
    let now = getrlimit(Resource::Nofile);
    let current = now.maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current, ..now });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Has this thread, and what it starts from now on, run on one core only.
///
/// # Panics
/// If the kernel does not allow it.
pub fn on_one_core() {
    let mut core = CpuSet::new();
    core.set(sched_getcpu());
    sched_setaffinity(None, &core).expect("fewer cores are always allowed");
}
