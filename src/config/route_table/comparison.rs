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

/// The two ways to look at a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    /// What becomes of requests.
    Served,
    /// What would become of them if every route that keeps its keys still enforced.
    Kept,
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

/// The spellings of `allow` that no other spelling has the key of.
const SPELLINGS: [&str; 2] = ["semicolon", "encoded-slash"];

impl RouteTable {
    /// This table, with the keys that it has to keep since `old` does. Of a route that is gone they
    /// are kept only if no other route takes a part of its paths: the router knows one per path.
    #[must_use]
    pub fn heir_of(&self, old: &Self) -> Self {
        let comparison = Comparison::new([old, self]);
        let holds = |pair: &Pair| pair[0].is_some_and(Rule::holds_keys);
        let met = comparison.pairs().filter(holds);
        let met: Vec<Pair> = met.filter(|pair| comparison.is_met(*pair)).collect();
        let is_taken = |rule: &Rule| {
            met.iter()
                .any(|pair| pair[0] == Some(rule) && pair[1].is_some())
        };
        let gone = met.iter().filter_map(|pair| match pair {
            [Some(rule), None] if !is_taken(rule) => Some((*rule).clone()),
            _ => None,
        });
        let gone = gone.map(|rule| Rule {
            mode: Mode::Enforce,
            kept: true,
            ..rule
        });
        let takes = |rule: &Rule| met.iter().any(|pair| pair[1] == Some(rule));
        let routes = self.routes.iter().map(|rule| Rule {
            kept: rule.kept || (rule.mode == Mode::Observe && takes(rule)),
            ..rule.clone()
        });
        Self::with(self.unmatched, routes.chain(gone).collect())
    }

    /// The differences between this table and `new`, its [heir](Self::heir_of): every kind of them
    /// for every two routes that one request can reach, the losses first.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> Vec<Finding> {
        if self == new {
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
    fn is_strict(&self, view: View) -> bool {
        let mut rules = self.routes.iter();
        match view {
            View::Served => rules.any(|rule| rule.mode == Mode::Enforce && !rule.kept),
            View::Kept => rules.any(Rule::holds_keys),
        }
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

    /// Returns true if one request can reach both routes.
    fn is_met(&self, pair: Pair<'a>) -> bool {
        let mut paths = self
            .paths
            .of(pair.map(|rule| Some(&rule?.path)))
            .into_iter();
        paths.any(|path| self.sides(path).pair == pair)
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
    fn rule(&self, at: usize, view: View) -> Option<&Rule> {
        self.pair[at].filter(|rule| view == View::Kept || !rule.is_removed())
    }

    fn treatment(&self, at: usize, asking: Asking, view: View) -> Treatment {
        let table = self.tables[at];
        let safe = asking != Asking::Write;
        let token = asking != Asking::ReadWithoutToken;
        let rule = self.rule(at, view);
        let allow = rule.map(|rule| rule.allow).unwrap_or_default();
        if table.is_strict(view) && self.sample.path.oddity_not_in(allow).is_some() {
            return Treatment::Refused;
        }
        let Some(rule) = rule else {
            let observes = table.routes.iter().any(|rule| rule.mode == Mode::Observe);
            return if table.unmatched == Unmatched::Refuse {
                Treatment::Unrouted
            } else if safe {
                Treatment::Passed("safe methods pass where no route matches")
            } else if observes && !table.is_strict(view) {
                Treatment::Passed("the routes only observe")
            } else {
                Treatment::Unrouted
            };
        };
        let mode = match view {
            View::Kept if rule.kept => Mode::Enforce,
            _ => rule.mode,
        };
        match (mode, rule.safe_methods) {
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

        let both = |view| [0, 1].map(|at| self.treatment(at, asking, view));
        let mut changes = match both(View::Kept) {
            [Judged, Judged] => self.changes_of_keyed(),
            [Judged | TokenRequired, Passed(_)] => vec![TableChange::Unfenced],
            [Judged, Unrouted] => vec![TableChange::Unrouted],
            [Judged, Refused] => vec![TableChange::Refused],
            _ => Vec::new(),
        };
        let [was, becomes] = self.pair;
        let is_removed = becomes.is_some_and(Rule::is_removed);
        let observes = becomes.is_some_and(|rule| rule.mode == Mode::Observe);
        changes.extend(match both(View::Served) {
            [Judged | TokenRequired, Passed(_)] if observes => Some(TableChange::Observed),
            [Judged | TokenRequired, Passed(_) | Unrouted] if is_removed => {
                Some(TableChange::Removed)
            }
            // A read that no route took stood under no promise.
            [Passed(_), Judged | TokenRequired] if was.is_some() || asking == Asking::Write => {
                Some(TableChange::Enforced)
            }
            [Passed(_), Judged | TokenRequired] | [Unrouted, Judged] => Some(TableChange::Added),
            _ => None,
        });
        changes
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
        let path = &self.sample.raw;
        let request = match asking {
            Asking::Write => format!("{} {path}", self.method()),
            Asking::ReadWithToken => format!("GET {path} (with a token)"),
            Asking::ReadWithoutToken => format!("GET {path} (without a token)"),
        };
        let [was, becomes] = [0, 1].map(|at| self.words(at, change, asking));
        Finding {
            change,
            route: self.pair[1].map(|rule| rule.path.to_string()),
            message: format!("{request}: until now {was}; with the new routes {becomes}"),
        }
    }

    fn words(&self, at: usize, change: TableChange, asking: Asking) -> String {
        let view = if change.is_loss() {
            View::Kept
        } else {
            View::Served
        };
        let rule = self.rule(at, view);
        let key = rule.and_then(|rule| rule.resource.as_deref());
        let fate = match self.treatment(at, asking, view) {
            Treatment::Judged if at == 1 && change == TableChange::Refused => {
                "it is refused in some spellings"
            }
            Treatment::Judged if rule.is_some_and(|rule| rule.kept) => {
                &format!("it keeps the key {}", key.unwrap_or_default())
            }
            Treatment::Judged => &format!("it is fenced as {}", key.unwrap_or_default()),
            Treatment::TokenRequired => "it needs a token",
            Treatment::Passed(why) => &format!("it passes unfenced: {why}"),
            Treatment::Refused => "it is refused",
            Treatment::Unrouted => "it gets a 404",
        };
        let route = match rule {
            None => "no route".to_owned(),
            Some(rule) if rule.kept => format!("route {}, which has enforced", rule.path),
            Some(rule) => format!("route {}", rule.path),
        };
        let more = match (change, rule) {
            (TableChange::Format, Some(rule)) => {
                format!(", its token read as {}", rule.token_format.as_str())
            }
            (TableChange::Reuse, Some(rule)) => format!(", with reuse {:?}", rule.reuse),
            _ => String::new(),
        };
        format!("{fate} ({route}){more}")
    }

    /// The last method that both routes allow: of the usual ones `PUT`.
    fn method(&self) -> &str {
        let mut rules = self.pair.into_iter().flatten();
        let one = rules.next().map(|rule| &rule.methods);
        let other = rules.next().map(|rule| &rule.methods);
        let by_both = |method: &&String| other.is_none_or(|other| other.contains(*method));
        let method = one.and_then(|one| one.iter().rfind(by_both));
        method.map_or("PUT", String::as_str)
    }
}
