//! The checker: a pure function over a recorded log. It knows nothing of plans, proxies or stores;
//! what it believes of the upstream is what the upstream noted itself.
//!
//! - C1: a reader of the marks after the first byte of a request has arrived finds its token or a
//!   newer one; after a crash too.
//! - C2: per resource, the handling of different tokens never overlaps, and goes in the tokens'
//!   order. After a granted claim nothing older is ever in progress again.
//! - C3: marks never fall, neither those read nor those told, and none is a token that nobody
//!   presented.
//! - C4: nothing arrives of a request that was answered "not forwarded", and nothing is answered in
//!   the upstream's name that it never saw.
//! - C5 (of one history): in the end every resource takes a newer token again. (What must have
//!   occurred over all histories: `tally`.)
//! - C6: each arrival is one that a client sent and the proxy made ready: its nonce once (that of a
//!   read that is not fenced, twice at most), token and resource as they are and once, the proxy's
//!   own headers, none of the client's forgeries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use super::log::{Errand, Event, LogEntry};

/// The header by which a request is known from client to upstream.
pub const NONCE: &str = "X-Nonce";
/// The value that a client forges in the proxy's own fields.
pub const FORGED: &str = "forged";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    C1,
    C2,
    C3,
    C4,
    C5,
    C6,
}

/// A rule that was broken, in words.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub said: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.said)
    }
}

/// One request at the upstream; places are indices into the log.
#[derive(Debug)]
pub struct JudgedArrival<'a> {
    pub id: usize,
    pub began: usize,
    pub ended: Option<usize>,
    pub nonce: Option<&'a str>,
    pub token: Option<u64>,
    pub resource: Option<&'a str>,
    pub headers: &'a [(String, String)],
}

/// A request that a client sent.
#[derive(Debug)]
pub struct SentRequest<'a> {
    pub at: usize,
    pub resource: &'a str,
    pub token: Option<u64>,
    pub proxy: usize,
    pub errand: Errand,
}

/// A log, sorted by what it is about.
pub struct History<'a> {
    pub log: &'a [LogEntry],
    pub arrivals: Vec<JudgedArrival<'a>>,
    /// Parts of requests that arrived after the upstream was done with them: handled as new from
    /// there.
    resumed: Vec<JudgedArrival<'a>>,
    pub asks: HashMap<&'a str, SentRequest<'a>>,
}

impl<'a> History<'a> {
    pub fn of(log: &'a [LogEntry]) -> Self {
        let mut arrivals: BTreeMap<usize, JudgedArrival<'a>> = BTreeMap::new();
        let mut asks = HashMap::new();
        let mut resumed: Vec<JudgedArrival<'a>> = Vec::new();
        for (at, entry) in log.iter().enumerate() {
            match &entry.event {
                Event::Began { arrival } => {
                    let new = JudgedArrival {
                        id: *arrival,
                        began: at,
                        ended: None,
                        nonce: None,
                        token: None,
                        resource: None,
                        headers: &[],
                    };
                    arrivals.insert(*arrival, new);
                }
                Event::Head { arrival, headers } => {
                    if let Some(arrival) = arrivals.get_mut(arrival) {
                        let first = |name| values(headers, name).next();
                        arrival.headers = headers;
                        arrival.nonce = first(NONCE);
                        arrival.token =
                            first("x-fencing-token").and_then(|token| token.parse().ok());
                        arrival.resource = first("x-fencing-resource");
                    }
                }
                Event::Ended { arrival, .. } => {
                    let again = resumed.iter_mut().rev().find(|again| again.id == *arrival);
                    if let Some(arrival) = again.or_else(|| arrivals.get_mut(arrival)) {
                        arrival.ended = Some(at);
                    }
                }
                Event::Resumed { arrival } => {
                    if let Some(arrival) = arrivals.get(arrival) {
                        let (began, ended) = (at, None);
                        resumed.push(JudgedArrival {
                            began,
                            ended,
                            ..*arrival
                        });
                    }
                }
                Event::Sent {
                    nonce,
                    resource,
                    token,
                    proxy,
                    errand,
                } => {
                    let ask = SentRequest {
                        at,
                        resource,
                        token: *token,
                        proxy: *proxy,
                        errand: *errand,
                    };
                    asks.insert(nonce.as_str(), ask);
                }
                _ => {}
            }
        }
        Self {
            log,
            arrivals: arrivals.into_values().collect(),
            resumed,
            asks,
        }
    }

