//! Compares two tables by what they do: the same sample paths go through both
//! ([`paths`](super::paths)), and each kind of difference between two routes is reported once, with
//! a request that has such a path.
//!
//! A route treats a path as `proxy::classify` treats the request. Keys are compared by their
//! [`Skeleton`]s. Two templates that make the same keys in two ways count as a change: a report too
//! many costs the operator a flag, a report too few lets an older token pass. Claims are not looked
//! at, since they forward nothing.
//!
//! A refusal lets nothing past a mark, but the marks stay. If one table refuses a request and the
//! next gives it another key, both together may not undo what one alone may not. So a request that
//! has a key keeps it: its route may refuse its *method*, under the same key. Any other refusal
//! leaves no key to compare with the next table, and is a loss by itself.
//!
//! Left out are the spellings that have the key of another spelling: empty segments and raw
//! characters. A route may cease to let them through.

use std::collections::BTreeSet;
use std::fmt;

use super::paths::{SamplePath, SamplePaths};
use super::{RouteTable, Rule};
use crate::config::settings::{Mode, SafeMethods, Unmatched};
use crate::routing::{KeyTemplate, Origin, Router, Skeleton, Source};

/// The change for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableChange {
    /// The request gets another key.
    Key,
    /// Its token is read in another format.
    Format,
    /// It is forwarded without being judged.
    Unfenced,
    /// No route matches it any more: a 404.
    Unrouted,
    /// It may have no key any more, and is refused: for its spelling, or for a part of its key.
    Refused,
    /// A route let it pass unjudged, and it is fenced now.
    Enforced,
    /// No route took it, and one fences it now.
    Added,
    /// Its token passes once only, or no longer once only.
    Reuse,
}

impl TableChange {
    /// Returns true if an older token may pass because of it, now or with the next change.
    #[must_use]
    pub fn is_loss(self) -> bool {
        match self {
            Self::Key | Self::Format | Self::Unfenced | Self::Unrouted | Self::Refused => true,
            Self::Enforced | Self::Added | Self::Reuse => false,
        }
    }
}

/// One difference between two tables, by a request with a path that shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub change: TableChange,
    /// `PUT /orders/1/items`.
    pub request: String,
    /// Its treatment by the old table: `it is fenced as order:{id} (route /orders/{id}/{*rest})`.
    pub was: String,
    /// By the new one.
    pub becomes: String,
    /// The new table's route, where there is one.
    pub route: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            request,
            was,
            becomes,
            ..
        } = self;
        write!(
            f,
            "{request}: until now {was}; with the new routes {becomes}"
        )
    }
}

/// A table's treatment of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// Judged, where it has a key.
    Judged,
    /// Its route refuses its method. It has a key all the same.
    Forbidden,
    /// Its route wants a token, and it has none.
    TokenRequired,
    /// Forwarded without being judged, and why.
    Passed(&'static str),
    /// Refused for another reason.
    Refused,
    /// No route, no forwarding.
    Unrouted,
}

/// A method, and whether there is a token.
pub(super) type MethodAndToken<'a> = (&'a str, bool);

/// Represents all safe methods, which the routes treat alike.
const SAFE: &str = "GET";
/// The first one that a route allows represents its unsafe methods in the findings.
const UNSAFE: [&str; 4] = ["PUT", "POST", "PATCH", "DELETE"];

/// The spellings of `allow` that no other spelling has the key of.
const SPELLINGS: [&str; 2] = ["semicolon", "encoded-slash"];

impl RouteTable {
    /// The differences between `new` and this table: every kind of them for every two routes that
    /// one request can reach, the losses first.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> Vec<Finding> {
        if self.shape() == new.shape() {
            return Vec::new();
        }
        let Some(comparison) = Comparison::new([self, new]) else {
            return Vec::new();
        };
        let mut findings: Vec<Finding> = comparison
            .pairs()
            .flat_map(|pair| comparison.findings(pair))
            .collect();
        findings.sort_by_key(|finding| (!finding.change.is_loss(), finding.change));
        findings
    }

    /// Returns true if any route enforces. Then ambiguous requests are refused everywhere.
    fn is_strict(&self) -> bool {
        self.routes.iter().any(|rule| rule.mode == Mode::Enforce)
    }
}

/// Two tables, and the routers that find the routes in them.
pub(super) struct Comparison<'a> {
    tables: [&'a RouteTable; 2],
    routers: [Router; 2],
    paths: SamplePaths,
}

/// A route of each table, or none.
type Pair<'a> = [Option<&'a Rule>; 2];

/// A route of each table by its index, or none.
pub(super) type Indices = [Option<usize>; 2];

