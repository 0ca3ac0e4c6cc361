//! The table as the store keeps it: one JSON document, which later versions can read.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{RouteTable, Rule};
use crate::config::judging::{Mode, Reuse, SafeMethods};
use crate::config::settings::Unmatched;
use crate::routing::{Allow, KeyTemplate, Pattern, Router, TokenFormat};

/// Goes up with every change that an older program would read in another way, and with every change
/// of the keys that are made of the same patterns and templates.
const VERSION: u32 = 1;

/// Unknown fields are an error: a later version may have meant by them what changes keys.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TableDocument {
    version: u32,
    unmatched: Unmatched,
    routes: Vec<RouteDocument>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RouteDocument {
    path: String,
    mode: Mode,
    methods: BTreeSet<String>,
    resource: Option<String>,
    safe_methods: SafeMethods,
    token_format: String,
    reuse: Reuse,
    allow: Vec<String>,
}

/// A table on record that this program cannot read.
#[derive(Debug)]
pub struct DocumentError(String);

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DocumentError {}

impl From<String> for DocumentError {
    fn from(message: String) -> Self {
        Self(message)
    }
}

impl RouteTable {
    /// The table as JSON. Equal tables give equal texts.
    #[must_use]
    pub fn to_document(&self) -> String {
        let routes = self.routes.iter().map(|rule| RouteDocument {
            path: rule.pattern.as_str().to_owned(),
            mode: rule.mode,
            methods: rule.methods.clone(),
            resource: rule.key.as_ref().map(|key| key.as_str().to_owned()),
            safe_methods: rule.safe_methods,
            token_format: rule.token_format.as_str().to_owned(),
            reuse: rule.reuse,
            allow: rule.allowed().map(str::to_owned).collect(),
        });
        let document = TableDocument {
            version: VERSION,
            unmatched: self.unmatched,
            routes: routes.collect(),
        };
        // Text, names and lists only: there is nothing that JSON could not hold.
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// Reads what [`Self::to_document`] has written.
    pub fn from_document(text: &str) -> Result<Self, DocumentError> {
        let document: TableDocument =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        if document.version != VERSION {
            let message = format!("it is of version {}", document.version);
            return Err(message.into());
        }
        let routes: Result<Vec<Rule>, DocumentError> =
            document.routes.into_iter().map(Rule::read).collect();
        let table = Self {
            routes: routes?,
            unmatched: document.unmatched,
        };
        let (_, conflicts) = Router::new(table.routes.iter().map(|rule| &rule.pattern));
        match conflicts.first() {
            Some(conflict) => Err(conflict.to_string().into()),
            None => Ok(table),
        }
    }
}

impl Rule {
    fn read(document: RouteDocument) -> Result<Self, DocumentError> {
        let pattern = Pattern::parse(&document.path)?;
        let key = document.resource.as_deref();
        let key = key.map(|template| KeyTemplate::parse(template, &pattern));
        let key = key.transpose()?;
        if key.is_none() && document.mode != Mode::Bypass {
            return Err(format!("its route {pattern} has no key").into());
        }
        let token_format = TokenFormat::ALL
            .into_iter()
            .find(|format| format.as_str() == document.token_format)
            .ok_or_else(|| format!("it has a token format {:?}", document.token_format))?;
        let mut allow = Allow::default();
        if let Some(name) = document.allow.iter().find(|name| !allow.set(name)) {
            return Err(format!("it allows {name:?}").into());
        }
        Ok(Self {
            pattern,
            mode: document.mode,
            methods: document.methods,
            key,
            safe_methods: document.safe_methods,
            token_format,
            reuse: document.reuse,
            allow,
        })
    }
}
