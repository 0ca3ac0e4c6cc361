//! C5 over many histories: what occurred, counted from their logs, and what has to.

use std::collections::BTreeMap;
use std::fmt;

use super::Can;
use super::check::History;
use super::log::{Errand, Event, LogEntry};
use super::plan::{Fault, FaultCase, FaultKind, FaultPoint, Ground, Plan, Sky, Transport};

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    pub fn add(&mut self, name: impl Into<String>, count: usize) {
        if count > 0 {
            *self.0.entry(name.into()).or_default() += count as u64;
        }
    }

    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Counts one history in.
    pub fn take(&mut self, plan: &Plan, log: &[LogEntry]) {
        let ground = match plan.ground {
            Ground::Sqlite => "SQLite".to_owned(),
            Ground::Postgres { proxies, .. } => format!("Postgres, {proxies} proxies"),
        };
        self.add("histories", 1);
        self.add(format!("histories: {ground}"), 1);
        let transport = match plan.transport {
            Transport::Http1 => "HTTP/1".to_owned(),
            Transport::Http2 { streams: 100, .. } => "HTTP/2, many streams".to_owned(),
            Transport::Http2 { streams, .. } => format!("HTTP/2, streams at once: {streams}"),
        };
        self.add(format!("histories: {transport}"), 1);
        let history = History::of(log);
        self.add("arrivals", history.arrivals.len());
        for entry in log {
            match &entry.event {
                Event::Sent { .. } => self.add("requests", 1),
                Event::Answered {
                    outcome: Some(outcome),
                    ..
                } if outcome == "claimed" => self.add("claim granted", 1),
                Event::Answered {
                    outcome: Some(outcome),
                    ..
                } => self.add(format!("refusal: {outcome}"), 1),
                Event::Answered { nonce, .. } => {
                    let errand = history.asks.get(nonce.as_str()).map(|ask| ask.errand);
                    let name = match errand {
                        Some(Errand::Unfenced) => "passed unfenced",
                        _ => "forward: answered",
                    };
                    self.add(name, 1);
                }
                Event::Left { why, .. } if why.starts_with("killed") || why.starts_with("left") => {
                    self.add(format!("client: {why}"), 1);
                }
                Event::Left { .. } => self.add("client: got no answer", 1),
                Event::Note(text) if text.starts_with("pause") => {
                    self.add(format!("client: {text}"), 1);
                }
                Event::Note(text) if text.starts_with("the upstream says") => self.add(text, 1),
                Event::Ended { how, .. } => self.add(format!("upstream: {how}"), 1),
                Event::Effect { .. } => self.add("effects", 1),
                Event::Marks { .. } => self.add("looks at the marks", 1),
                Event::NoMarks { .. } => self.add("looks at the marks: failed", 1),
                Event::Fault { kind, point, .. } => {
                    self.add("faults", 1);
                    for name in names_of(kind, point) {
                        self.add(name, 1);
                    }
                }
                _ => {}
            }
        }
        self.waits(&history);
    }

    /// Requests that went upstream after work with an older token that was at hand when they were
    /// sent.
    fn waits(&mut self, history: &History) {
        for (_, arrivals) in history.by_resource() {
            for arrival in &arrivals {
                let Some(ask) = arrival.nonce.and_then(|nonce| history.asks.get(nonce)) else {
                    continue;
                };
                let waited_for = arrivals.iter().filter(|older| {
                    let ends = older.ended.is_some_and(|ended| ended > ask.at);
                    older.token < arrival.token && older.began < arrival.began && ends
                });
                let (mut here, mut there) = (0, 0);
                for older in waited_for {
                    let sent = older.nonce.and_then(|nonce| history.asks.get(nonce));
                    match sent {
                        Some(sent) if sent.proxy == ask.proxy => here = 1,
                        _ => there = 1,
                    }
                }
                self.add("wait: for the same proxy's work", here);
                self.add("wait: for another proxy's work", there);
            }
        }
    }

    /// The things that should have occurred in a set of histories over all grounds, and did not.
    pub fn missing(&self, can: Can) -> Vec<String> {
        let mut wanted: Vec<String> = [
            "forward: answered",
            "passed unfenced",
            "claim granted",
            "wait: for the same proxy's work",
            "wait: for another proxy's work",
            "upstream: answered",
            "upstream: answered early",
            "upstream: a reset",
            "upstream: the caller left",
            "upstream: the caller left halfway",
            "client: killed in the middle of the head",
            "client: killed in the middle of the body",
            "client: killed in the middle of the response",
            "client: left before the answer",
            "client: pauses in the middle of the head",
            "client: pauses in the middle of the body",
            "client: pauses in the middle of the response",
            "histories: HTTP/1",
            "histories: HTTP/2, many streams",
            "histories: HTTP/2, streams at once: 1",
            "histories: HTTP/2, streams at once: 2",
            "the upstream says goodbye",
            "the upstream says goodbye, and is gone",
        ]
        .map(str::to_owned)
        .into();
        wanted.extend(REFUSALS.map(|refusal| format!("refusal: {refusal}")));
        for kind in FaultKind::ALL {
            let possible = match kind {
                FaultKind::Jump => can.jump,
                FaultKind::DieAtSync => can.trace,
                // Only in weather, which is wanted below.
                FaultKind::Stall => false,
                _ => true,
            };
            if possible {
                wanted.push(format!("fault: {}", kind.name()));
            }
        }
        for case in FaultCase::of_the_path() {
            if can.stall || case.sky == Sky::Clear {
                let point = case.point.name();
                wanted.push(format!("fault and point: {} {point}", case.name()));
            }
        }
        for point in FaultPoint::ALL {
            wanted.push(format!("point: {}", point.name()));
            for kind in [FaultKind::Kill, FaultKind::LongStop] {
                wanted.push(format!("fault and point: {} {}", kind.name(), point.name()));
            }
        }
        wanted.retain(|name| self.get(name) == 0);
        wanted
    }
}

/// The names under which a fault is counted if it finds its point.
pub fn names(fault: &Fault) -> [String; 3] {
    names_of(&fault.case().name(), fault.point.name())
}

fn names_of(kind: &str, point: &str) -> [String; 3] {
    [
        format!("fault: {kind}"),
        format!("point: {point}"),
        format!("fault and point: {kind} {point}"),
    ]
}

const REFUSALS: [&str; 11] = [
    "stale-token",
    "token-required",
    "malformed-token",
    "ambiguous-request",
    "no-route",
    "method-not-allowed",
    "content-too-large",
    "store-unavailable",
    "older-in-flight",
    "upstream-unreachable",
    "outcome-unknown",
];

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "{count:9}  {name}")?;
        }
        Ok(())
    }
}
