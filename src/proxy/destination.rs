//! The second resource of a request: COPY and MOVE also write what `Destination` names (RFC 4918,
//! 9.8 and 9.9). One token is checked for one key, so both must have the same key. What is fenced
//! is not written by way of another route either.
//!
//! Methods that name other resources in their body or in `Link` pass on no route while one
//! enforces: nothing reads these names.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue};

use super::client::Client;
use super::headers;
use super::refusal::Refusal;
use super::routing_table::{Route, RoutingTable};
use crate::config::Mode;
use crate::routing::method::{NAMING_OTHERS, WITH_DESTINATION};
use crate::routing::{ANY_DESTINATION, Captures, CheckedPath};
use crate::wire::request::is_host;

const DESTINATION: HeaderName = HeaderName::from_static("destination");
/// Where a `Destination` leads.
pub(super) struct Destination<'a> {
    /// `None`: it is a path alone.
    pub authority: Option<&'a str>,
    pub path: CheckedPath,
    pub route: &'a Arc<Route>,
    pub captures: Captures,
}

/// The methods of a request that name a second resource: its own, and those in a field that
/// overrides it. In any case, since an upstream may fold it.
pub(super) fn methods(head: &Parts) -> impl Iterator<Item = &'static str> {
    let overrides = headers::method_overrides(&head.headers);
    let lines = overrides.map(HeaderValue::as_bytes);
    let words = lines.flat_map(|line| line.split(|byte| !byte.is_ascii_alphanumeric()));
    let all = words.chain([head.method.as_str().as_bytes()]);
    let naming = |word: &[u8]| {
        let mut known = WITH_DESTINATION.into_iter().chain(NAMING_OTHERS);
        known.find(|method| word.eq_ignore_ascii_case(method.as_bytes()))
    };
    all.filter_map(naming)
}

/// All that a fenced request writes: its target, and behind a space what it names in `Destination`.
pub(super) fn targets(head: &Parts) -> Cow<'_, str> {
    let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let second = methods(head).next().and(head.headers.get(DESTINATION));
    match second.and_then(|second| second.to_str().ok()) {
        Some(second) => Cow::Owned(format!("{target} {second}")),
        None => Cow::Borrowed(target),
    }
}

/// Checks a request that is not judged, or only observed: what it names beside its target must not
/// be fenced.
///
/// An absolute URI alone is read by all in one way. `CouchDB` reads a name below the database,
/// `OpenStack` Swift a path below the account, others at the root.
pub(super) fn is_unfenced(
    table: &RoutingTable,
    head: &Parts,
    route: &Route,
    client: &Client,
) -> Result<(), Refusal> {
    let mut named = methods(head).peekable();
    if named.peek().is_none() {
        return Ok(());
    }
    if named.any(|method| NAMING_OTHERS.contains(&method)) {
        return Err(Refusal::MethodNotAllowed(String::new()));
    }
    if route.settings.allow.allows(ANY_DESTINATION) {
        return Ok(());
    }
    let Some((Some(_), path)) = text(head)?.and_then(split) else {
        return refuse(
            "must be an absolute URI without query and fragment, because servers read a path in \
             several ways. If what this route's requests name there is never fenced, put `allow: \
             [any-destination]` on it",
        );
    };
    match lookup(table, path, client)? {
        None => refuse("leads to no route"),
        Some((_, route, _)) if route.settings.mode == Mode::Enforce => refuse(
            "names a fenced resource, and the route of this request does not check its token for it",
        ),
        Some(_) => Ok(()),
    }
}

/// Reads `Destination`, and finds its route.
pub(super) fn find<'a>(
    table: &'a RoutingTable,
    head: &'a Parts,
    client: &Client,
) -> Result<Destination<'a>, Refusal> {
    let Some((authority, path)) = text(head)?.and_then(split) else {
        return refuse(
            "must be one absolute URI, or a path without a colon, and have neither query nor \
             fragment",
        );
    };
    let Some((path, route, captures)) = lookup(table, path, client)? else {
        return refuse("leads to no route");
    };
    Ok(Destination {
        authority,
        path,
        route,
        captures,
    })
}

fn text(head: &Parts) -> Result<Option<&str>, Refusal> {
    headers::text(&head.headers, &DESTINATION)
        .map_err(|error| Refusal::Ambiguous(error.to_string()))
}

type Found<'a> = (CheckedPath, &'a Arc<Route>, Captures);

/// The route of a path that `Destination` names, if there is one.
fn lookup<'a>(
    table: &'a RoutingTable,
    path: &str,
    client: &Client,
) -> Result<Option<Found<'a>>, Refusal> {
    let path = CheckedPath::parse(path).map_err(|why| in_destination(&why))?;
    let found = table.find(&path);
    if let Some((route, _)) = &found
        && !client.may_use(&route.settings)
    {
        return Err(Refusal::ClientRefused);
    }
    let allowed = found.as_ref().map(|(route, _)| route.settings.allow);
    match path.oddity_not_in(allowed.unwrap_or_default()) {
        Some(why) => Err(in_destination(&why)),
        None => Ok(found.map(|(route, captures)| (path, route, captures))),
    }
}

/// Authority and path of a Simple-ref (RFC 4918, 8.3).
fn split(text: &str) -> Option<(Option<&str>, &str)> {
    let (authority, path) = match text.split_once("://") {
        _ if text.contains(['?', '#']) || text.starts_with("//") => return None,
        _ if text.starts_with('/') => has_no_colon(text).then_some((None, text))?,
        Some((scheme, rest)) if ["http", "https"].contains(&&*scheme.to_ascii_lowercase()) => {
            let (authority, path) = rest.split_at(rest.find('/')?);
            // Others may read on where this is no host: WHATWG's URL skips a slash too many.
            is_host(authority.as_bytes()).then_some((Some(authority), path))?
        }
        _ => return None,
    };
    Some((authority, path))
}

/// Tomcat's `WebDAV` servlet, and those made of it, read a path from its first colon on.
fn has_no_colon(path: &str) -> bool {
    !path.contains(':') && !path.to_ascii_lowercase().contains("%3a")
}

pub(super) fn refuse<T>(why: &str) -> Result<T, Refusal> {
    Err(Refusal::Ambiguous(format!("Destination {why}.")))
}

fn in_destination(why: &dyn std::fmt::Display) -> Refusal {
    Refusal::Ambiguous(format!("Destination: {why}"))
}
