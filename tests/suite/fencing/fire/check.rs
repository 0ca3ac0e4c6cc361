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

use super::log::{Errand, Event, LogEntry, Sent};

/// The header by which a request is known from client to upstream.
pub const NONCE: &str = "X-Nonce";
/// The value that a client forges in the proxy's own fields.
pub const FORGED: &str = "forged";

/// One request at the upstream; places are indices into the log.
#[derive(Clone, Debug, Default)]
pub struct Arrival<'a> {
    pub id: usize,
    pub began: usize,
    pub ended: Option<usize>,
    pub nonce: Option<&'a str>,
    pub token: Option<u64>,
    resource: Option<&'a str>,
    headers: &'a [(String, String)],
}

impl<'a> Arrival<'a> {
    /// Every value of a header.
    fn all(&self, name: &str) -> Vec<&'a str> {
        let lines = self.headers.iter();
        let of_name = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.as_str()).collect()
    }
}

/// A log, sorted by what it is about.
pub struct History<'a> {
    log: &'a [LogEntry],
    pub arrivals: Vec<Arrival<'a>>,
    /// Parts of requests that arrived after the upstream was done with them: handled as new from
    /// there.
    resumed: Vec<Arrival<'a>>,
    /// By nonce, with the place in the log.
    sent: HashMap<&'a str, (usize, &'a Sent)>,
}

impl<'a> History<'a> {
    pub fn of(log: &'a [LogEntry]) -> Self {
        let mut arrivals: BTreeMap<usize, Arrival<'a>> = BTreeMap::new();
        let mut resumed: Vec<Arrival<'a>> = Vec::new();
        let mut sent = HashMap::new();
        for (at, entry) in log.iter().enumerate() {
            match &entry.event {
                Event::Began(id) => {
                    let arrival = arrivals.entry(*id).or_default();
                    (arrival.id, arrival.began) = (*id, at);
                }
                Event::Head(id, headers) => {
                    let arrival = arrivals.entry(*id).or_default();
                    arrival.headers = headers;
                    let first = |name| arrival.all(name).first().copied();
                    let token = first("x-fencing-token");
                    let (nonce, resource) = (first(NONCE), first("x-fencing-resource"));
                    (arrival.nonce, arrival.resource) = (nonce, resource);
                    arrival.token = token.and_then(|token| token.parse().ok());
                }
                Event::Ended(id, _) => {
                    let again = resumed.iter_mut().rev().find(|again| again.id == *id);
                    let arrival = again.or_else(|| arrivals.get_mut(id));
                    arrival.expect("it began").ended = Some(at);
                }
                Event::Resumed(id) => {
                    let mut again = arrivals[id].clone();
                    (again.began, again.ended) = (at, None);
                    resumed.push(again);
                }
                Event::Sent(request) => {
                    sent.insert(request.nonce.as_str(), (at, request));
                }
                _ => {}
            }
        }
        Self {
            log,
            arrivals: arrivals.into_values().collect(),
            resumed,
            sent,
        }
    }

    /// The request with this nonce, and where in the log it was sent.
    pub fn sent(&self, nonce: &str) -> Option<(usize, &'a Sent)> {
        self.sent.get(nonce).copied()
    }

    /// For each resource its fenced arrivals, and what came of them later.
    pub fn by_resource(&self) -> BTreeMap<&'a str, Vec<&Arrival<'a>>> {
        let mut sorted: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for arrival in self.arrivals.iter().chain(&self.resumed) {
            if let (Some(resource), Some(_)) = (arrival.resource, arrival.token) {
                sorted.entry(resource).or_default().push(arrival);
            }
        }
        sorted
    }

    /// An arrival with a token, in words.
    fn told(&self, arrival: &Arrival) -> String {
        let token = arrival.token.unwrap_or_default();
        let when = |at: usize| self.log[at].at;
        let (began, ended) = (when(arrival.began), arrival.ended.map(when));
        let ended = ended.map_or("and never ended".to_owned(), |at| format!("to {at:?}"));
        format!("token {token} (#{}, from {began:?} {ended})", arrival.id)
    }
}

/// Every rule that the log breaks, in the rules' order: its name, and how, in words.
pub fn check(log: &[LogEntry]) -> Vec<String> {
    let history = History::of(log);
    let (c1, c3) = marks(&history);
    let found = [
        ("C1", c1),
        ("C2", order(&history)),
        ("C3", c3),
        ("C4", answers(&history)),
        ("C5", recovery(&history)),
        ("C6", arrivals(&history)),
    ];
    let told = |(rule, said): (_, Vec<String>)| {
        let all = said.into_iter();
        all.map(move |said| format!("{rule}: {said}"))
    };
    found.into_iter().flat_map(told).collect()
}

