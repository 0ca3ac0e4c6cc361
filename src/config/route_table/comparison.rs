//! [`Comparison`]: one request through two tables.

use super::super::judging::{Mode, SafeMethods, Unmatched};
use super::{Finding, RouteTable, Rule, TableChange};
use crate::routing::{KeyShape, Router, SamplePath, SamplePaths};

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

/// How findings begin that compare with the table in force.
const UNTIL_NOW: &str = "until now";

/// The spellings of `allow` that no other spelling has the key of.
const SPELLINGS: [&str; 2] = ["semicolon", "encoded-slash"];

impl RouteTable {
    /// Lets `new` serve in place of this table: returns it with what it has to remember, and the
    /// findings, with the losses against everything that is remembered.
    pub fn replaced_by(&self, new: &Self) -> (Self, Vec<Finding>) {
        let mut findings = self.changes_to(new);
        for earlier in &self.remembered {
            let losses = earlier.changes_to(new).into_iter();
            let losses = losses.filter(|finding| finding.change.is_loss());
            findings.extend(losses.map(|loss| Finding {
                message: loss.message.replacen(UNTIL_NOW, "under earlier routes", 1),
                ..loss
            }));
        }
        let mut remembered: Vec<Self> = Vec::new();
        let earlier = self.remembered.iter().chain(&new.remembered);
        for earlier in earlier.chain([self]) {
            let covers = |table: &Self| table.enforces_all_of(earlier);
            if !covers(new) && !remembered.iter().any(covers) {
                remembered.retain(|other| !earlier.enforces_all_of(other));
                remembered.push(earlier.alone());
            }
        }
        let new = Self {
            remembered,
            ..new.clone()
        };
        (new, findings)
    }

    /// Returns true if all that `old` fences has the same keys here.
    fn enforces_all_of(&self, old: &Self) -> bool {
        use TableChange::{Added, Enforced};
        let findings = old.changes_to(self);
        let mut changes = findings.iter().map(|finding| finding.change);
        changes.all(|change| matches!(change, Added | Enforced))
    }

    /// The differences between this table and `new`, without what they remember: every kind of them
    /// for every two routes that one request can reach, the losses first.
    pub fn changes_to(&self, new: &Self) -> Vec<Finding> {
        if (&self.routes, self.unmatched) == (&new.routes, new.unmatched) {
            return Vec::new();
        }
        let comparison = Comparison::new([self, new]);
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
pub(super) type Pair<'a> = [Option<&'a Rule>; 2];

impl<'a> Comparison<'a> {
    pub(super) fn new(tables: [&'a RouteTable; 2]) -> Self {
        let rules = tables.iter().flat_map(|table| &table.routes);
        Self {
            tables,
            routers: tables.map(|table| table.router().0),
            paths: SamplePaths::new(rules.map(|rule| &rule.path)),
        }
    }

    /// Every two routes that one request might reach.
    pub(super) fn pairs(&self) -> impl Iterator<Item = Pair<'a>> + use<'a> {
        let or_none = |table: &'a RouteTable| table.routes.iter().map(Some).chain([None]);
        let [old, new] = self.tables;
        or_none(old).flat_map(move |old| or_none(new).map(move |new| [old, new]))
    }

    /// The first finding of each kind, by the shortest path.
    pub(super) fn findings(&self, pair: Pair<'a>) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        for path in self.paths.of(pair.map(|rule| Some(&rule?.path))) {
            let sides = self.sides(path);
            if sides.pair != pair {
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

    /// One path through both tables.
    pub(super) fn sides(&self, sample: SamplePath) -> Sides<'a> {
        let found = |at: usize| {
            self.tables[at]
                .routes
                .get(self.routers[at].find(&sample.path)?)
        };
        let pair = [0, 1].map(found);
        let literals = &sample.literals;
        let keys = pair.map(|rule| {
            let key = rule?.key.as_ref()?;
            let key = key.fits(literals.len()).then_some(key)?;
            key.shape(|at| literals.get(at)?.as_deref())
        });
        Sides {
            tables: self.tables,
            pair,
            sample,
            keys,
        }
    }
}

/// One sample path in both tables.
pub(super) struct Sides<'a> {
    tables: [&'a RouteTable; 2],
    pub(super) pair: Pair<'a>,
    sample: SamplePath,
    pub(super) keys: [Option<KeyShape>; 2],
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
            let observes = table.routes.iter().any(|rule| rule.mode == Mode::Observe);
            return if table.unmatched == Unmatched::Refuse {
                Treatment::Unrouted
            } else if safe {
                Treatment::Passed("safe methods pass where no route matches")
            } else if observes && !table.is_strict() {
                Treatment::Passed("the routes only observe")
            } else {
                Treatment::Unrouted
            };
        };
        match (rule.mode, rule.safe_methods) {
            (Mode::Bypass, _) => Treatment::Passed("the route is bypassed"),
            (Mode::Observe, _) => Treatment::Passed("the route only observes"),
            (_, SafeMethods::Ignored) if safe => Treatment::Passed("safe_methods is ignored"),
            (_, SafeMethods::Optional) if !token => Treatment::Passed("safe_methods is optional"),
            (Mode::Enforce, _) if !token => Treatment::TokenRequired,
            (Mode::Enforce, _) if self.keys[at].is_none() => Treatment::Refused,
            (Mode::Enforce, _) => Treatment::Judged,
        }
    }

