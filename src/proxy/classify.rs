//! Phase 1: finds the class of a request from its head alone, without I/O.
//!
//! Requests are refused here if they are malformed or ambiguous, if no route matches, or if their
//! token does not parse. The others are passed unfenced, observed, claimed, or fenced.

use std::sync::Arc;

use http::Method;

use super::client::Client;
use super::destination;
use super::headers::{self, FieldError};
use super::refusal::Refusal;
use super::routing_table::{Route, RoutingTable};
use super::tunnel;
use crate::config::{Mode, SafeMethods, Unmatched};
use crate::http1::Fields;
use crate::http1::RequestHead;
use crate::http1::names::HOST;
use crate::routing::method::SAFE_METHODS;
use crate::routing::{
    Allow, Captures, CheckedPath, KeyTemplate, ResourceKey, Source, Token, query_value,
};

/// The class of a request.
pub(crate) enum Class {
    /// Passed without being judged. `upgrade`: its tunnel may be opened.
    Pass { upgrade: bool },
    /// To be judged.
    Fenced(Fenced),
    /// Observe mode: forwarded even if it would be refused.
    Observed(Arc<Route>, Result<Fenced, Refusal>),
    /// A claim.
    Claim,
    /// Refused.
    Refused(Refusal),
}

/// The series that a request is counted in.
pub(crate) enum Scope {
    /// `None`: no route matched.
    Route(Option<Arc<Route>>),
    Claims,
}

impl Scope {
    pub(crate) fn route(&self) -> Option<&Arc<Route>> {
        match self {
            Self::Route(route) => route.as_ref(),
            Self::Claims => None,
        }
    }
}

/// A request that carries a token for a route.
pub(crate) struct Fenced {
    pub route: Arc<Route>,
    pub token: Token,
    pub path: CheckedPath,
    pub captures: Captures,
    /// The method can change something: its token is spent under `reuse: once`, and it gets a key.
    pub unsafe_method: bool,
}

/// Classifies a request by its head.
pub(crate) fn classify(
    table: &RoutingTable,
    head: &RequestHead,
    client: &Client,
) -> (Scope, Class) {
    let mut scope = Scope::Route(None);
    let class = class_of(table, head, client, &mut scope).unwrap_or_else(Class::Refused);
    (scope, class)
}

fn class_of(
    table: &RoutingTable,
    head: &RequestHead,
    client: &Client,
    scope: &mut Scope,
) -> Result<Class, Refusal> {
    whole_head(head)?;
    let upgrade = || tunnel::wanted(&head.fields);
    if let Some(claim) = &table.claim
        && claim.path == head.target.path()
    {
        if head.method != Method::POST {
            return Err(Refusal::MethodNotAllowed("POST".into()));
        }
        *scope = Scope::Claims;
        return Ok(Class::Claim);
    }
    let path = match CheckedPath::parse(head.target.path()) {
        Ok(path) => path,
        Err(_) if !table.strict => return Ok(Class::Pass { upgrade: upgrade() }),
        Err(ambiguity) => return Err(Refusal::Ambiguous(ambiguity.to_string())),
    };
    let Some((route, captures)) = table.find(&path) else {
        return unmatched(table, head, &path);
    };
    *scope = Scope::Route(Some(Arc::clone(route)));
    let settings = &route.settings;
    // Access control is not fencing: it applies in every mode, and before the route's other checks.
    if !client.may_use(settings) {
        return Err(Refusal::ClientRefused);
    }
    if table.strict {
        // On bypass routes too: what a bypass route reads as one segment may be an enforced path to
        // the upstream.
        one_target(settings.allow, head, &path)?;
        // A resource that is fenced is not written by way of a route that does not fence it.
        if settings.mode != Mode::Enforce {
            destination::is_unfenced(head, route)?;
        }
    }
    if settings.mode == Mode::Bypass {
        return Ok(Class::Pass { upgrade: upgrade() });
    }
    let judged = || {
        if !table.strict {
            one_target(settings.allow, head, &path)?;
        }
        let judged = judge(route, head, path, captures)?;
        if let Some(fenced) = &judged {
            same_key_elsewhere(table, fenced, head)?;
        }
        Ok(judged)
    };
    match (settings.mode, judged()) {
        (Mode::Observe, judged) => Ok(match judged.transpose() {
            Some(judged) => Class::Observed(Arc::clone(route), judged),
            None => Class::Pass { upgrade: upgrade() },
        }),
        (_, judged) => Ok(match judged? {
            Some(fenced) => Class::Fenced(fenced),
            None => Class::Pass { upgrade: false },
        }),
    }
}

