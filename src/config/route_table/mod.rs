//! [`RouteTable`]: the rules that decide which requests are fenced, and under which keys.
//!
//! The keys name the marks. A table that gives one request another key lets an older token pass,
//! since no mark of that name is on record. So the store keeps the table in force as JSON, and a new
//! one is compared with it ([`compare`]) before it serves.
//!
//! Nothing else of a route is in it. Its clients, its deadlines and its idempotency keys decide
//! neither if a request is fenced nor under which key.

mod compare;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::judging::{Mode, Reuse, SafeMethods};
use super::settings::{Settings, Unmatched};
use crate::routing::{Allow, KeyTemplate, Pattern, RouteConflict, Router, TokenFormat};

pub use compare::{Finding, TableChange};
pub(in crate::config) use paths::SamplePaths;

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
    path: String,
    mode: Mode,
    /// The unsafe methods that are allowed.
    methods: BTreeSet<String>,
    /// `None` only in bypass mode.
    resource: Option<String>,
    safe_methods: SafeMethods,
    token_format: String,
    reuse: Reuse,
    allow: Vec<String>,
    /// Parsed from `path`.
    #[serde(skip)]
    pattern: Pattern,
    /// Parsed from `resource`.
    #[serde(skip)]
    key: Option<KeyTemplate>,
    /// Parsed from `allow`.
    #[serde(skip)]
    allowed: Allow,
}

impl RouteTable {
    /// The table of a configuration.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let routes = settings.routes.iter().map(|route| Rule {
            path: route.path.as_str().to_owned(),
            mode: route.mode,
            methods: route.methods.clone(),
            resource: route.key.as_ref().map(|key| key.as_str().to_owned()),
            safe_methods: route.safe_methods,
            token_format: route.token.format.as_str().to_owned(),
            reuse: route.reuse,
            allow: allowed(route.allow).collect(),
            pattern: route.path.clone(),
            key: route.key.clone(),
            allowed: route.allow,
        });
        Self {
            version: VERSION,
            unmatched: settings.unmatched,
            routes: routes.collect(),
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
            rule.pattern = Pattern::parse(&rule.path)?;
            let template = rule.resource.as_deref();
            let key = template.map(|template| KeyTemplate::parse(template, &rule.pattern));
            rule.key = key.transpose()?;
            if let Some(name) = rule.allow.iter().find(|name| !rule.allowed.set(name)) {
                return Err(format!("it allows {name:?}"));
            }
            let mut formats = TokenFormat::ALL.iter();
            if formats.all(|format| format.as_str() != rule.token_format) {
                return Err(format!("it has a token format {:?}", rule.token_format));
            }
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
        Router::new(self.routes.iter().map(|rule| &rule.pattern))
    }

    /// The same for equal tables: 32 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let hash = Sha256::digest(self.to_document());
        let first = hash.iter().take(16);
        let number = first.fold(0, |number, byte| number << 8 | u128::from(*byte));
        format!("{number:032x}")
    }
}

/// The spellings that are allowed, by their names.
fn allowed(allow: Allow) -> impl Iterator<Item = String> {
    let names = Allow::NAMES.iter().copied();
    names
        .filter(move |name| allow.allows(name))
        .map(str::to_owned)
}