impl<'a> Comparison<'a> {
    /// `None` where a table has two routes of one shape, which no configuration can have.
    pub(super) fn new(tables: [&'a RouteTable; 2]) -> Option<Self> {
        let [old, new] = tables.map(|table| {
            let patterns = table.routes.iter().map(|rule| rule.pattern.clone());
            Router::new(patterns.collect()).ok()
        });
        let rules = tables.iter().flat_map(|table| &table.routes);
        Some(Self {
            tables,
            routers: [old?, new?],
            paths: SamplePaths::new(rules.map(|rule| &rule.pattern)),
        })
    }

    /// Every two routes that one request might reach.
    pub(super) fn pairs(&self) -> impl Iterator<Item = Indices> + use<> {
        let [old, new] = self.tables.map(|table| table.routes.len());
        let or_none = |count: usize| (0..count).map(Some).chain([None]);
        let all = or_none(old).flat_map(move |old| or_none(new).map(move |new| [old, new]));
        all.filter(|pair| *pair != [None, None])
    }

    /// The first finding of each kind, by the shortest path.
    pub(super) fn findings(&self, indices: Indices) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        let pair = self.rules(indices);
        for path in self.paths.of(pair.map(|rule| Some(&rule?.pattern))) {
            let sides = self.sides(path, |_| None);
            if sides.indices != indices {
                continue;
            }
            for asking in askings(pair) {
                for change in sides.changes(asking) {
                    if findings.iter().all(|found| found.change != change) {
                        findings.push(sides.finding(change, asking));
                    }
                }
            }
        }
        findings
    }

    fn rules(&self, indices: Indices) -> Pair<'a> {
        [0, 1].map(|at| self.tables[at].routes.get(indices[at]?))
    }

    /// One path through both tables. `known` is the text of an origin outside the path.
    pub(super) fn sides(
        &self,
        sample: SamplePath,
        known: impl Fn(&Source) -> Option<String>,
    ) -> Sides<'a> {
        let found = [0, 1].map(|at| self.routers[at].find(&sample.path));
        let indices = found.map(|found| found.map(|(index, _)| index));
        let pair = self.rules(indices);
        let known = |origin: &Origin| match origin {
            Origin::Segment(at) => sample.literals.get(*at)?.clone(),
            Origin::Elsewhere(source) => known(source),
        };
        let keys = pair.map(|rule| {
            let key = rule?.key.as_ref()?;
            key.skeleton(sample.literals.len(), known)
        });
        Sides {
            tables: self.tables,
            indices,
            pair,
            sample,
            keys,
        }
    }
}

