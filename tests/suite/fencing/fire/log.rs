//! The events of one history, in one order: every note is taken under one lock, by one process,
//! on its monotonic clock. The checker reads nothing else, so a log is all the evidence there is.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::fault::FaultCase;

/// The intent of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A fenced request; `keyed`: the proxy is to give it an idempotency key.
    Fenced { keyed: bool },
    /// A safe request without a token, which nobody fences.
    Unfenced,
    /// A claim: forwards nothing.
    Claim,
    /// A request that is refused whatever the marks say.
    Wrong,
}

/// A request that a client is about to send.
#[derive(Clone, Debug)]
pub struct Sent {
    pub nonce: String,
    pub resource: String,
    pub token: Option<u64>,
    pub proxy: usize,
    pub errand: Errand,
}

/// The head of an answer has come, and the body too where the proxy speaks.
#[derive(Clone, Debug)]
pub struct Answered {
    pub nonce: String,
    pub status: u16,
    /// The proxy's word.
    pub outcome: Option<String>,
    /// The one that the proxy named.
    pub mark: Option<u64>,
}

/// One thing that happened. Arrivals at the upstream have numbers.
#[derive(Clone, Debug)]
pub enum Event {
    Sent(Sent),
    Answered(Answered),
    /// No answer came, or the client did not stay for it: the nonce, and the reason.
    Left(String),
    /// The upstream has read the first byte of a request.
    Began(usize),
    /// It has read its head.
    Head(usize, Vec<(String, String)>),
    /// The upstream is done with it, in this way: noted before the last bytes of the answer are
    /// written.
    Ended(usize, &'static str),
    /// More of a request's body has come, long after the upstream had given up waiting for it.
    Resumed(usize),
    /// The reader of the marks begins to read them all, past every proxy.
    Look,
    /// The answer to the latest look. A look that fails has none.
    Marks(BTreeMap<String, u64>),
    /// A fault has been done.
    Fault(FaultCase),
    /// After everything: this did not come about within all patience.
    Unrecovered(String),
    /// For people.
    Note(String),
}

/// An event and when it was, since the history began.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub at: Duration,
    pub event: Event,
}

/// The log in the making. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    origin: Instant,
    /// Short sections, never across an await. The time is read within: the order of entries is the
    /// order of their times.
    entries: Arc<Mutex<Vec<LogEntry>>>,
}

impl Log {
    pub fn begin() -> Self {
        Self {
            origin: Instant::now(),
            entries: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LogEntry>> {
        self.entries.lock().expect("nobody panics under this lock")
    }

    pub fn add(&self, event: Event) {
        let mut entries = self.lock();
        let at = self.origin.elapsed();
        entries.push(LogEntry { at, event });
    }

    pub fn note(&self, text: impl Into<String>) {
        self.add(Event::Note(text.into()));
    }

    /// All entries so far.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.lock().clone()
    }
}

/// Writes the rules that were broken, the plan and the log into `target/fire/NAME.log`.
pub fn write_down(name: &str, broken: &str, plan: &impl Debug, log: &[LogEntry]) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fire");
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    let file = dir.join(format!("{name}.log"));
    let lines = log.iter().map(|LogEntry { at, event }| {
        let event = match event {
            Event::Note(text) => text.clone(),
            event => format!("{event:?}"),
        };
        format!("{:9.3} ms  {event}", at.as_secs_f64() * 1e3)
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    let text = format!("{broken}\n{plan:#?}\n\n{lines}\n");
    std::fs::write(&file, text).expect("the target directory is writable");
    file
}
