//! [`RouteTable`]: the rules that decide which requests are fenced, and under which keys.
//!
//! The keys name the marks. A table that gives one request another key lets an older token pass,
//! since no mark of that name is on record. So the store keeps the table in force as JSON, and a
//! new one is compared with it ([`RouteTable::changes_to`]) before it serves.
//!
//! Nothing else of a route is in it. Its clients, its deadlines and its idempotency keys decide
//! neither if a request is fenced nor under which key.
//!
//! Two tables are compared by their effect: the same sample paths (`SamplePaths`) go through
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
//! Operators may stop enforcing: they set a route to `observe`, or remove it. For the same reason the
//! table that did enforce is then remembered beside the new one, and every later table is compared
//! with it as well, until one enforces all of it again with the same keys.
//!
//! Left out are the spellings that have the key of another spelling: empty segments and raw
//! characters. A route may cease to let them through.

mod comparison;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize, Serializer};

use super::judging::{Mode, Reuse, SafeMethods, Unmatched};
use super::route::{RouteSettings, allow};
use super::yaml;
use crate::routing::{Allow, KeyTemplate, Pattern, RouteConflict, Router, TokenFormat};

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
    /// Earlier tables that enforced what this one does not. They remember none themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    remembered: Vec<RouteTable>,
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
            remembered: Vec::new(),
        }
    }

    /// True if an earlier table has enforced what this one does not.
    pub fn remembers(&self) -> bool {
        !self.remembered.is_empty()
    }

    /// This table without what it remembers.
    fn alone(&self) -> Self {
        Self {
            remembered: Vec::new(),
            ..self.clone()
        }
    }

    /// The table as the store keeps it. Equal tables give equal texts.
    pub fn to_document(&self) -> String {
        // Text, names and lists only: there is nothing that JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Self::to_document`] has written. The error says why this program cannot.
    pub fn from_document(text: &str) -> Result<Self, String> {
        let mut table: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        table.complete()?;
        Ok(table)
    }

    /// Parses the keys, and checks what serde does not.
    fn complete(&mut self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("it is of version {}", self.version));
        }
        for rule in &mut self.routes {
            let template = rule.resource.as_deref();
            let key = template.map(|template| KeyTemplate::parse(template, &rule.path));
            rule.key = key.transpose()?;
            if rule.key.is_none() && rule.mode != Mode::Bypass {
                return Err(format!("its route {} has no key", rule.path));
            }
        }
        let (_, conflicts) = self.router();
        if let Some(conflict) = conflicts.first() {
            return Err(conflict.to_string());
        }
        self.remembered.iter_mut().try_for_each(Self::complete)
    }

    /// The router over its routes, and those that match the same paths.
    fn router(&self) -> (Router, Vec<RouteConflict>) {
        Router::new(self.routes.iter().map(|rule| &rule.path))
    }

    /// The same for equal tables, whatever they remember: 32 hexadecimal digits.
    pub fn digest(&self) -> String {
        yaml::digest(&self.alone().to_document())
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
    /// It may have no key any more, and is refused: for its spelling, or for a part of its key.
    Refused,
    /// A route that only observes takes it now.
    Observed,
    /// No route takes it any more.
    Removed,
    /// A route let it pass unjudged, and it is fenced now.
    Enforced,
    /// No route took it, and one fences it now.
    Added,
}

impl TableChange {
    /// Returns true if an older token may pass because of it, now or with the next change.
    pub fn is_loss(self) -> bool {
        matches!(
            self,
            Self::Key | Self::Format | Self::Unfenced | Self::Refused
        )
    }
}

/// One difference between two tables, by a request with a path that shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub change: TableChange,
    /// The request, and what both tables do with it.
    pub message: String,
}

#[cfg(test)]
mod tests;