/// Every method that one of the routes knows: unsafe ones first, and of these the ones that fewer
/// of the routes refuse.
pub(super) fn askings(pair: Pair<'_>) -> Vec<MethodAndToken<'_>> {
    let rules = || pair.into_iter().flatten();
    let listed = || rules().map(|rule| &rule.methods);
    let mut seen = BTreeSet::new();
    let methods = UNSAFE.into_iter();
    let methods = methods.chain(listed().flatten().map(String::as_str));
    let mut methods: Vec<&str> = methods.filter(|method| seen.insert(*method)).collect();
    methods.sort_by_key(|method| {
        listed()
            .filter(|let_through| !let_through.contains(*method))
            .count()
    });
    let methods = methods.into_iter();
    let with_token = methods.chain([SAFE]).map(|method| (method, true));
    with_token.chain([(SAFE, false)]).collect()
}

/// One sample path in both tables.
pub(super) struct Sides<'a> {
    tables: [&'a RouteTable; 2],
    pub(super) indices: Indices,
    pair: Pair<'a>,
    sample: SamplePath,
    pub(super) keys: [Option<Skeleton>; 2],
}

impl Sides<'_> {
    fn treatment(&self, at: usize, (method, token): MethodAndToken) -> Treatment {
        let table = self.tables[at];
        let safe = method == SAFE;
        let allow = self.pair[at].map(|rule| rule.allow).unwrap_or_default();
        if table.is_strict() && self.sample.path.oddity_not_in(allow).is_some() {
            return Treatment::Refused;
        }
        let Some(rule) = self.pair[at] else {
            return if safe && table.unmatched == Unmatched::SafeOnly {
                Treatment::Passed("no route matches it, and safe methods pass")
            } else {
                Treatment::Unrouted
            };
        };
        match (rule.mode, rule.safe_methods, &rule.methods) {
            (Mode::Bypass, ..) => Treatment::Passed("the route is bypassed"),
            (Mode::Observe, ..) => Treatment::Passed("the route only observes"),
            (Mode::Enforce, SafeMethods::Ignored, _) if safe => {
                Treatment::Passed("safe_methods is ignored")
            }
            (Mode::Enforce, _, methods)
                if !safe && !methods.contains(method) && self.keys[at].is_some() =>
            {
                Treatment::Forbidden
            }
            (Mode::Enforce, SafeMethods::Optional, _) if safe && !token => {
                Treatment::Passed("safe_methods is optional")
            }
            (Mode::Enforce, ..) if !token => Treatment::TokenRequired,
            (Mode::Enforce, ..) if self.keys[at].is_none() => Treatment::Refused,
            (Mode::Enforce, ..) => Treatment::Judged,
        }
    }

    pub(super) fn changes(&self, asking: MethodAndToken) -> Vec<TableChange> {
        let change = match (self.treatment(0, asking), self.treatment(1, asking)) {
            (
                Treatment::Judged | Treatment::Forbidden,
                Treatment::Judged | Treatment::Forbidden,
            ) => {
                return self.changes_of_keyed();
            }
            (
                Treatment::Judged | Treatment::Forbidden | Treatment::TokenRequired,
                Treatment::Passed(_),
            ) => TableChange::Unfenced,
            (Treatment::Judged | Treatment::Forbidden, Treatment::Unrouted) => {
                TableChange::Unrouted
            }
            (Treatment::Judged | Treatment::Forbidden, Treatment::Refused) => TableChange::Refused,
            // A read that no route took stood under no promise.
            (Treatment::Passed(_), Treatment::Judged | Treatment::TokenRequired)
                if self.pair[0].is_none() =>
            {
                TableChange::Added
            }
            (Treatment::Passed(_), Treatment::Judged | Treatment::TokenRequired) => {
                TableChange::Enforced
            }
            (Treatment::Unrouted, Treatment::Judged) => TableChange::Added,
            _ => return Vec::new(),
        };
        vec![change]
    }

    /// Compares the keys of requests that have one in both tables, and how they read a token.
    fn changes_of_keyed(&self) -> Vec<TableChange> {
        let ([Some(old), Some(new)], [Some(was), Some(becomes)]) = (self.pair, &self.keys) else {
            return Vec::new();
        };
        let any_text = self.sample.literals.contains(&None);
        let mut spellings = SPELLINGS.iter();
        let fewer = spellings.any(|name| old.allow.allows(name) && !new.allow.allows(name));
        let narrower = becomes.is_narrower_than(was);
        let changed = [
            (TableChange::Key, !becomes.makes_the_keys_of(was)),
            (TableChange::Refused, narrower || (fewer && any_text)),
            (TableChange::Format, old.token_format != new.token_format),
            (TableChange::Reuse, old.reuse != new.reuse),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(change, _)| change).collect()
    }

    fn finding(&self, change: TableChange, asking: MethodAndToken) -> Finding {
        let route = self.pair[1].map(|rule| rule.pattern.to_string());
        Finding {
            change,
            request: self.request(asking),
            was: self.words(0, change, asking),
            becomes: self.words(1, change, asking),
            route,
        }
    }

    fn words(&self, at: usize, change: TableChange, asking: MethodAndToken) -> String {
        let rule = self.pair[at];
        let route = rule.map_or_else(String::new, |rule| format!(" (route {})", rule.pattern));
        let treatment = self.treatment(at, asking);
        match treatment {
            Treatment::Judged | Treatment::Forbidden
                if at == 1 && change == TableChange::Refused =>
            {
                format!("it is refused in some spellings{route}")
            }
            Treatment::Judged | Treatment::Forbidden => {
                let key = rule.and_then(|rule| rule.key.as_ref());
                let key = key.map_or("", KeyTemplate::as_str);
                let more = match (change, rule) {
                    (TableChange::Format, Some(rule)) => {
                        format!(", its token read as {}", rule.token_format.as_str())
                    }
                    (TableChange::Reuse, Some(rule)) => {
                        format!(", with reuse: {:?}", rule.reuse).to_lowercase()
                    }
                    _ => String::new(),
                };
                let is = match treatment {
                    Treatment::Forbidden => "its method is refused, and its key is",
                    _ => "it is fenced as",
                };
                format!("{is} {key}{route}{more}")
            }
            Treatment::TokenRequired => format!("it needs a token{route}"),
            Treatment::Passed(why) => format!("it passes unfenced: {why}{route}"),
            Treatment::Refused => format!("it is refused{route}"),
            Treatment::Unrouted => "it gets a 404: no route matches it".to_owned(),
        }
    }

    /// The request as an operator would write it, without what its key needs beside the path.
    fn request(&self, (method, token): MethodAndToken) -> String {
        let beside = match (method, token) {
            (SAFE, true) => " (with a token)",
            (SAFE, false) => " (without a token)",
            _ => "",
        };
        format!("{method} {}{beside}", self.sample.raw)
    }
}