    fn when(&self, at: usize) -> Duration {
        self.log[at].at
    }

    /// For each resource its fenced arrivals, and what came of them later.
    pub fn by_resource(&self) -> BTreeMap<&'a str, Vec<&JudgedArrival<'a>>> {
        let mut sorted: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for arrival in self.arrivals.iter().chain(&self.resumed) {
            if let (Some(resource), Some(_)) = (arrival.resource, arrival.token) {
                sorted.entry(resource).or_default().push(arrival);
            }
        }
        sorted
    }
}

fn values<'a>(headers: &'a [(String, String)], name: &str) -> impl Iterator<Item = &'a str> {
    headers
        .iter()
        .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// Every rule that the log breaks, in the rules' order.
pub fn check(log: &[LogEntry]) -> Vec<Violation> {
    let history = History::of(log);
    let mut found = Vec::new();
    marks(&history, &mut found);
    order(&history, &mut found);
    claims(&history, &mut found);
    answers(&history, &mut found);
    recovery(&history, &mut found);
    arrivals(&history, &mut found);
    found.sort_by_key(|violation| violation.rule);
    found
}

fn blame(found: &mut Vec<Violation>, rule: Rule, said: String) {
    found.push(Violation { rule, said });
}

/// The least that a resource's mark can be, and the rule that says so.
#[derive(Clone, Default)]
struct Floors {
    /// By the first bytes at the upstream.
    sent: BTreeMap<String, u64>,
    /// By what was read or told before.
    known: BTreeMap<String, u64>,
}

fn raise(floor: &mut BTreeMap<String, u64>, resource: &str, to: u64) {
    let known = floor.entry(resource.to_owned()).or_insert(to);
    *known = to.max(*known);
}

/// C1 and C3: one pass over the log. A look is bound by what had happened before it began.
fn marks(history: &History, found: &mut Vec<Violation>) {
    let begun: HashMap<usize, &JudgedArrival> =
        history.arrivals.iter().map(|a| (a.began, a)).collect();
    let mut floors = Floors::default();
    let mut presented: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut looks: HashMap<usize, Floors> = HashMap::new();
    // The latest first byte that a successful look has followed.
    let mut looked_since = 0;
    let mut began_at: HashMap<usize, usize> = HashMap::new();
    for (at, entry) in history.log.iter().enumerate() {
        match &entry.event {
            Event::Began { .. } => {
                let arrival = begun[&at];
                if let (Some(resource), Some(token)) = (arrival.resource, arrival.token) {
                    raise(&mut floors.sent, resource, token);
                }
            }
            Event::Sent {
                resource,
                token: Some(token),
                ..
            } => {
                presented.entry(resource).or_default().insert(*token);
            }
            Event::Answered {
                nonce,
                mark: Some(mark),
                ..
            } => {
                if let Some(ask) = history.asks.get(nonce.as_str()) {
                    from_somebody(&presented, ask.resource, *mark, entry.at, found);
                    raise(&mut floors.known, ask.resource, *mark);
                }
            }
            Event::Look { look } => {
                looks.insert(*look, floors.clone());
                began_at.insert(*look, at);
            }
            Event::Marks { look, marks } => {
                let Floors { sent, known } = looks.remove(look).unwrap_or_default();
                looked_since = looked_since.max(began_at.get(look).copied().unwrap_or(0));
                compare(Rule::C1, &sent, marks, entry.at, found);
                compare(Rule::C3, &known, marks, entry.at, found);
                for (resource, mark) in marks {
                    from_somebody(&presented, resource, *mark, entry.at, found);
                    raise(&mut floors.known, resource, *mark);
                }
            }
            _ => {}
        }
    }
    let unseen = |a: &&JudgedArrival| a.token.is_some() && a.began > looked_since;
    if let Some(arrival) = history.arrivals.iter().find(unseen) {
        let said = format!(
            "nobody could read the marks after the first byte of #{}, so nothing is known of it",
            arrival.id
        );
        blame(found, Rule::C1, said);
    }
}

