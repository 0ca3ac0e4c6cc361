//! C5 over many histories: what occurred, counted from their logs, and what has to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Can;
use super::check::History;
use super::fault::FaultKind::{
    Cut, Deaf, Delay, DieAtSync, Jump, Kill, KillPostgres, LongStop, SlowDisk, Stop, Terminate,
    UpstreamDown,
};
use super::fault::{FaultCase, FaultPoint, Sky};
use super::log::{Errand, Event, LogEntry};
use super::plan::{Plan, Transport};

/// All else than faults that should occur in a set of histories over all grounds.
const WANTED: [&str; 34] = [
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
    "client: dies: Head",
    "client: dies: Body",
    "client: dies: Response",
    "client: leaves before the answer",
    "client: pauses: Head",
    "client: pauses: Body",
    "client: pauses: Response",
    "histories: HTTP/1",
    "histories: HTTP/2, many streams",
    "histories: HTTP/2, streams at once: 1",
    "histories: HTTP/2, streams at once: 2",
    "the upstream says goodbye: Graceful",
    "the upstream says goodbye: Abrupt",
    "refusal: stale-token",
    "refusal: token-required",
    "refusal: malformed-token",
    "refusal: ambiguous-request",
    "refusal: no-route",
    "refusal: method-not-allowed",
    "refusal: content-too-large",
    "refusal: store-unavailable",
    "refusal: older-in-flight",
    "refusal: upstream-unreachable",
    "refusal: outcome-unknown",
];

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub struct Tally(BTreeMap<String, usize>);

impl Tally {
    fn add(&mut self, name: impl Into<String>, count: usize) {
        if count > 0 {
            *self.0.entry(name.into()).or_default() += count;
        }
    }

    /// Counts one history in.
    pub fn take(&mut self, plan: &Plan, log: &[LogEntry]) {
        let (ground, proxies) = (plan.ground, plan.proxies);
        self.add("histories", 1);
        self.add(format!("histories: {ground:?}, {proxies} proxies"), 1);
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
                Event::Sent(_) => self.add("requests", 1),
                Event::Answered(answer) => {
                    let sent = history.sent(&answer.nonce).map(|(_, sent)| sent.errand);
                    let name = match (answer.outcome.as_deref(), sent) {
                        (Some("claimed"), _) => "claim granted".to_owned(),
                        (Some(outcome), _) => format!("refusal: {outcome}"),
                        (None, Some(Errand::Unfenced)) => "passed unfenced".to_owned(),
                        (None, _) => "forward: answered".to_owned(),
                    };
                    self.add(name, 1);
                }
                Event::Left(text) => {
                    let at = text.find("client: ");
                    self.add(at.map_or("client: got no answer", |at| &text[at..]), 1);
                }
                Event::Note(text)
                    if text.starts_with("client: ") || text.starts_with("the upstream says") =>
                {
                    self.add(text, 1);
                }
                Event::Ended(_, how) => self.add(format!("upstream: {how}"), 1),
                Event::Marks(_) => self.add("looks at the marks", 1),
                Event::Fault(case) => {
                    self.add("faults", 1);
                    for name in case.names() {
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
        let sent = |nonce: Option<&str>| history.sent(nonce?);
        for (_, arrivals) in history.by_resource() {
            for arrival in &arrivals {
                let Some((at, request)) = sent(arrival.nonce) else {
                    continue;
                };
                let (mut here, mut there) = (0, 0);
                let older = arrivals.iter().filter(|older| older.token < arrival.token);
                let earlier = older.filter(|older| older.began < arrival.began);
                for older in earlier.filter(|older| older.ended.is_some_and(|ended| ended > at)) {
                    match sent(older.nonce) {
                        Some((_, older)) if older.proxy == request.proxy => here = 1,
                        _ => there = 1,
                    }
                }
                self.add("wait: for the same proxy's work", here);
                self.add("wait: for another proxy's work", there);
            }
        }
    }

    /// The things that should have occurred in a set of histories over all grounds, and did not.
    pub fn missing(&self, can: Can) -> BTreeSet<String> {
        let cases = [
            FaultCase::of_the_path(),
            FaultCase::all(&[Kill, LongStop], &FaultPoint::ALL, Sky::Clear),
        ];
        let cases = cases.concat().into_iter().filter(|case| can.allows(*case));
        let anywhere = [
            Stop,
            DieAtSync,
            KillPostgres,
            Terminate,
            Cut,
            SlowDisk,
            Deaf,
            Jump,
            UpstreamDown,
            Delay,
        ];
        let kinds = FaultCase::all(&anywhere, &[FaultPoint::AnyTime], Sky::Clear).into_iter();
        let kinds = kinds.filter(|case| can.allows(*case));
        let mut wanted: BTreeSet<String> = WANTED.map(str::to_owned).into();
        wanted.extend(cases.flat_map(FaultCase::names));
        wanted.extend(kinds.map(|case| case.names()[0].clone()));
        wanted.retain(|name| !self.0.contains_key(name));
        wanted
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "{count:9}  {name}")?;
        }
        Ok(())
    }
}
