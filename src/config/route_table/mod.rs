//! [`RouteTable`]: the rules that decide which requests are fenced, and under which keys.
//!
//! The keys name the marks. A table that gives one request another key lets an older token pass,
//! since no mark of that name is on record. So the store keeps the table in force as JSON, and a
//! new one is compared with it ([`RouteTable::changes_to`]) before it serves.
//!
//! Nothing else of a route is in it. Its clients, its deadlines and its idempotency keys decide
//! neither if a request is fenced nor under which key.
//!
//! Two tables are compared by their effect: the same sample paths ([`SamplePaths`]) go through
//! both, and each kind of difference between two routes is reported once, with a request that has
//! such a path.
//!
//! A route treats a path as `proxy::classify` treats the request. Keys are compared by their
//! [`KeyShape`]s, in which parts stand for their places in the path. Two templates that make the
//! same keys in two ways count as a change: a report too many costs the operator a flag, a report
//! too few lets an older token pass. Claims are not looked at, since they forward nothing.
//!
//! A refusal lets nothing past a mark, but the marks stay. If one table refuses a request and the
//! next gives it another key, both together may not undo what one alone may not. So a request that
//! has a key keeps it, even if its route refuses its *method*: methods are not compared. Any other
//! refusal leaves no key to compare with the next table, and is a loss by itself.
//!
//! Left out are the spellings that have the key of another spelling: empty segments and raw
//! characters. A route may cease to let them through.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::judging::{Mode, Reuse, SafeMethods, Unmatched};
use super::route::{RouteSettings, allow};
use super::sample_paths::{SamplePath, SamplePaths};
use crate::routing::{Allow, KeyShape, KeyTemplate, Pattern, RouteConflict, Router, TokenFormat};

/// Goes up with every change that an older program would read in another way, and with every change
/// of the keys that are made of the same patterns and templates.
const VERSION: u32 = 1;

/// The part of one configuration's routes that decides about keys and fencing. Unknown fields are
/// an error: a later version may have meant by them what changes keys.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTable {
    version: u32,
    unmatched: Unmatched,
    routes: Vec<Rule>,
}

/// The table without routes.
impl Default for RouteTable {
    fn default() -> Self {
        Self {
            version: VERSION,
            unmatched: Unmatched::Refuse,
            routes: Vec::new(),
        }
    }
}

/// One route of a table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(serialize_with = "path")]
    path: Pattern,
    mode: Mode,
    /// The unsafe methods that are allowed.
    methods: BTreeSet<String>,
    /// `None` only in bypass mode.
    resource: Option<String>,
    safe_methods: SafeMethods,
    token_format: TokenFormat,
    reuse: Reuse,
    #[serde(deserialize_with = "allow")]
    allow: Allow,
    /// Parsed from `resource`.
    #[serde(skip)]
    key: Option<KeyTemplate>,
}

fn path<S: Serializer>(path: &Pattern, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(path.as_str())
}

impl Serialize for Allow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(Self::NAMES.iter().filter(|name| self.allows(name)))
    }
}

impl RouteTable {
    /// The table of a configuration.
    #[must_use]
    pub fn of(routes: &[RouteSettings], unmatched: Unmatched) -> Self {
        let routes = routes.iter().map(|route| Rule {
            path: route.path.clone(),
            mode: route.mode,
            methods: route.methods.clone(),
            resource: route.key.as_ref().map(|key| key.as_str().to_owned()),
            safe_methods: route.safe_methods,
            token_format: route.token.format,
            reuse: route.reuse,
            allow: route.allow,
            key: route.key.clone(),
        });
        let mut routes: Vec<Rule> = routes.collect();
        // Their order in the file decides nothing.
        routes.sort_by(|one, other| one.path.as_str().cmp(other.path.as_str()));
        Self {
            version: VERSION,
            unmatched,
            routes,
        }
    }

    /// The table as the store keeps it. Equal tables give equal texts.
    #[must_use]
    pub fn to_document(&self) -> String {
        // Text, names and lists only: there is nothing that JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Self::to_document`] has written. The error says why this program cannot.
    pub fn from_document(text: &str) -> Result<Self, String> {
        let mut table: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if table.version != VERSION {
            return Err(format!("it is of version {}", table.version));
        }
        for rule in &mut table.routes {
            let template = rule.resource.as_deref();
            let key = template.map(|template| KeyTemplate::parse(template, &rule.path));
            rule.key = key.transpose()?;
            if rule.key.is_none() && rule.mode != Mode::Bypass {
                return Err(format!("its route {} has no key", rule.path));
            }
        }
        let (_, conflicts) = table.router();
        match conflicts.first() {
            Some(conflict) => Err(conflict.to_string()),
            None => Ok(table),
        }
    }

    /// The router over its routes, and those that match the same paths.
    fn router(&self) -> (Router, Vec<RouteConflict>) {
        Router::new(self.routes.iter().map(|rule| &rule.path))
    }

    /// The same for equal tables: 32 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let hash: [u8; 32] = Sha256::digest(self.to_document()).into();
        let first = hash.first_chunk().copied().unwrap_or_default();
        format!("{:032x}", u128::from_be_bytes(first))
    }
}

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
        !matches!(self, Self::Enforced | Self::Added | Self::Reuse)
    }
}

/// One difference between two tables, by a request with a path that shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub change: TableChange,
    /// The new table's route, where there is one.
    pub route: Option<String>,
    /// The request, and what both tables do with it.
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
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

/// The spellings of `allow` that no other spelling has the key of.
const SPELLINGS: [&str; 2] = ["semicolon", "encoded-slash"];

impl RouteTable {
    /// The differences between `new` and this table: every kind of them for every two routes that
    /// one request can reach, the losses first.
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
    fn pairs(&self) -> impl Iterator<Item = Pair<'a>> + use<'a> {
        let or_none = |table: &'a RouteTable| table.routes.iter().map(Some).chain([None]);
        let [old, new] = self.tables;
        or_none(old).flat_map(move |old| or_none(new).map(move |new| [old, new]))
    }

    /// The first finding of each kind, by the shortest path.
    fn findings(&self, pair: Pair<'a>) -> Vec<Finding> {
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
    pair: Pair<'a>,
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

        let change = match (self.treatment(0, asking), self.treatment(1, asking)) {
            (Judged, Judged) => return self.changes_of_keyed(),
            (Judged | TokenRequired, Passed(_)) => TableChange::Unfenced,
            (Judged, Unrouted) => TableChange::Unrouted,
            (Judged, Refused) => TableChange::Refused,
            // A read that no route took stood under no promise.
            (Passed(_), Judged | TokenRequired)
                if self.pair[0].is_some() || asking == Asking::Write =>
            {
                TableChange::Enforced
            }
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

#[cfg(test)]
mod tests;