    pub(super) fn changes(&self, asking: Asking) -> Vec<TableChange> {
        use Treatment::{Judged, Passed, Refused, TokenRequired, Unrouted};

        let [was, becomes] = self.pair;
        let observes = becomes.is_some_and(|rule| rule.mode == Mode::Observe);
        let change = match [0, 1].map(|at| self.treatment(at, asking)) {
            [Judged, Judged] => return self.changes_of_keyed(),
            [Judged | TokenRequired, Passed(_)] if observes => TableChange::Observed,
            [Judged | TokenRequired, Passed(_)] if becomes.is_some() => TableChange::Unfenced,
            [Judged | TokenRequired, Passed(_) | Unrouted] => TableChange::Removed,
            [Judged, Refused] => TableChange::Refused,
            // A read that no route took stood under no promise.
            [Passed(_), Judged | TokenRequired] if was.is_some() || asking == Asking::Write => {
                TableChange::Enforced
            }
            [Passed(_), Judged | TokenRequired] | [Unrouted, Judged] => TableChange::Added,
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
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(change, _)| change).collect()
    }

    fn finding(&self, change: TableChange, asking: Asking) -> Finding {
        let path = &self.sample.raw;
        let request = match asking {
            Asking::Write => format!("{} {path}", self.method()),
            Asking::ReadWithToken => format!("GET {path} (with a token)"),
            Asking::ReadWithoutToken => format!("GET {path} (without a token)"),
        };
        let [was, becomes] = [0, 1].map(|at| self.words(at, change, asking));
        Finding {
            change,
            message: format!("{request}: {UNTIL_NOW} {was}; with the new routes {becomes}"),
        }
    }

    fn words(&self, at: usize, change: TableChange, asking: Asking) -> String {
        let rule = self.pair[at];
        let key = rule.and_then(|rule| rule.resource.as_deref());
        let fate = match self.treatment(at, asking) {
            Treatment::Judged if at == 1 && change == TableChange::Refused => {
                "it is refused in some spellings"
            }
            Treatment::Judged => &format!("it is fenced as {}", key.unwrap_or_default()),
            Treatment::TokenRequired => "it needs a token",
            Treatment::Passed(why) => &format!("it passes unfenced: {why}"),
            Treatment::Refused => "it is refused",
            Treatment::Unrouted => "it gets a 404",
        };
        let route = rule.map_or("no route".to_owned(), |rule| format!("route {}", rule.path));
        let format = rule.filter(|_| change == TableChange::Format);
        let more = format.map_or_else(String::new, |rule| {
            format!(", its token read as {}", rule.token_format.as_str())
        });
        format!("{fate} ({route}){more}")
    }

    /// The last method that both routes allow: of the usual ones `PUT`.
    fn method(&self) -> &str {
        let rules = || self.pair.into_iter().flatten();
        let by_both = |method: &&String| rules().all(|rule| rule.methods.contains(*method));
        let methods = rules().flat_map(|rule| &rule.methods);
        methods.filter(by_both).max().map_or("PUT", |last| last)
    }
}
