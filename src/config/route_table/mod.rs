//! [`RouteTable`]: the rules that decide which requests are fenced, and under which keys.
//!
//! The keys name the marks. A table that gives one request another key lets an older token pass,
//! since no mark of that name is on record. So the store keeps the table in force ([`document`]),
//! and a new one is compared with it ([`compare`]) before it serves.
//!
//! Nothing else of a route is in it. Its clients, its deadlines and its idempotency keys decide
//! neither if a request is fenced nor under which key.

mod compare;
mod document;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

use super::judging::{Mode, Reuse, SafeMethods};
use super::settings::{Settings, Unmatched};
use crate::routing::{Allow, KeyTemplate, Pattern, TokenFormat};

pub use compare::{Finding, TableChange};
pub use document::DocumentError;
pub(in crate::config) use paths::SamplePaths;

/// The part of one configuration's routes that decides about keys and fencing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    routes: Vec<Rule>,
    unmatched: Unmatched,
}

/// The table without routes.
impl Default for RouteTable {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            unmatched: Unmatched::Refuse,
        }
    }
}

/// One route of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    mode: Mode,
    /// The unsafe methods that are allowed.
    methods: BTreeSet<String>,
    /// `None` only in bypass mode.
    key: Option<KeyTemplate>,
    safe_methods: SafeMethods,
    token_format: TokenFormat,
    reuse: Reuse,
    allow: Allow,
}

impl RouteTable {
    /// The table of a configuration.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let routes = settings.routes.iter().map(|route| Rule {
            pattern: route.path.clone(),
            mode: route.mode,
            methods: route.methods.clone(),
            key: route.key.clone(),
            safe_methods: route.safe_methods,
            token_format: route.token.format,
            reuse: route.reuse,
            allow: route.allow,
        });
        Self {
            routes: routes.collect(),
            unmatched: settings.unmatched,
        }
    }

    /// The same for all tables that differ in the order of their routes, the names of captures, and
    /// the parts that bypass routes ignore: 32 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        use std::fmt::Write as _;

        let hash = Sha256::digest(self.shape());
        hash.iter().take(16).fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// The text that [`Self::digest`] hashes, one line per route.
    fn shape(&self) -> String {
        let mut lines: Vec<String> = self.routes.iter().map(Rule::shape).collect();
        lines.sort_unstable();
        lines.push(format!("unmatched {:?}", self.unmatched));
        lines.join("\n")
    }
}

impl Rule {
    fn shape(&self) -> String {
        let pattern = self.pattern.shape();
        let allowed: Vec<&str> = self.allowed().collect();
        let Some(key) = self.key.as_ref().filter(|_| self.mode != Mode::Bypass) else {
            return format!("{pattern} bypass {allowed:?}");
        };
        format!(
            "{pattern} {mode} {key:?} {methods:?} {safe:?} {format} {reuse:?} {allowed:?}",
            mode = self.mode.as_str(),
            key = key.shape(),
            methods = self.methods,
            safe = self.safe_methods,
            format = self.token_format.as_str(),
            reuse = self.reuse,
        )
    }

    /// The spellings that are allowed.
    fn allowed(&self) -> impl Iterator<Item = &'static str> {
        let known = Allow::NAMES.iter().copied();
        known.filter(|name| self.allow.allows(name))
    }
}