/// The rules for requests of every route.
pub(super) fn whole_head(head: &RequestHead) -> Result<(), Refusal> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return Err(Refusal::MethodNotAllowed(String::new()));
    }
    if !head.target.path().starts_with('/') {
        let why = "The request target names no path (asterisk-form or authority-form).";
        return Err(Refusal::Ambiguous(why.into()));
    }
    host(head).map(|_| ())
}

fn ambiguous(error: &FieldError) -> Refusal {
    Refusal::Ambiguous(error.to_string())
}

/// The path has one reading, and no header field names another one in its place.
fn one_target(allow: Allow, head: &RequestHead, path: &CheckedPath) -> Result<(), Refusal> {
    if let Some(ambiguity) = path.oddity_not_in(allow) {
        return Err(Refusal::Ambiguous(ambiguity.to_string()));
    }
    match headers::path_override(&head.fields) {
        Some(name) => Err(Refusal::Ambiguous(format!(
            "Some servers take the path in {name} for the request's own; leave it out."
        ))),
        None => Ok(()),
    }
}

/// The one host a request is for (RFC 9112 section 3.2, RFC 9113 section 8.3.1).
pub(crate) fn host(head: &RequestHead) -> Result<&[u8], Refusal> {
    host_of(&head.fields, head.target.authority())
}

/// The same of a head's parts.
pub(crate) fn host_of<'a>(
    fields: &'a Fields,
    authority: Option<&'a [u8]>,
) -> Result<&'a [u8], Refusal> {
    let mut lines = fields.get_all(HOST);
    let first = lines.next();
    if lines.next().is_some() {
        return Err(Refusal::Ambiguous("There is more than one Host.".into()));
    }
    match (first, authority) {
        (None, None) => Err(Refusal::Ambiguous("There is no Host.".into())),
        (Some(host), None) => Ok(host),
        (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
            let why = "Host and the target's authority differ.";
            Err(Refusal::Ambiguous(why.into()))
        }
        (_, Some(authority)) => Ok(authority),
    }
}

fn unmatched(
    table: &RoutingTable,
    head: &RequestHead,
    path: &CheckedPath,
) -> Result<Class, Refusal> {
    if table.strict
        && let Some(ambiguity) = path.oddity_not_in(Allow::default())
    {
        return Err(Refusal::Ambiguous(ambiguity.to_string()));
    }
    if table.unmatched == Unmatched::SafeOnly && is_safe(&head.method, &head.fields) {
        return Ok(Class::Pass { upgrade: false });
    }
    Err(Refusal::NoRoute)
}

/// The judgement of an enforcing route about a request with [`one_target`]: `None` passes unfenced.
fn judge(
    route: &Arc<Route>,
    head: &RequestHead,
    path: CheckedPath,
    captures: Captures,
) -> Result<Option<Fenced>, Refusal> {
    let settings = &route.settings;
    // The content of a tunnel has no tokens.
    if tunnel::wanted(&head.fields) {
        return Err(Refusal::UpgradeRefused);
    }
    let safe = is_safe(&head.method, &head.fields);
    if safe && settings.safe_methods == SafeMethods::Ignored {
        return Ok(None);
    }
    let refused = |method: &str| !settings.methods.contains(method);
    if (!is_safe_method(&head.method) && refused(head.method.as_str()))
        || destination::methods(head).any(refused)
    {
        let allowed: Vec<&str> = settings.methods.iter().map(String::as_str).collect();
        return Err(Refusal::MethodNotAllowed(allowed.join(", ")));
    }
    let token = headers::fencing_token(&head.fields)
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?;
    let Some(token) = token else {
        return if safe && settings.safe_methods == SafeMethods::Optional {
            Ok(None)
        } else {
            Err(Refusal::TokenRequired)
        };
    };
    let token = settings
        .token_format
        .parse(token)
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?;
    one_reading(route, head, !safe)?;
    Ok(Some(Fenced {
        route: Arc::clone(route),
        token,
        path,
        captures,
        unsafe_method: !safe,
    }))
}

/// Checks that what a fenced request names beside its target has the same key.
fn same_key_elsewhere(
    table: &RoutingTable,
    fenced: &Fenced,
    head: &RequestHead,
) -> Result<(), Refusal> {
    let names_none = destination::methods(head).next().is_none();
    if names_none || destination::is_unchecked(head, &fenced.route)? {
        return Ok(());
    }
    let found = destination::find(table, head, &fenced.route)?;
    let host = host(head)?;
    if found
        .authority
        .is_some_and(|authority| !host.eq_ignore_ascii_case(authority.as_bytes()))
    {
        return destination::refuse("is not on the host of this request");
    }
    let named = Fenced {
        route: Arc::clone(&fenced.route),
        path: found.path,
        captures: found.captures,
        ..*fenced
    };
    let parts = fenced
        .route
        .settings
        .key
        .iter()
        .flat_map(KeyTemplate::parts);
    if parts
        .into_iter()
        .any(|source| matches!(source, Source::Query(_) | Source::Json(_)))
    {
        let why = "has neither query nor body, and the resource key is made of one";
        return destination::refuse(why);
    }
    if named.key(head, None)? == fenced.key(head, None)? {
        return Ok(());
    }
    destination::refuse(
        "names another resource than the target, and a token is for one resource: write each by a \
         request of its own, or give both one key",
    )
}

