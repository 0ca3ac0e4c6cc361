//! Derives from a fenced request, once its resource is known, the idempotency key that goes
//! upstream with it, and the fields that may not stand in its trailers.

use http::HeaderName;
use http::request::Parts;

use super::body::Upload;
use super::classify::Fenced;
use super::headers;
use super::headers::trailers::TrailerRules;
use super::idempotency::{self, Choice, IdempotencyError, RequestDigest};
use super::refusal::Refusal;
use super::table::Route;
use crate::routing::{KeyTemplate, ResourceKey, Source};

/// What may not stand in a fenced request's trailers: an upstream that merges them into the header would take
/// another value for the one that was judged.
pub(super) fn trailers(
    fenced: &Fenced,
    head: &Parts,
    idempotency: Option<&(HeaderName, Choice)>,
) -> TrailerRules {
    let mut rules = TrailerRules::of(&head.headers);
    let template = fenced.route.settings.key.iter();
    for source in template.flat_map(KeyTemplate::parts) {
        if let Source::Header(name) = source
            && let Ok(name) = HeaderName::from_bytes(name.as_bytes())
        {
            rules.bar(name);
        }
    }
    if let Some((name, _)) = idempotency {
        rules.bar(name.clone());
    }
    rules
}

/// The idempotency key that goes upstream.
pub(super) fn idempotency(
    fenced: &Fenced,
    head: &Parts,
    key: &ResourceKey,
    upload: &Upload,
) -> Result<Option<(HeaderName, Choice)>, Refusal> {
    let route = &fenced.route;
    let Some(settings) = route
        .settings
        .idempotency
        .as_ref()
        .filter(|_| fenced.unsafe_method)
    else {
        return Ok(None);
    };
    let ambiguous = |error: &dyn std::fmt::Display| Refusal::Ambiguous(error.to_string());
    let name =
        HeaderName::from_bytes(settings.header.as_bytes()).map_err(|error| ambiguous(&error))?;
    let operation =
        headers::text(&head.headers, &headers::OPERATION).map_err(|error| ambiguous(&error))?;
    let choice = idempotency::choose(settings, &head.headers, || {
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let digest = upload
            .whole()
            .map(|body| RequestDigest::of(head.method.as_str(), target, &body));
        let made = idempotency::key(settings, key, fenced.token, operation, digest.as_ref())?;
        if made.is_none() {
            keyless(route);
        }
        Ok(made)
    });
    match choice {
        Ok(choice) => Ok(Some((name, choice))),
        Err(error @ IdempotencyError::NoKey) => Err(Refusal::TooLarge(error.to_string())),
        Err(error) => Err(ambiguous(&error)),
    }
}

/// Counted each time, logged once per route.
fn keyless(route: &Route) {
    route.metrics.keyless();
    route.keyless_said.call_once(|| {
        tracing::warn!(route = route.settings.label,
            "a request went upstream without an idempotency key: its body is longer than body.buffer and it names no X-Fencing-Operation; further ones are only counted");
    });
}
