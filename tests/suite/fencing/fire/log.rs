//! The events of one history, in one order: every note is taken under one lock, by one process,
//! on its monotonic clock. The checker reads nothing else, so a log is all the evidence there is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client is about to send.
    Sent {
        nonce: String,
        resource: String,
        token: Option<u64>,
        proxy: usize,
        errand: Errand,
    },
    /// The head of an answer has come, and the body too where the proxy speaks. `outcome`: the
    /// proxy's word; `mark`: the one it named.
    Answered {
        nonce: String,
        status: u16,
        outcome: Option<String>,
        mark: Option<u64>,
    },
    /// No answer came, or the client did not stay for it.
    Left { nonce: String, why: String },
    /// The upstream has read the first byte of a request.
    Began { arrival: usize },
    /// It has read its head.
    Head {
        arrival: usize,
        headers: Vec<(String, String)>,
    },
    /// The request takes effect at the upstream.
    Effect { arrival: usize },
    /// The upstream is done with it: noted before the last bytes of the answer are written.
    Ended { arrival: usize, how: &'static str },
    /// Somebody begins to read all marks, past every proxy.
    Look { look: usize },
    /// That look's answer.
    Marks {
        look: usize,
        marks: BTreeMap<String, u64>,
    },
    /// That look failed: the store is down.
    NoMarks { look: usize, why: String },
    /// A fault has been done, at a point.
    Fault {
        kind: String,
        point: &'static str,
        proxy: usize,
        said: String,
    },
    /// More of a request's body has come, long after the upstream had given up waiting for it.
    Resumed { arrival: usize },
    /// It is over.
    Healed { kind: String, proxy: usize },
    /// After everything: a resource took a newer token again, or, within all patience, did not.
    Recovered { resource: String, yes: bool },
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

    pub fn add(&self, event: Event) {
        let mut entries = self.entries.lock().expect("nobody panics under this lock");
        let at = self.origin.elapsed();
        entries.push(LogEntry { at, event });
    }

    pub fn note(&self, text: impl Into<String>) {
        self.add(Event::Note(text.into()));
    }

    /// All entries so far.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.entries
            .lock()
            .expect("nobody panics under this lock")
            .clone()
    }
}

/// The log as text, one line per entry.
pub fn text(entries: &[LogEntry]) -> String {
    let mut text = String::new();
    for LogEntry { at, event } in entries {
        writeln!(text, "{:9.3} ms  {}", at.as_secs_f64() * 1e3, line(event))
            .expect("a String takes all");
    }
    text
}

fn line(event: &Event) -> String {
    match event {
        Event::Sent {
            nonce,
            resource,
            token,
            proxy,
            errand,
        } => format!(
            "client   {nonce} → proxy {proxy}: {resource} token {} {errand:?}",
            shown(*token)
        ),
        Event::Answered {
            nonce,
            status,
            outcome,
            mark,
        } => format!(
            "client   {nonce} ← {status} {} mark {}",
            outcome.as_deref().unwrap_or("(the upstream's)"),
            shown(*mark)
        ),
        Event::Left { nonce, why } => format!("client   {nonce} has no answer: {why}"),
        Event::Began { arrival } => format!("upstream #{arrival} first byte"),
        Event::Head { arrival, headers } => {
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            format!("upstream #{arrival} head [{}]", headers.join(" | "))
        }
        Event::Effect { arrival } => format!("upstream #{arrival} takes effect"),
        Event::Ended { arrival, how } => format!("upstream #{arrival} end: {how}"),
        Event::Resumed { arrival } => format!("upstream #{arrival} more bytes"),
        Event::Look { look } => format!("marks    ?{look}"),
        Event::Marks { look, marks } => format!("marks    ?{look} {marks:?}"),
        Event::NoMarks { look, why } => format!("marks    ?{look} cannot be read: {why}"),
        Event::Fault {
            kind,
            point,
            proxy,
            said,
        } => format!("FAULT    {kind} {point}, proxy {proxy} {said}"),
        Event::Healed { kind, proxy } => format!("HEALED   {kind}, proxy {proxy}"),
        Event::Recovered { resource, yes } => {
            format!("recovery {resource}: {}", if *yes { "yes" } else { "NO" })
        }
        Event::Note(text) => format!("note     {text}"),
    }
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}