/// The first eight.
pub fn first_of(broken: &[String]) -> String {
    let more = broken.len().saturating_sub(8);
    let more = (more > 0).then(|| format!("and {more} more"));
    let lines = broken.iter().take(8).cloned().chain(more);
    lines.collect::<Vec<_>>().join("\n  ")
}

/// The least that each resource's mark can be.
pub type Floor<'a> = BTreeMap<&'a str, u64>;

pub fn raise<'a>(floor: &mut Floor<'a>, resource: &'a str, to: u64) {
    let known = floor.entry(resource).or_insert(to);
    *known = to.max(*known);
}

/// The marks that are below the floor, and the reason for it.
pub fn below(floor: &Floor, marks: &BTreeMap<String, u64>, why: &str) -> Vec<String> {
    let lower = floor
        .iter()
        .filter(|(name, least)| marks.get(**name) < Some(*least));
    let told = |(name, least): (&&str, _)| {
        let mark = marks.get(*name);
        format!("{name}: the mark read is {mark:?}, and {least} {why}")
    };
    lower.map(told).collect()
}

/// C1 and C3: one pass over the log. A look is bound by what had happened before it began.
fn marks(history: &History) -> (Vec<String>, Vec<String>) {
    let begun: HashMap<usize, &Arrival> = history.arrivals.iter().map(|a| (a.began, a)).collect();
    // By the first bytes at the upstream, and by what was read or told before.
    let (mut sent, mut known) = (Floor::new(), Floor::new());
    let mut presented: BTreeSet<(&str, u64)> = BTreeSet::new();
    // Both floors and the place of the latest look, and the place of the latest that succeeded.
    let (mut look, mut looked) = ((Floor::new(), Floor::new(), 0), 0);
    let (mut c1, mut c3) = (Vec::new(), Vec::new());
    for (at, entry) in history.log.iter().enumerate() {
        let mut told: Vec<(&str, u64)> = Vec::new();
        match &entry.event {
            Event::Began(_) => {
                let arrival = begun[&at];
                if let (Some(resource), Some(token)) = (arrival.resource, arrival.token) {
                    raise(&mut sent, resource, token);
                }
            }
            Event::Sent(request) => {
                presented.extend(request.token.map(|token| (&*request.resource, token)));
            }
            Event::Answered(answer) => {
                let request = history.sent(&answer.nonce).map(|(_, request)| request);
                told.extend(request.map(|request| &*request.resource).zip(answer.mark));
            }
            Event::Look => look = (sent.clone(), known.clone(), at),
            Event::Marks(marks) => {
                looked = look.2;
                c1.extend(below(&look.0, marks, "has arrived"));
                c3.extend(below(&look.1, marks, "was the mark before"));
                told.extend(marks.iter().map(|(resource, mark)| (&**resource, *mark)));
            }
            _ => {}
        }
        for (resource, mark) in told {
            if !presented.contains(&(resource, mark)) {
                let at = entry.at;
                c3.push(format!(
                    "{resource}: {mark} is the mark at {at:?}, and nobody has presented it"
                ));
            }
            raise(&mut known, resource, mark);
        }
    }
    let unseen = |a: &&Arrival| a.token.is_some() && a.began > looked;
    c1.extend(history.arrivals.iter().find(unseen).map(|arrival| {
        let id = arrival.id;
        format!("nobody could read the marks after the first byte of #{id}: nothing is known of it")
    }));
    (c1, c3)
}

/// C2: what is older is over when a newer token arrives, and when a claim of one is granted.
fn order(history: &History) -> Vec<String> {
    let by_resource = history.by_resource();
    let arrivals = by_resource.iter().flat_map(|(resource, all)| {
        let newer = |newer: &&Arrival| (*resource, newer.token, newer.began, history.told(newer));
        all.iter().map(newer).collect::<Vec<_>>()
    });
    let claims = history.log.iter().enumerate().filter_map(|(at, entry)| {
        let (status, nonce) = match &entry.event {
            Event::Answered(answer) => (answer.status, &answer.nonce),
            _ => return None,
        };
        let (_, claim) = history
            .sent(nonce)
            .filter(|(_, sent)| sent.errand == Errand::Claim)?;
        let told = || format!("{claim:?}, granted at {:?},", entry.at);
        (status == 204).then(|| (&*claim.resource, claim.token, at, told()))
    });
    let mut found = Vec::new();
    for (resource, token, at, newer) in arrivals.chain(claims) {
        let all = by_resource.get(resource).into_iter().flatten();
        let older = all.filter(|older| older.token < token);
        let overlaps = older.filter(|older| older.ended.is_none_or(|ended| ended >= at));
        found.extend(overlaps.map(|older| {
            let older = history.told(older);
            format!("{resource}: {newer} began while this was yet to be done with: {older}")
        }));
    }
    found
}

