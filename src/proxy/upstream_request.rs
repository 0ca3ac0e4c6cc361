//! The request as the upstream gets it, fenced or not: target, header, body framing, idempotency
//! key, and the tunnel that it asks for.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use http_body::Body as _;

use super::body::{Upload, UpstreamBody};
use super::classify::{self, Fenced};
use super::client::Client;
use super::context::Context;
use super::exchange::Exchange;
use super::headers::{self, ForUpstream, http2};
use super::idempotency::{self, Choice, IdempotencyError, RequestDigest};
use super::limits::in_flight::InFlightPermit;
use super::refusal::Refusal;
use super::routing_table::Route;
use super::setup::Proxy;
use super::tunnel::TunnelOpening;
use super::tunnel::client_socket::UpgradeSlot;
use crate::routing::{ResourceKey, Token};

/// The additions to a request besides those of every request.
#[derive(Default)]
pub(super) struct Additions<'a> {
    pub fenced: Option<(Token, &'a ResourceKey)>,
    pub idempotency: Option<(HeaderName, Choice)>,
    /// The tunnel that it asks for.
    pub opening: Option<TunnelOpening>,
}

impl Proxy {
    /// The exchange of a request, ready to be sent.
    pub(super) fn exchange(
        &self,
        context: &Context<'_>,
        route: Option<&Arc<Route>>,
        head: Parts,
        body: UpstreamBody,
        additions: Additions<'_>,
        permit: InFlightPermit,
    ) -> Exchange<InFlightPermit> {
        let table = context.table();
        let mut request = self.upstream_request(context, head, body, &additions);
        if let Some(opening) = &additions.opening {
            opening.ask(request.headers_mut());
        }
        let trace = context.facts.trace();
        let span = trace.map(|trace| trace.upstream(&context.snapshot.upstream.authority));
        if let Some(span) = &span {
            span.propagate(request.headers_mut());
        }
        Exchange {
            request,
            span,
            opening: additions.opening,
            timeout: route.map_or(table.settings.upstream.timeout, |route| {
                route.settings.upstream_timeout
            }),
            via: self.via,
            held: permit,
        }
    }

    /// The request as the upstream gets it: the target byte for byte as it was checked, hop-by-hop
    /// and `X-Fencing-*` fields off, ours on.
    fn upstream_request(
        &self,
        context: &Context<'_>,
        mut head: Parts,
        body: UpstreamBody,
        additions: &Additions<'_>,
    ) -> Request<UpstreamBody> {
        let upstream = &context.snapshot.upstream;
        let host = classify::host(&head).ok();
        let slash = || PathAndQuery::from_static("/");
        let target = head.uri.path_and_query().cloned().unwrap_or_else(slash);
        let added = self.for_upstream(context, &head, additions);
        headers::request_for_upstream(&mut head.headers, added);
        // Behind the edits, which look at every field.
        if let Some(logged) = &context.facts.head {
            logged.identify(&mut head.headers);
        }
        if upstream.h2 {
            head.headers.remove(HOST);
        } else {
            if head.version == Version::HTTP_2 {
                http2::join_cookies(&mut head.headers);
            }
            match upstream.host(host.as_ref()) {
                Some(host) => head.headers.insert(HOST, host),
                None => head.headers.remove(HOST),
            };
            frame(&head.method, &mut head.headers, &body);
        }
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = upstream.uri(target);
        *request.version_mut() = if upstream.h2 {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        };
        *request.headers_mut() = head.headers;
        // The spelling of the names by the client travels here. Its side of an upgrade is not the
        // upstream's.
        *request.extensions_mut() = head.extensions;
        request.extensions_mut().remove::<UpgradeSlot>();
        if let Some(clock) = &context.facts.clock {
            request.extensions_mut().insert(clock.clone());
        }
        request
    }

    /// The fields that the proxy adds to a request.
    fn for_upstream<'a>(
        &'a self,
        context: &Context<'a>,
        head: &Parts,
        additions: &'a Additions<'_>,
    ) -> ForUpstream<'a> {
        let client = context.client;
        let idempotency = additions.idempotency.as_ref();
        ForUpstream {
            fenced: additions.fenced,
            idempotency: idempotency.map(|(name, choice)| (name, choice.clone())),
            client: client.forwarded.as_ref(),
            identity: client.identity.as_ref(),
            scheme: if client.tls.is_some() {
                "https"
            } else {
                "http"
            },
            host: classify::host(head).ok(),
            by_proxy: context.by_proxy,
            version: head.version,
            http2: context.snapshot.upstream.h2,
            via: self.via,
        }
    }

    /// The tunnel that a request asks for, if it asks for one and there is room.
    pub(super) fn tunnel(
        &self,
        head: &mut Parts,
        client: &Client,
    ) -> Result<Option<TunnelOpening>, Refusal> {
        let permit = || self.in_flight.take_tunnel();
        TunnelOpening::take(head, &self.stopping, client.until, permit)
    }
}

/// Says how the body is framed. An empty POST says so (RFC 9110, 8.6: a sender should), since some
/// servers answer 411 otherwise.
fn frame(method: &Method, headers: &mut HeaderMap, body: &UpstreamBody) {
    if headers.contains_key(CONTENT_LENGTH) {
        return;
    }
    if !body.is_end_stream() {
        if body.size_hint().exact().is_none() {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    } else if matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

/// The digest of a request whose body has been read whole.
pub(super) fn digest(method: &Method, targets: &str, upload: &Upload) -> Option<RequestDigest> {
    let pieces = upload.pieces().map(|piece| &**piece);
    let length = upload.whole_length()?;
    Some(RequestDigest::of(method.as_str(), targets, length, pieces))
}

/// The idempotency key that goes upstream.
pub(super) fn idempotency_key(
    fenced: &Fenced,
    head: &Parts,
    key: &ResourceKey,
    digest: impl FnOnce() -> Option<RequestDigest>,
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
        let digest = digest();
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
        tracing::warn!(
            route = route.settings.label,
            "a request went upstream without an idempotency key: its body is longer than body.buffer \
             and it names no X-Fencing-Operation; further ones are only counted"
        );
    });
}
