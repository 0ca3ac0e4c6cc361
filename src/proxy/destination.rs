//! The second resource of a request: COPY and MOVE also write what `Destination` names (RFC 4918,
//! 9.8 and 9.9). One token is checked for one key, so both must have the same key. Where a route
//! fences nothing, such a request is refused, since what it names may be fenced. An operator can
//! vouch for a route's destinations ([`ANY_DESTINATION`]).
//!
//! Methods that name other resources in their body or in `Link` pass on no route while one
//! enforces: nothing reads these names.

use std::sync::Arc;

use super::headers;
use super::refusal::Refusal;
use super::routing_table::{Route, RoutingTable};
use crate::http1::RequestHead;
use crate::http1::request::is_host;
use crate::routing::{ANY_DESTINATION, Ambiguity, CheckedPath, NAMING_OTHERS, WITH_DESTINATION};

const DESTINATION: &str = "destination";
/// `OpenStack` Swift writes the `Destination` of a COPY below this account.
const DESTINATION_ACCOUNT: &str = "destination-account";

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
pub(super) fn targets(head: &RequestHead) -> String {
    let second = methods(head).next().and(head.fields.get(DESTINATION));
    let overrides = headers::method_overrides(&head.fields);
    let more = second.into_iter().chain(overrides);
    more.fold(head.target.as_str().to_owned(), |all, value| {
        all + " " + &String::from_utf8_lossy(value)
    })
}

/// Refuses a request that names a second resource on a route that does not enforce, unless the
/// operator vouches for the route. The resource may be fenced, and only the operator knows how the
/// server reads `Destination`: at the root, below the account, below the database, or without as many
/// bytes as it cuts from the target.
pub(super) fn is_unfenced(head: &RequestHead, route: &Route) -> Result<(), Refusal> {
    if methods(head).next().is_none() {
        return Ok(());
    }
    if methods(head).any(|method| NAMING_OTHERS.contains(&method)) {
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
fn is_unchecked(head: &RequestHead, route: &Route) -> Result<bool, Refusal> {
    if !route.settings.allow.allows(ANY_DESTINATION) {
        return Ok(false);
    }
    match headers::text(&head.fields, DESTINATION)? {
        Some(_) => Ok(true),
        None => refuse("is missing"),
    }
}

/// The path in the `Destination` of a fenced request, which must lead to the target's route:
/// another one may read its tokens, its host and the rest of its key in another way. `None`: the
/// request names no second resource, or the operator vouches for it.
pub(super) fn find(
    table: &RoutingTable,
    head: &RequestHead,
    own: &Arc<Route>,
    host: &[u8],
) -> Result<Option<CheckedPath>, Refusal> {
    if methods(head).next().is_none() || is_unchecked(head, own)? {
        return Ok(None);
    }
    if headers::text(&head.fields, DESTINATION_ACCOUNT)?.is_some() {
        return refuse("must name the account itself, without Destination-Account beside it");
    }
    let Some((authority, path)) = headers::text(&head.fields, DESTINATION)?.and_then(split) else {
        return refuse(
            "must be one absolute URI, or a path without a colon, and have neither query nor \
             fragment",
        );
    };
    if authority.is_some_and(|authority| !host.eq_ignore_ascii_case(authority.as_bytes())) {
        return refuse("is not on the host of this request");
    }
    let ambiguous = |why: Ambiguity| Refusal::Ambiguous(format!("Destination: {why}"));
    let path = CheckedPath::parse(path).map_err(ambiguous)?;
    if !table
        .find(&path)
        .is_some_and(|route| Arc::ptr_eq(route, own))
    {
        return refuse("does not lead to the route of the target");
    }
    match path.oddity_not_in(own.settings.allow) {
        Some(why) => Err(ambiguous(why)),
        None => Ok(Some(path)),
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