/// C4.
fn answers(history: &History) -> Vec<String> {
    let arrivals = history.arrivals.iter();
    let ids = arrivals.filter_map(|arrival| Some((arrival.nonce?, arrival.id)));
    let arrived: HashMap<&str, usize> = ids.collect();
    let mut found = Vec::new();
    for LogEntry { at, event } in history.log {
        let Event::Answered(answer) = event else {
            continue;
        };
        let sent = history.sent(&answer.nonce);
        let claims = sent.is_some_and(|(_, sent)| sent.errand == Errand::Claim);
        let forwarded = answer.outcome.is_none() && !claims;
        match arrived.get(&*answer.nonce) {
            _ if answer.outcome.as_deref() == Some("outcome-unknown") => {}
            Some(id) if !forwarded => found.push(format!(
                "{answer:?} at {at:?} says that it was not forwarded, and it arrived as #{id}"
            )),
            None if forwarded => found.push(format!(
                "{answer:?} at {at:?} is in the upstream's name, and it never arrived there"
            )),
            _ => {}
        }
    }
    found
}

/// C5, of one history.
fn recovery(history: &History) -> Vec<String> {
    let unrecovered = |entry: &LogEntry| match &entry.event {
        Event::Unrecovered(what) => Some(what.clone()),
        _ => None,
    };
    history.log.iter().filter_map(unrecovered).collect()
}

/// C6.
fn arrivals(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen: HashMap<&str, Vec<usize>> = HashMap::new();
    for arrival in &history.arrivals {
        // Without a head there was nothing to work on.
        if arrival.headers.is_empty() {
            continue;
        }
        let id = arrival.id;
        found.extend(dress(history, arrival).map(|wrong| format!("#{id} {wrong}")));
        let Some(nonce) = arrival.nonce else { continue };
        let sent = history.sent(nonce);
        let read = sent.is_some_and(|(_, sent)| sent.errand == Errand::Unfenced);
        let before = seen.entry(nonce).or_default();
        if before.len() > usize::from(read) {
            found.push(format!("{nonce} arrived as #{id} after {before:?}"));
        }
        before.push(id);
    }
    found
}

/// The first header of an arrival that is wrong.
fn dress(history: &History, arrival: &Arrival) -> Option<String> {
    let all = |name| arrival.all(name);
    let [nonce] = all(NONCE)[..] else {
        return Some("carries no client's nonce".to_owned());
    };
    let Some((sent_at, sent)) = history.sent(nonce) else {
        return Some(format!("carries {nonce}, which nobody sent"));
    };
    if sent_at > arrival.began {
        return Some(format!("carries {nonce}, which was sent later"));
    }
    let token = sent.token.map(|token| token.to_string());
    let fields = [
        ("x-fencing-token", token.as_deref().unwrap_or_default()),
        ("x-fencing-resource", &*sent.resource),
    ];
    let fenced = match sent.errand {
        Errand::Fenced { .. } => true,
        Errand::Unfenced => false,
        Errand::Claim => return Some(format!("is {nonce}, a claim")),
        Errand::Wrong => return Some(format!("is {nonce}, which no rule lets through")),
    };
    for (name, want) in fields {
        let want = if fenced { vec![want] } else { vec![] };
        if all(name) != want {
            return Some(format!("has {name} {:?} instead of {want:?}", all(name)));
        }
    }
    let keyed = sent.errand == Errand::Fenced { keyed: true };
    for (name, due) in [
        ("via", true),
        ("x-forwarded-for", true),
        ("idempotency-key", keyed),
    ] {
        if due && all(name).len() != 1 {
            return Some(format!("has {name} {:?}, not once", all(name)));
        }
    }
    let forged = arrival.headers.iter().find(|(name, value)| {
        name.to_ascii_lowercase().starts_with("x-fencing") && value.contains(FORGED)
    });
    forged.map(|(name, value)| format!("has the client's own {name}: {value}"))
}
