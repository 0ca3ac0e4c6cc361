//! Passes unfenced requests on, without a permit, without a lease, without waiting. Also builds the
//! request that goes to the upstream, for fenced requests as well.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use tokio::time::Instant;

use super::body::{Upload, UpstreamBody};
use super::body_refusal::body_refusal;
use super::classify;
use super::core::{Live, Proxy};
use super::counting::{CountAs, Forwarded};
use super::forward::unreserved;
use super::headers::trailers::TrailerRules;
use super::headers::{self, ForUpstream};
use super::http2;
use super::idempotency::Choice;
use super::pace::Flow;
use super::peer::Peer;
use super::places::InFlightPlace;
use super::received::Received;
use super::refusal::{Refusal, Why};
use super::reply::ClientBody;
use super::switch::ClientSwitch;
use super::table::Route;
use super::tunnel::TunnelEnd;
use super::upstream::Upstream;
use crate::metrics::Outcome;
use crate::routing::{ResourceKey, Token};

/// A request that is passed on unjudged.
pub(super) struct Passing<'a> {
    pub route: Option<&'a Arc<Route>>,
    pub peer: &'a Peer,
    /// Its tunnel may be opened.
    pub upgrade: bool,
    pub place: InFlightPlace,
}

impl Proxy {
    /// The request as the upstream gets it: the target byte for byte as it was checked, hop-by-hop and
    /// `X-Fencing-*` fields off, ours on.
    pub(super) fn upstream_request(
        &self,
        upstream: &Upstream,
        mut head: Parts,
        body: UpstreamBody,
        peer: &Peer,
        fenced: Option<(Token, &ResourceKey)>,
        idempotency: Option<&(HeaderName, Choice)>,
    ) -> Request<UpstreamBody> {
        let host = classify::host(&head).ok();
        if head.method == Method::OPTIONS {
            headers::hops::count(&mut head.headers);
        }
        let slash = || PathAndQuery::from_static("/");
        let target = head.uri.path_and_query().cloned().unwrap_or_else(slash);
        headers::request_for_upstream(
            &mut head.headers,
            ForUpstream {
                fenced,
                idempotency: idempotency.map(|(name, choice)| (name, choice.clone())),
                peer: peer.forwarded.as_ref(),
                identity: peer.identity.as_ref(),
                scheme: if peer.tls.is_some() { "https" } else { "http" },
                host: host.clone(),
                version: head.version,
                http2: upstream.h2,
                via: &self.via,
                trailers: body.trailers(),
            },
        );
        if head.version == Version::HTTP_2 && !upstream.h2 {
            http2::join_cookies(&mut head.headers);
        }
        let host = upstream.host(host.as_ref());
        match host.filter(|_| !upstream.h2) {
            Some(host) => {
                head.headers.insert(HOST, host);
            }
            None => {
                head.headers.remove(HOST);
            }
        }
        if !upstream.h2 {
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
        // How the client spelled the names travels here. Its side of an upgrade is not the upstream's.
        *request.extensions_mut() = head.extensions;
        request.extensions_mut().remove::<ClientSwitch>();
        request
    }

    /// Passes a request that nobody judges. `upgrade`: its tunnel may be opened.
    pub(super) async fn pass(
        &self,
        live: &Live,
        route: Option<&Arc<Route>>,
        head: Parts,
        body: Received,
        peer: &Peer,
        upgrade: bool,
    ) -> Result<Forwarded, Refusal> {
        let passing = Passing {
            route,
            peer,
            upgrade,
            place: self.places.take(peer)?,
        };
        let settings = route.map_or(live.table.settings.body, |route| route.settings.body);
        let rules = self.rules(settings, peer, live.calls(&head.headers));
        let upload = Upload::streamed(body, &rules).map_err(|error| body_refusal(&error))?;
        self.pass_upload(live, head, upload, passing).await
    }

    /// As [`Self::pass`], for a body of which a part may have been read.
    pub(super) async fn pass_upload(
        &self,
        live: &Live,
        head: Parts,
        upload: Upload,
        passing: Passing<'_>,
    ) -> Result<Forwarded, Refusal> {
        let Passing {
            route,
            peer,
            upgrade,
            place,
        } = passing;
        let mut head = head;
        let upstream = &live.upstream;
        let opening = (upgrade && !upstream.h2)
            .then(|| self.tunnel(&mut head, peer))
            .transpose()?
            .flatten();
        let flow = Arc::new(Flow::default());
        let trailers = TrailerRules::of(&head.headers);
        let body = upload.send_unfenced(trailers, Arc::clone(&flow));
        let mut request = self.upstream_request(upstream, head, body, peer, None, None);
        if let Some(opening) = &opening {
            opening.ask(request.headers_mut());
        }
        let began = Instant::now();
        let limit = route.map_or(live.table.settings.upstream.timeout, |route| {
            route.settings.upstream_timeout
        });
        let reserved = upstream.reserve_plain(limit).await;
        let reserved = reserved.map_err(|error| unreserved(&error))?;
        let (pending, hold) = reserved.send(request);
        // It may arrive at any time.
        hold.disarm();
        let answered = tokio::select! {
            biased;
            answered = pending.response() => answered,
            () = flow.silent(limit) => return Err(Refusal::TooSlow(limit)),
        };
        let response = answered?;
        let metrics = route.map_or(&live.table.unmatched_metrics, |route| &route.metrics);
        let timer = metrics.upstream(began, response.status().as_u16());
        let response = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(opening) = opening.filter(|opening| opening.allows(response.headers())) else {
                let why = "The upstream switched protocols unasked";
                return Err(Refusal::Broken(Why::new(why)));
            };
            let (answer, tunnel) = opening.switch(response, &self.via);
            self.tasks.spawn(async move {
                let _held = (place, timer);
                if let TunnelEnd::Upstream(rest) = tunnel.run(std::future::pending()).await {
                    rest.finish().await;
                }
            });
            answer
        } else {
            let (mut parts, body) = response.into_parts();
            let rules = headers::response_for_client(&mut parts.headers, parts.version, &self.via);
            parts.version = Version::default();
            let mut body = ClientBody::passed(body, rules, timer);
            body.keep(place, Some(flow.answering()));
            Response::from_parts(parts, body)
        };
        Ok(Forwarded {
            response,
            counted: CountAs::Outcome(Outcome::Unfenced),
        })
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
