//! C5 over many histories: what occurred, counted from their logs, and what has to.

use std::collections::{BTreeMap, BTreeSet};

use super::check::History;
use super::fault::FaultKind::{
    Cut, Deaf, Delay, DieAtSync, Jump, Kill, KillPostgres, LongStop, SlowDisk, Stop, Terminate,
    UpstreamDown,
};
use super::fault::{FaultCase, FaultPoint, Sky};
use super::log::{Errand, Event, LogEntry};
use super::plan::{Plan, Transport};

/// All else than faults that should occur in a set of histories over all grounds: what is counted
/// under each name, with commas between.
const WANTED: [(&str, &str); 12] = [
    ("forward", "answered"),
    (
        "wait",
        "for the same proxy's work, for another proxy's work",
    ),
    (
        "upstream",
        "answered, answered early, a reset, the caller left, the caller left halfway",
    ),
    ("client: dies", "Head, Body, Response"),
    ("client: pauses", "Head, Body, Response"),
    ("client", "leaves before the answer"),
    ("histories", "HTTP/1"),
    ("histories: HTTP/2, streams at once", "1, 2, 100"),
    ("the upstream says goodbye", "Graceful, Abrupt"),
    ("claim", "granted"),
    ("unfenced", "passed"),
    (
        "refusal",
        "stale-token, token-required, malformed-token, ambiguous-request, no-route, \
         method-not-allowed, content-too-large, store-unavailable, older-in-flight, \
         upstream-unreachable, outcome-unknown",
    ),
];

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub BTreeMap<String, usize>);

impl Tally {
    fn add(&mut self, name: impl Into<String>) {
        *self.0.entry(name.into()).or_default() += 1;
    }

    /// Counts one history in.
    pub fn take(&mut self, plan: &Plan, log: &[LogEntry]) {
        let (ground, proxies) = (plan.ground, plan.proxies);
        self.add("histories");
        self.add(format!("histories: {ground:?}, {proxies} proxies"));
        self.add(match plan.transport {
            Transport::Http1 => "histories: HTTP/1".to_owned(),
            Transport::Http2(streams, _) => {
                format!("histories: HTTP/2, streams at once: {streams}")
            }
        });
        let history = History::of(log);
        for entry in log {
            match &entry.event {
                Event::Sent(_) => self.add("requests"),
                Event::Began(_) => self.add("arrivals"),
                Event::Answered(answer) => {
                    let sent = history.sent(&answer.nonce).map(|(_, sent)| sent.errand);
                    self.add(match (answer.outcome.as_deref(), sent) {
                        (Some("claimed"), _) => "claim: granted".to_owned(),
                        (Some(outcome), _) => format!("refusal: {outcome}"),
                        (None, Some(Errand::Unfenced)) => "unfenced: passed".to_owned(),
                        (None, _) => "forward: answered".to_owned(),
                    });
                }
                Event::Left(text) => {
                    let at = text.find("client: ");
                    self.add(at.map_or("client: got no answer", |at| &text[at..]));
                }
                Event::Note(text)
                    if text.starts_with("client: ") || text.starts_with("the upstream says") =>
                {
                    self.add(text);
                }
                Event::Ended(_, how) => self.add(format!("upstream: {how}")),
                Event::Marks(_) => self.add("looks at the marks"),
                Event::Fault(case) => {
                    self.add("faults");
                    case.names().into_iter().for_each(|name| self.add(name));
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
                let older = arrivals.iter().filter(|older| older.token < arrival.token);
                let earlier = older.filter(|older| older.began < arrival.began);
                let at_work = earlier.filter(|older| older.ended.is_some_and(|ended| ended > at));
                let whose = at_work.map(|older| match sent(older.nonce) {
                    Some((_, older)) if older.proxy == request.proxy => "the same",
                    _ => "another",
                });
                for proxy in whose.collect::<BTreeSet<_>>() {
                    self.add(format!("wait: for {proxy} proxy's work"));
                }
            }
        }
    }

    /// The things that should have occurred in a set of histories over all grounds, and did not.
    pub fn missing(&self, without: &[&str]) -> BTreeSet<String> {
        let everywhere = [
            FaultCase::of_the_path(),
            FaultCase::all(&[Kill, LongStop], &FaultPoint::ALL, Sky::Clear),
        ];
        let anywhere = [Stop, DieAtSync, Terminate, Cut, SlowDisk, Deaf, Jump, Delay];
        let anywhere = [&anywhere[..], &[KillPostgres, UpstreamDown]].concat();
        let anywhere = FaultCase::all(&anywhere, &[FaultPoint::AnyTime], Sky::Clear);
        let possible = |case: &FaultCase| case.is_possible(without);
        let everywhere = everywhere.concat().into_iter().filter(possible);
        let mut wanted: BTreeSet<String> = everywhere.flat_map(FaultCase::names).collect();
        let anywhere = anywhere.into_iter().filter(possible);
        wanted.extend(anywhere.map(|case| case.names()[0].clone()));
        for (name, kinds) in WANTED {
            wanted.extend(kinds.split(", ").map(|kind| format!("{name}: {kind}")));
        }
        wanted.retain(|name| !self.0.contains_key(name));
        wanted
    }
}