/// Checks that the parts which decide about a fenced request mean the same to the upstream.
fn one_reading(route: &Route, head: &RequestHead, unsafe_method: bool) -> Result<(), Refusal> {
    let settings = &route.settings;
    if settings.key.as_ref().is_some_and(KeyTemplate::uses_json) {
        headers::json(&head.fields).map_err(|error| ambiguous(&error))?;
    }
    match &settings.idempotency {
        Some(idempotency) if unsafe_method => headers::single(&head.fields, &idempotency.header)
            .map(|_| ())
            .map_err(|error| ambiguous(&error)),
        _ => Ok(()),
    }
}

fn is_safe_method(method: &Method) -> bool {
    SAFE_METHODS.contains(&method.as_str())
}

/// A safe method that no header overrides.
pub(crate) fn is_safe(method: &Method, fields: &Fields) -> bool {
    is_safe_method(method) && headers::method_overrides(fields).next().is_none()
}

impl Fenced {
    /// The route's template. Every route that fences has one.
    pub(crate) fn template(&self) -> Result<&KeyTemplate, Refusal> {
        self.route
            .settings
            .key
            .as_ref()
            .ok_or_else(|| Refusal::Ambiguous("This route has no resource key.".into()))
    }

    /// Derives the resource key. `body`: the whole body, where the template reads it.
    pub(crate) fn key(
        &self,
        head: &RequestHead,
        body: Option<&[u8]>,
    ) -> Result<ResourceKey, Refusal> {
        let wanted = self.template()?.json_paths();
        let json = match body {
            Some(body) if !wanted.is_empty() => json_members(body, &wanted)?,
            _ => Vec::new(),
        };
        self.key_with(head, json)
    }

    /// Derives the resource key. `json`: what [`json_members`] has found for the template's paths.
    pub(super) fn key_with(
        &self,
        head: &RequestHead,
        json: Vec<Option<String>>,
    ) -> Result<ResourceKey, Refusal> {
        let mut json = json.into_iter();
        self.template()?
            .render(&self.captures, &self.path, &mut |source| match source {
                Source::Host => {
                    let host = host(head).map_err(|_| "there is no single Host".to_owned())?;
                    text(host, "Host").map(|host| Some(host.to_owned()))
                }
                Source::Header(name) => header_part(&head.fields, name),
                Source::Query(name) => query_value(head.target.query().unwrap_or_default(), name),
                Source::Json(_) => Ok(json.next().flatten()),
                Source::Path(_) | Source::WholePath => Ok(None),
            })
            .map_err(|error| Refusal::Ambiguous(format!("The resource key: {error}")))
            .and_then(|key| short(key, self.route.settings.key_bytes))
    }
}

/// Refuses a key that is longer than `limits.key_bytes`.
pub(super) fn short(key: ResourceKey, most: usize) -> Result<ResourceKey, Refusal> {
    let bytes = key.as_str().len();
    if bytes <= most {
        return Ok(key);
    }
    Err(Refusal::Ambiguous(format!(
        "The resource key has {bytes} bytes, and {most} is the most here (limits.key_bytes)."
    )))
}

/// The members of the body at these paths.
pub(super) fn json_members(
    body: &[u8],
    wanted: &[Vec<String>],
) -> Result<Vec<Option<String>>, Refusal> {
    let wanted: Vec<&[String]> = wanted.iter().map(Vec::as_slice).collect();
    super::jsonkey::members(body, &wanted)
        .map_err(|error| Refusal::Ambiguous(format!("The resource key: {error}")))
}

/// A header's one value (see [`headers::text`] for what is refused).
fn header_part(fields: &Fields, name: &str) -> Result<Option<String>, String> {
    let value = headers::text(fields, name).map_err(|error| error.to_string())?;
    Ok(value.map(|value| value.trim_matches([' ', '\t']).to_owned()))
}

fn text<'a>(value: &'a [u8], name: &str) -> Result<&'a str, String> {
    std::str::from_utf8(value)
        .map_err(|_| format!("the header {name} is not UTF-8; send it in UTF-8"))
}
