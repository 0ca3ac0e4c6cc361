//! The second resource of a request: COPY and MOVE also write what `Destination` names (RFC 4918,
//! 9.8 and 9.9). One token is checked for one key, so both must have the same key. Where a route
//! fences nothing, such a request is refused, since what it names may be fenced. An operator can
//! vouch for a route's destinations ([`ANY_DESTINATION`]).
//!
//! Methods that name other resources in their body or in `Link` pass on no route while one
//! enforces: nothing reads these names.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue};

use super::client::Client;
use super::headers::{self, FieldError};
use super::refusal::Refusal;
use super::routing_table::{Route, RoutingTable};
use crate::routing::method::{NAMING_OTHERS, WITH_DESTINATION};
use crate::routing::{ANY_DESTINATION, Captures, CheckedPath};
use crate::wire::request::is_host;

const DESTINATION: HeaderName = HeaderName::from_static("destination");
/// `OpenStack` Swift writes the `Destination` of a COPY below this account.
const DESTINATION_ACCOUNT: HeaderName = HeaderName::from_static("destination-account");
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
    let words = lines.flat_map(|line| line.split(|byte| !is_of_a_word(*byte)));
    let all = words.chain([head.method.as_str().as_bytes()]);
    let naming = |word: &[u8]| {
        let mut known = WITH_DESTINATION.into_iter().chain(NAMING_OTHERS);
        known.find(|method| word.eq_ignore_ascii_case(method.as_bytes()))
    };
    all.filter_map(naming)
}

/// `payment-link` is no method.
fn is_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

/// All that a fenced request writes: its target, and behind a space each what it names in
/// `Destination` and the methods that override its own.
pub(super) fn targets(head: &Parts) -> Cow<'_, str> {
    let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let second = methods(head).next().and(head.headers.get(DESTINATION));
    let more = second
        .into_iter()
        .chain(headers::method_overrides(&head.headers));
    more.fold(Cow::Borrowed(target), |all, value| {
        Cow::Owned(format!(
            "{all} {}",
            String::from_utf8_lossy(value.as_bytes())
        ))
    })
}

/// Checks a request that is not judged, or only observed: what it names beside its target may be
/// fenced. Servers read a `Destination` at the root, below the account, below the database, or without
/// as many bytes as they cut from the target, so that only the operator knows.
pub(super) fn is_unfenced(head: &Parts, route: &Route) -> Result<(), Refusal> {
    let mut named = methods(head).peekable();
    if named.peek().is_none() {
        return Ok(());
    }
    if named.any(|method| NAMING_OTHERS.contains(&method)) {
        return Err(Refusal::MethodNotAllowed(String::new()));
    }
    if is_unchecked(head, route)? {
        return Ok(());
    }
    refuse(
        "may name what another route fences, and this route fences nothing. If its requests never \
         name such a thing, put `allow: [any-destination]` on it",
    )
}

/// Returns whether the operator vouches for what `Destination` names.
pub(super) fn is_unchecked(head: &Parts, route: &Route) -> Result<bool, Refusal> {
    if !route.settings.allow.allows(ANY_DESTINATION) {
        return Ok(false);
    }
    match text(head)? {
        Some(_) => Ok(true),
        None => refuse("is missing"),
    }
}

/// Reads `Destination`, and finds its route.
pub(super) fn find<'a>(
    table: &'a RoutingTable,
    head: &'a Parts,
    client: &Client,
) -> Result<Destination<'a>, Refusal> {
    let ambiguous = |error: FieldError| Refusal::Ambiguous(error.to_string());
    let account = headers::text(&head.headers, &DESTINATION_ACCOUNT).map_err(ambiguous)?;
    if account.is_some() {
        return refuse("must name the account itself, without Destination-Account beside it");
    }
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
