//! The request as the upstream gets it, fenced or not: target, header, body framing, idempotency
//! key, and the tunnel that it asks for.

use std::sync::Arc;

use http::{Method, Version};

use super::classify::Fenced;
use super::client::Client;
use super::context::Context;
use super::exchange::Exchange;
use super::headers::{self, ForUpstream, http2};
use super::idempotency::{self, Choice, IdempotencyError, RequestDigest};
use super::limits::InFlightPermit;
use super::refusal::Refusal;
use super::routing_table::Route;
use super::setup::Proxy;
use super::tunnel::TunnelOpening;
use crate::body::RequestBody;
use crate::body::UpstreamRequest;
use crate::http1::RequestHead;
use crate::http1::names::HOST;
use crate::routing::{ResourceKey, Token};

/// The additions to a request besides those of every request.
#[derive(Default)]
pub(super) struct Additions<'a> {
    pub fenced: Option<(Token, &'a ResourceKey)>,
    pub idempotency: Option<(&'a str, Choice)>,
    /// The tunnel that it asks for.
    pub opening: Option<TunnelOpening>,
}

impl Proxy {
    /// The exchange of a request, ready to be sent: the target byte for byte as it was checked, hop-by-hop
    /// and `X-Fencing-*` fields off, ours on. Boxed, since it goes from hand to hand.
    pub(super) fn exchange(
        &self,
        context: &Context<'_>,
        route: Option<&Arc<Route>>,
        mut head: RequestHead,
        body: RequestBody,
        additions: Additions<'_>,
        permit: InFlightPermit,
    ) -> Box<Exchange> {
        let (upstream, client) = (&context.snapshot.upstream, context.client);
        let host = head.target.host(&head.fields);
        let added = ForUpstream {
            fenced: additions.fenced,
            idempotency: additions
                .idempotency
                .as_ref()
                .map(|(name, choice)| (*name, choice)),
            client: client.forwarded.as_deref(),
            identity: client.identity.as_deref(),
            scheme: if client.tls.is_some() {
                "https"
            } else {
                "http"
            },
            host: host.as_deref(),
            host_in_key: route.is_some_and(|route| route.has_host_in_key()),
            by_proxy: context.by_proxy,
            version: head.version,
            http2: upstream.h2,
            via: self.via,
        };
        let fields = &mut head.fields;
        headers::request_for_upstream(fields, added);
        // Behind the edits, which look at every field.
        context.facts.identify(fields);
        if upstream.h2 {
            fields.remove(HOST);
        } else {
            if head.version == Version::HTTP_2 {
                http2::join_cookies(fields);
            }
            let named = upstream.host(host.as_deref());
            if fields.get(HOST) != Some(named) {
                fields.insert(HOST, named);
            }
        }
        if let Some(opening) = &additions.opening {
            opening.ask(fields);
        }
        let trace = context.facts.trace.as_ref();
        let span = trace.map(|trace| trace.upstream(&upstream.authority));
        if let Some(span) = &span {
            span.propagate(fields);
        }
        // The client's side of an upgrade is not the upstream's.
        head.upgrade = None;
        Box::new(Exchange {
            request: UpstreamRequest { head, body },
            span,
            opening: additions.opening,
            timeout: route.map_or(context.table().settings.upstream.timeout, |route| {
                route.settings.upstream_timeout
            }),
            via: self.via,
            held: permit,
        })
    }

    /// The tunnel that a request asks for, if it asks for one and there is room.
    pub(super) fn tunnel(
        &self,
        head: &mut RequestHead,
        client: &Client,
    ) -> Result<Option<TunnelOpening>, Refusal> {
        let permit = || self.in_flight.take_tunnel();
        TunnelOpening::take(head, &self.stopping, client.until, permit)
    }
}

/// The digest of a request whose body has been read whole.
pub(super) fn digest(
    method: &Method,
    targets: &str,
    upload: &RequestBody,
) -> Option<RequestDigest> {
    let pieces = upload.pieces().map(|piece| &**piece);
    let length = upload.whole_length()?;
    Some(RequestDigest::of(method.as_str(), targets, length, pieces))
}

/// The idempotency key that goes upstream.
pub(super) fn idempotency_key<'a>(
    fenced: &'a Fenced,
    head: &RequestHead,
    key: &ResourceKey,
    digest: impl FnOnce() -> Option<RequestDigest>,
) -> Result<Option<(&'a str, Choice)>, Refusal> {
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
    let operation =
        headers::text(&head.fields, headers::OPERATION).map_err(|error| ambiguous(&error))?;
    let choice = idempotency::choose(settings, &head.fields, || {
        let digest = digest();
        let made = idempotency::key(settings, key, fenced.token, operation, digest.as_ref())?;
        if made.is_none() {
            keyless(route);
        }
        Ok(made)
    });
    match choice {
        Ok(choice) => Ok(Some((&settings.header, choice))),
        Err(error @ IdempotencyError::NoKey) => Err(Refusal::TooLarge(error.to_string())),
        Err(error) => Err(ambiguous(&error)),
    }
}

/// Counted each time, logged once per route.
fn keyless(route: &Route) {
    route.metrics.keyless();
    route.keyless_said.call_once(|| {
        tracing::warn!(
            route = route.settings.label,
            "a request went upstream without an idempotency key: its body is longer than body.buffer \
             and it names no X-Fencing-Operation; further ones are only counted"
        );
    });
}