fn compare(
    rule: Rule,
    floor: &BTreeMap<String, u64>,
    marks: &BTreeMap<String, u64>,
    at: Duration,
    found: &mut Vec<Violation>,
) {
    for (resource, least) in floor {
        let mark = marks.get(resource);
        if mark < Some(least) {
            let why = if rule == Rule::C1 {
                "has arrived"
            } else {
                "was the mark before"
            };
            let said =
                format!("{resource}: the mark read at {at:?} is {mark:?}, and {least} {why}");
            blame(found, rule, said);
        }
    }
}

fn from_somebody(
    presented: &BTreeMap<&str, BTreeSet<u64>>,
    resource: &str,
    mark: u64,
    at: Duration,
    found: &mut Vec<Violation>,
) {
    let known = presented
        .get(resource)
        .is_some_and(|tokens| tokens.contains(&mark));
    if !known {
        let said = format!("{resource}: {mark} is the mark at {at:?}, and nobody has presented it");
        blame(found, Rule::C3, said);
    }
}

/// C2.
fn order(history: &History, found: &mut Vec<Violation>) {
    for (resource, arrivals) in history.by_resource() {
        for newer in &arrivals {
            for older in arrivals.iter().filter(|older| older.token < newer.token) {
                if older.ended.is_some_and(|ended| ended < newer.began) {
                    continue;
                }
                let until = older.ended.map_or_else(
                    || "and never ended".to_owned(),
                    |ended| format!("to {:?}", history.when(ended)),
                );
                let said = format!(
                    "{resource}: token {} (#{}) began at {:?} while {} (#{}) was yet to be done with: from {:?} {until}",
                    newer.token.unwrap_or_default(),
                    newer.id,
                    history.when(newer.began),
                    older.token.unwrap_or_default(),
                    older.id,
                    history.when(older.began),
                );
                blame(found, Rule::C2, said);
            }
        }
    }
}

/// C2, of claims.
fn claims(history: &History, found: &mut Vec<Violation>) {
    let by_resource = history.by_resource();
    for (at, entry) in history.log.iter().enumerate() {
        let Event::Answered {
            nonce, status: 204, ..
        } = &entry.event
        else {
            continue;
        };
        let Some(ask) = history
            .asks
            .get(nonce.as_str())
            .filter(|ask| ask.errand == Errand::Claim)
        else {
            continue;
        };
        let older = by_resource.get(ask.resource).into_iter().flatten();
        for older in older.filter(|older| older.token < ask.token) {
            if older.ended.is_none_or(|ended| ended > at) {
                let said = format!(
                    "{}: the claim {nonce} of {} was granted at {:?}, and {} (#{}) was at work after it",
                    ask.resource,
                    ask.token.unwrap_or_default(),
                    entry.at,
                    older.token.unwrap_or_default(),
                    older.id,
                );
                blame(found, Rule::C2, said);
            }
        }
    }
}

