//! Phase 1: finds the class of a request from its head alone, without I/O.
//!
//! Requests are refused here if they are malformed or ambiguous, if no route matches, or if their
//! token does not parse. The others are passed unfenced, observed, claimed, or fenced.

use std::sync::Arc;

use http::{Method, Version};

use super::client::Client;
use super::destination;
use super::headers;
use super::jsonkey;
use super::refusal::Refusal;
use super::routing_table::{Route, RoutingTable};
use super::tunnel;
use crate::config::{Mode, RouteSettings, SafeMethods, Unmatched};
use crate::http1::names::HOST;
use crate::http1::{Fields, RequestHead};
use crate::routing::{Allow, CheckedPath, ResourceKey, SAFE_METHODS, Source, Token, query_value};

/// The class of a request.
pub(crate) enum Class {
    /// Passed without being judged. `upgrade`: a tunnel that it asks for may be opened.
    Pass { upgrade: bool },
    /// To be judged.
    Fenced(Fenced),
    /// No route matches, and routes only observe: forwarded, and refused once a route enforces.
    Unlisted,
    /// Observe mode: forwarded even if it would be refused.
    Observed(Arc<Route>, Result<Fenced, Refusal>),
    /// A claim.
    Claim,
}

/// A request that carries a token for a route.
pub(crate) struct Fenced {
    pub route: Arc<Route>,
    pub token: Token,
    pub path: CheckedPath,
    /// The method can change something: its token is spent under `reuse: once`, and it gets a key.
    pub unsafe_method: bool,
}

/// Classifies a request by its head. `found` becomes its route, for refused requests too; it stays
/// `None` if none matches, and for claims.
pub(crate) fn classify(
    table: &RoutingTable,
    head: &RequestHead,
    client: &Client,
    found: &mut Option<Arc<Route>>,
) -> Result<Class, Refusal> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return Err(Refusal::MethodNotAllowed(String::new()));
    }
    if !head.target.path().starts_with('/') {
        let why = "The request target names no path (asterisk-form or authority-form).";
        return Err(Refusal::ambiguous(why));
    }
    // HTTP/1.0 does without (RFC 9112, section 3.2), and so does any key that is not made of it.
    if head.version != Version::HTTP_10 {
        host(head)?;
    }
    let settings = &table.settings;
    if let Some(claim) = settings.claim()
        && claim.path.0 == head.target.path()
    {
        if head.method != Method::POST {
            return Err(Refusal::MethodNotAllowed("POST".into()));
        }
        return Ok(Class::Claim);
    }
    let path = match CheckedPath::parse(head.target.path()) {
        Ok(path) => path,
        Err(_) if !table.strict => return Ok(Class::Pass { upgrade: true }),
        Err(ambiguity) => return Err(Refusal::ambiguous(ambiguity)),
    };
    let Some(route) = table.find(&path) else {
        if table.strict {
            one_path(Allow::default(), &path)?;
        }
        let observes = |route: &RouteSettings| route.mode == Mode::Observe;
        return if settings.unmatched == Unmatched::Refuse {
            Err(Refusal::NoRoute)
        } else if is_safe(&head.method, &head.fields) {
            Ok(Class::Pass { upgrade: false })
        } else if !table.strict && settings.routes.iter().any(observes) {
            Ok(Class::Unlisted)
        } else {
            Err(Refusal::NoRoute)
        };
    };
    *found = Some(Arc::clone(route));
    let settings = &route.settings;
    // Access control is not fencing: it applies in every mode, and before the route's other checks.
    if !client.is_one_of(&settings.require_client) {
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
    match settings.mode {
        Mode::Bypass => Ok(Class::Pass { upgrade: true }),
        Mode::Observe => Ok(match judge(table, route, head, path).transpose() {
            Some(judged) => Class::Observed(Arc::clone(route), judged),
            None => Class::Pass { upgrade: true },
        }),
        Mode::Enforce => Ok(match judge(table, route, head, path)? {
            Some(fenced) => Class::Fenced(fenced),
            None => Class::Pass { upgrade: false },
        }),
    }
}

/// The path has one reading on a route that allows this.
fn one_path(allow: Allow, path: &CheckedPath) -> Result<(), Refusal> {
    let oddity = path.oddity_not_in(allow);
    oddity.map_or(Ok(()), |oddity| Err(Refusal::ambiguous(oddity)))
}

/// The path has one reading, and no header field names another one in its place.
fn one_target(allow: Allow, head: &RequestHead, path: &CheckedPath) -> Result<(), Refusal> {
    one_path(allow, path)?;
    match headers::path_override(&head.fields) {
        Some(name) => Err(Refusal::Ambiguous(format!(
            "Some servers take the path in {name} for the request's own; leave it out."
        ))),
        None => Ok(()),
    }
}

