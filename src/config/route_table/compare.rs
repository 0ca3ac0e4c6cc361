//! Compares two tables by what they do: the same sample paths go through both
//! ([`paths`](super::paths)), and each kind of difference between two routes is reported once, with
//! a request that has such a path.
//!
//! A route treats a path as `proxy::classify` treats the request. Keys are compared by their
//! [`KeyForm`]s. Two templates that make the same keys in two ways count as a change: a report too
//! many costs the operator a flag, a report too few lets an older token pass. Claims are not looked
//! at, since they forward nothing.
//!
//! A refusal lets nothing past a mark, but the marks stay. If one table refuses a request and the
//! next gives it another key, both together may not undo what one alone may not. So a request that
//! has a key keeps it, even if its route refuses its *method*: methods are not compared. Any other
//! refusal leaves no key to compare with the next table, and is a loss by itself.
//!
//! Left out are the spellings that have the key of another spelling: empty segments and raw
//! characters. A route may cease to let them through.

use std::fmt;

use super::paths::{SamplePath, SamplePaths};
use super::{RouteTable, Rule};
use crate::config::judging::{Mode, SafeMethods};
use crate::config::settings::Unmatched;
use crate::routing::{KeyForm, KeyTemplate, Router, Source};

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
    /// Judged, or refused for its method. It has a key in both cases.
    Judged,
    /// Its route wants a token, and it has none.
    TokenRequired,
    /// Forwarded without being judged, and why.
    Passed(&'static str),
    /// Refused for another reason.
    Refused,
    /// No route, no forwarding.
    Unrouted,
}

/// The requests that routes tell apart. Safe methods are alike to them, and so are the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    Write,
    ReadWithToken,
    ReadWithoutToken,
}

impl Asking {
    pub(super) const ALL: [Self; 3] = [Self::Write, Self::ReadWithToken, Self::ReadWithoutToken];
}

/// The one that most routes allow represents their unsafe methods in the findings.
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
            let (router, conflicts) = Router::new(table.routes.iter().map(|rule| &rule.pattern));
            conflicts.is_empty().then_some(router)
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
            for asking in Asking::ALL {
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

    /// One path through both tables. `known` is the text of a source outside the path.
    pub(super) fn sides(
        &self,
        sample: SamplePath,
        known: impl Fn(&Source) -> Option<String>,
    ) -> Sides<'a> {
        let indices = [0, 1].map(|at| self.routers[at].find(&sample.path));
        let pair = self.rules(indices);
        let keys = pair.map(|rule| rule?.key.as_ref()?.form(&sample.literals, &known));
        Sides {
            tables: self.tables,
            indices,
            pair,
            sample,
            keys,
        }
    }
}

/// One sample path in both tables.
pub(super) struct Sides<'a> {
    tables: [&'a RouteTable; 2],
    pub(super) indices: Indices,
    pair: Pair<'a>,
    sample: SamplePath,
    pub(super) keys: [Option<KeyForm>; 2],
}

impl Sides<'_> {
    fn treatment(&self, at: usize, asking: Asking) -> Treatment {
        let table = self.tables[at];
        let safe = asking != Asking::Write;
        let token = asking != Asking::ReadWithoutToken;
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
        match (rule.mode, rule.safe_methods) {
            (Mode::Bypass, _) => Treatment::Passed("the route is bypassed"),
            (Mode::Observe, _) => Treatment::Passed("the route only observes"),
            (Mode::Enforce, SafeMethods::Ignored) if safe => {
                Treatment::Passed("safe_methods is ignored")
            }
            (Mode::Enforce, SafeMethods::Optional) if !token => {
                Treatment::Passed("safe_methods is optional")
            }
            (Mode::Enforce, _) if !token => Treatment::TokenRequired,
            (Mode::Enforce, _) if self.keys[at].is_none() => Treatment::Refused,
            (Mode::Enforce, _) => Treatment::Judged,
        }
    }

    pub(super) fn changes(&self, asking: Asking) -> Vec<TableChange> {
        use Treatment::{Judged, Passed, Refused, TokenRequired, Unrouted};

        let change = match (self.treatment(0, asking), self.treatment(1, asking)) {
            (Judged, Judged) => return self.changes_of_keyed(),
            (Judged | TokenRequired, Passed(_)) => TableChange::Unfenced,
            (Judged, Unrouted) => TableChange::Unrouted,
            (Judged, Refused) => TableChange::Refused,
            // A read that no route took stood under no promise.
            (Passed(_), Judged | TokenRequired) if self.pair[0].is_some() => TableChange::Enforced,
            (Passed(_), Judged | TokenRequired) | (Unrouted, Judged) => TableChange::Added,
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
        let narrower = !becomes.narrow.is_subset(&was.narrow);
        let changed = [
            (TableChange::Key, becomes.keys != was.keys),
            (TableChange::Refused, narrower || (fewer && any_text)),
            (TableChange::Format, old.token_format != new.token_format),
            (TableChange::Reuse, old.reuse != new.reuse),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(change, _)| change).collect()
    }

    fn finding(&self, change: TableChange, asking: Asking) -> Finding {
        let route = self.pair[1].map(|rule| rule.pattern.to_string());
        Finding {
            change,
            request: self.request(asking),
            was: self.words(0, change, asking),
            becomes: self.words(1, change, asking),
            route,
        }
    }

    fn words(&self, at: usize, change: TableChange, asking: Asking) -> String {
        let rule = self.pair[at];
        let route = rule.map_or_else(String::new, |rule| format!(" (route {})", rule.pattern));
        match self.treatment(at, asking) {
            Treatment::Judged if at == 1 && change == TableChange::Refused => {
                format!("it is refused in some spellings{route}")
            }
            Treatment::Judged => {
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
                format!("it is fenced as {key}{route}{more}")
            }
            Treatment::TokenRequired => format!("it needs a token{route}"),
            Treatment::Passed(why) => format!("it passes unfenced: {why}{route}"),
            Treatment::Refused => format!("it is refused{route}"),
            Treatment::Unrouted => "it gets a 404: no route matches it".to_owned(),
        }
    }

    /// The request as an operator would write it, without what its key needs beside the path.
    fn request(&self, asking: Asking) -> String {
        let path = &self.sample.raw;
        match asking {
            Asking::Write => format!("{} {path}", self.method()),
            Asking::ReadWithToken => format!("GET {path} (with a token)"),
            Asking::ReadWithoutToken => format!("GET {path} (without a token)"),
        }
    }

    fn method(&self) -> &str {
        let rules = || self.pair.into_iter().flatten();
        let listed = rules().flat_map(|rule| &rule.methods);
        let methods = UNSAFE.into_iter().chain(listed.map(String::as_str));
        // The first of those that the most routes allow.
        let refusing = |method: &&str| {
            rules()
                .filter(|rule| !rule.methods.contains(*method))
                .count()
        };
        methods.min_by_key(refusing).unwrap_or_default()
    }
}