/// C4.
fn answers(history: &History, found: &mut Vec<Violation>) {
    let arrived: HashMap<&str, &JudgedArrival> = history
        .arrivals
        .iter()
        .filter_map(|arrival| Some((arrival.nonce?, arrival)))
        .collect();
    for entry in history.log {
        let Event::Answered {
            nonce,
            status,
            outcome,
            ..
        } = &entry.event
        else {
            continue;
        };
        let arrival = arrived.get(nonce.as_str());
        let claim = history
            .asks
            .get(nonce.as_str())
            .is_some_and(|ask| ask.errand == Errand::Claim);
        let forwarded = match outcome.as_deref() {
            Some("outcome-unknown") => continue,
            Some(_) => false,
            None => !claim,
        };
        if let Some(arrival) = arrival.filter(|_| !forwarded) {
            let said = format!(
                "{nonce} was answered {status} {} at {:?}, which says that it was not forwarded, and it arrived as #{}",
                outcome.as_deref().unwrap_or("(claimed)"),
                entry.at,
                arrival.id,
            );
            blame(found, Rule::C4, said);
        }
        if forwarded && arrival.is_none() {
            let said = format!(
                "{nonce} was answered {status} in the upstream's name at {:?}, and never arrived there",
                entry.at
            );
            blame(found, Rule::C4, said);
        }
    }
}

/// C5, of one history.
fn recovery(history: &History, found: &mut Vec<Violation>) {
    for entry in history.log {
        if let Event::Recovered {
            resource,
            yes: false,
        } = &entry.event
        {
            let said = format!("{resource} takes no newer token, with all faults over");
            blame(found, Rule::C5, said);
        }
    }
}

/// C6.
fn arrivals(history: &History, found: &mut Vec<Violation>) {
    let mut seen: HashMap<&str, Vec<usize>> = HashMap::new();
    for arrival in &history.arrivals {
        // Without a head there was nothing to work on.
        if arrival.headers.is_empty() {
            continue;
        }
        if let Some(wrong) = dress(history, arrival) {
            let said = format!("#{} {wrong}", arrival.id);
            blame(found, Rule::C6, said);
        }
        let Some(nonce) = arrival.nonce else { continue };
        let ask = history.asks.get(nonce);
        let read = ask.is_some_and(|ask| ask.errand == Errand::Unfenced);
        let before = seen.entry(nonce).or_default();
        if before.len() > usize::from(read) {
            let said = format!("{nonce} arrived as #{} after {before:?}", arrival.id);
            blame(found, Rule::C6, said);
        }
        before.push(arrival.id);
    }
}

/// Checks an arrival's headers.
fn dress(history: &History, arrival: &JudgedArrival) -> Option<String> {
    let all = |name| values(arrival.headers, name).collect::<Vec<_>>();
    let [nonce] = all(NONCE)[..] else {
        return Some("carries no client's nonce".to_owned());
    };
    let Some(ask) = history.asks.get(nonce) else {
        return Some(format!("carries {nonce}, which nobody sent"));
    };
    if ask.at > arrival.began {
        return Some(format!("carries {nonce}, which was sent later"));
    }
    let (token, resource) = (ask.token.map(|t| t.to_string()), ask.resource);
    let fenced = match ask.errand {
        Errand::Fenced { .. } => true,
        Errand::Unfenced => false,
        Errand::Claim => return Some(format!("is {nonce}, a claim")),
        Errand::Wrong => return Some(format!("is {nonce}, which no rule lets through")),
    };
    let want: &[&str] = &[token.as_deref().unwrap_or_default()];
    for (name, want) in [
        ("x-fencing-token", want),
        ("x-fencing-resource", &[resource]),
    ] {
        let want = if fenced { want } else { &[] };
        if all(name) != want {
            return Some(format!("has {name} {:?} instead of {want:?}", all(name)));
        }
    }
    for name in ["via", "x-forwarded-for"] {
        if all(name).len() != 1 {
            return Some(format!("has {name} {:?}, not once", all(name)));
        }
    }
    let keys = all("idempotency-key").len();
    if ask.errand == (Errand::Fenced { keyed: true }) && keys != 1 {
        return Some(format!("has {keys} idempotency keys"));
    }
    let forged = arrival.headers.iter().find(|(name, value)| {
        name.to_ascii_lowercase().starts_with("x-fencing") && value.contains(FORGED)
    });
    forged.map(|(name, value)| format!("has the client's own {name}: {value}"))
}