/// The one host a request is for (RFC 9112 section 3.2, RFC 9113 section 8.3.1).
fn host(head: &RequestHead) -> Result<&[u8], Refusal> {
    host_of(&head.fields, head.target.authority.as_deref())
}

/// The same of a head's parts.
pub(crate) fn host_of<'a>(
    fields: &'a Fields,
    authority: Option<&'a [u8]>,
) -> Result<&'a [u8], Refusal> {
    let mut lines = fields.get_all(HOST);
    let first = lines.next();
    let why = match (first, authority) {
        _ if lines.next().is_some() => "There is more than one Host.",
        (None, None) => "There is no Host.",
        (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
            "Host and the target's authority differ."
        }
        (Some(host), None) | (_, Some(host)) => return Ok(host),
    };
    Err(Refusal::ambiguous(why))
}

/// The judgement of a route that does not bypass: `None` passes unfenced.
fn judge(
    table: &RoutingTable,
    route: &Arc<Route>,
    head: &RequestHead,
    path: CheckedPath,
) -> Result<Option<Fenced>, Refusal> {
    let settings = &route.settings;
    if !table.strict {
        one_target(settings.allow, head, &path)?;
    }
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
    let token = match token(route, head) {
        Err(Refusal::TokenRequired) if safe && settings.safe_methods == SafeMethods::Optional => {
            return Ok(None);
        }
        token => token?,
    };
    let fenced = Fenced {
        route: Arc::clone(route),
        token,
        path,
        unsafe_method: !safe,
    };
    // The parts which decide about the request mean the same to the upstream.
    if route.template()?.uses_json() {
        headers::json(&head.fields)?;
    }
    if let Some(idempotency) = settings.idempotency()
        && !safe
    {
        headers::single(&head.fields, &idempotency.header.0)?;
    }
    same_key_elsewhere(table, &fenced, head)?;
    Ok(Some(fenced))
}

/// Checks that what a fenced request names beside its target has the same key.
fn same_key_elsewhere(
    table: &RoutingTable,
    fenced: &Fenced,
    head: &RequestHead,
) -> Result<(), Refusal> {
    // None is no host that a Destination can name.
    let host = host(head).unwrap_or_default();
    let Some(path) = destination::find(table, head, &fenced.route, host)? else {
        return Ok(());
    };
    let elsewhere = |source: &Source| matches!(source, Source::Query(_) | Source::Json(_));
    if fenced.route.template()?.parts().any(elsewhere) {
        return destination::refuse(
            "has neither query nor body, and the resource key is made of one",
        );
    }
    let named = Fenced {
        route: Arc::clone(&fenced.route),
        path,
        ..*fenced
    };
    if named.key(head, None)? == fenced.key(head, None)? {
        return Ok(());
    }
    destination::refuse(
        "names another resource than the target, and a token is for one resource: write each by a \
         request of its own, or give both one key",
    )
}

/// The token of a request, in its route's format.
pub(super) fn token(route: &Route, head: &RequestHead) -> Result<Token, Refusal> {
    let value = headers::fencing_token(&head.fields)
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?;
    let value = value.ok_or(Refusal::TokenRequired)?;
    let format = route.settings.token.format;
    format.parse(value).map_err(Refusal::MalformedToken)
}

fn is_safe_method(method: &Method) -> bool {
    SAFE_METHODS.contains(&method.as_str())
}

/// A safe method that no header overrides.
fn is_safe(method: &Method, fields: &Fields) -> bool {
    is_safe_method(method) && headers::method_overrides(fields).next().is_none()
}

impl Fenced {
    /// Derives the resource key. `body`: the whole of it, if the template may need it.
    pub(crate) fn key(
        &self,
        head: &RequestHead,
        body: Option<&[u8]>,
    ) -> Result<ResourceKey, Refusal> {
        let refused = |why| Refusal::Ambiguous(format!("The resource key: {why}"));
        let template = self.route.template()?;
        let json = body.filter(|_| template.uses_json());
        let json = json.map(|body| jsonkey::members(body, &template.json_paths()));
        let mut json = json.transpose().map_err(refused)?.into_iter().flatten();
        let key = template.render(&self.path, &mut |source| {
            let text = match source {
                Source::Host => {
                    let text = host(head).ok().and_then(|host| str::from_utf8(host).ok());
                    Some(text.ok_or("there is no single Host in UTF-8")?)
                }
                Source::Header(name) => {
                    headers::text(&head.fields, name).map_err(|error| error.to_string())?
                }
                Source::Query(name) => {
                    return query_value(head.target.query().unwrap_or_default(), name);
                }
                Source::Json(_) => return Ok(json.next().flatten()),
                Source::Path(_) | Source::WholePath => None,
            };
            Ok(text.map(str::to_owned))
        });
        key.map_err(refused)
    }
}
