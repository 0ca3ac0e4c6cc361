//! The second resource of a request: COPY and MOVE also write what `Destination` names (RFC 4918,
//! 9.8 and 9.9). One token is checked for one key, so both must have the same key. Where a route
//! fences nothing, such a request is refused, since what it names may be fenced. An operator can
//! vouch for a route's destinations ([`ANY_DESTINATION`]).
//!
//! Methods that name other resources in their body or in `Link` pass on no route while one
//! enforces: nothing reads these names.

use std::borrow::Cow;
use std::sync::Arc;

use super::headers;
use super::refusal::Refusal;
use super::routing_table::{Route, RoutingTable};
use crate::http1::RequestHead;
use crate::http1::request::is_host;
use crate::routing::method::{NAMING_OTHERS, WITH_DESTINATION};
use crate::routing::{ANY_DESTINATION, Captures, CheckedPath};

const DESTINATION: &str = "destination";
/// `OpenStack` Swift writes the `Destination` of a COPY below this account.
const DESTINATION_ACCOUNT: &str = "destination-account";

/// The `Destination` of a fenced request, as the target's route reads it.
pub(super) struct Destination<'a> {
    /// `None`: it is a path alone.
    pub authority: Option<&'a str>,
    pub path: CheckedPath,
    pub captures: Captures,
}

/// The methods of a request that name a second resource: its own, and those in a field that
/// overrides it. In any case, since an upstream may fold it.
pub(super) fn methods(head: &RequestHead) -> impl Iterator<Item = &'static str> {
    let overrides = headers::method_overrides(&head.fields);
    let words = overrides.flat_map(|line| line.split(|byte| !is_of_a_word(*byte)));
    let all = words.chain([head.method.as_str().as_bytes()]);
    let naming = |word: &[u8]| {
        let mut known = WITH_DESTINATION.into_iter().chain(NAMING_OTHERS);
        known.find(|method| word.eq_ignore_ascii_case(method.as_bytes()))
    };
    all.filter_map(naming)
}

/// True for a byte of a word that may be a method. `payment-link` is one word, and none.
fn is_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

/// All that a fenced request writes: its target, and behind a space each what it names in
/// `Destination` and the methods that override its own.
pub(super) fn targets(head: &RequestHead) -> Cow<'_, str> {
    let target = head.target.as_str();
    let second = methods(head).next().and(head.fields.get(DESTINATION));
    let more = second
        .into_iter()
        .chain(headers::method_overrides(&head.fields));
    more.fold(Cow::Borrowed(target), |all, value| {
        Cow::Owned(format!("{all} {}", String::from_utf8_lossy(value)))
    })
}

/// Refuses a request that names a second resource on a route that does not enforce, unless the
/// operator vouches for the route. The resource may be fenced, and only the operator knows how the
/// server reads `Destination`: at the root, below the account, below the database, or without as many
/// bytes as it cuts from the target.
pub(super) fn is_unfenced(head: &RequestHead, route: &Route) -> Result<(), Refusal> {
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
pub(super) fn is_unchecked(head: &RequestHead, route: &Route) -> Result<bool, Refusal> {
    if !route.settings.allow.allows(ANY_DESTINATION) {
        return Ok(false);
    }
    match text(head, DESTINATION)? {
        Some(_) => Ok(true),
        None => refuse("is missing"),
    }
}

/// Reads `Destination`, which must lead to the target's route: another one may read its tokens, its
/// host and the rest of its key in another way.
pub(super) fn find<'a>(
    table: &RoutingTable,
    head: &'a RequestHead,
    own: &Arc<Route>,
) -> Result<Destination<'a>, Refusal> {
    if text(head, DESTINATION_ACCOUNT)?.is_some() {
        return refuse("must name the account itself, without Destination-Account beside it");
    }
    let Some((authority, path)) = text(head, DESTINATION)?.and_then(split) else {
        return refuse(
            "must be one absolute URI, or a path without a colon, and have neither query nor \
             fragment",
        );
    };
    let path = CheckedPath::parse(path).map_err(|why| in_destination(&why))?;
    let captures = match table.find(&path) {
        None => return refuse("leads to no route"),
        Some((route, captures)) if Arc::ptr_eq(route, own) => captures,
        Some(_) => return refuse("leads to another route than the target"),
    };
    if let Some(why) = path.oddity_not_in(own.settings.allow) {
        return Err(in_destination(&why));
    }
    Ok(Destination {
        authority,
        path,
        captures,
    })
}

fn text<'a>(head: &'a RequestHead, name: &str) -> Result<Option<&'a str>, Refusal> {
    headers::text(&head.fields, name).map_err(|error| Refusal::Ambiguous(error.to_string()))
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
