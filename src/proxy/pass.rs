//! What is not fenced: passed on without a permit, without a lease, without waiting; and the request
//! as the upstream gets it, which both ways share.

use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::body::{Upload, UpstreamBody, full};
use super::classify;
use super::forward::{chain, never_sent};
use super::headers::trace::NewTrace;
use super::headers::{self, ForUpstream};
use super::http2;
use super::idempotency::Choice;
use super::pace::Flow;
use super::places::{self, Place};
use super::respond::Refusal;
use super::table::Route;
use super::upstream::Upstream;
use super::{Done, Live, Peer, Proxy, body_refusal};
use crate::fence::{ResourceKey, Token};
use crate::metrics::Outcome;

/// A request that is passed on unjudged.
pub(super) struct Passing<'a> {
    pub route: Option<&'a Arc<Route>>,
    pub peer: &'a Peer,
    /// Its tunnel may be opened.
    pub upgrade: bool,
    pub place: Place,
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
        let slash = || PathAndQuery::from_static("/");
        let target = head.uri.path_and_query().cloned().unwrap_or_else(slash);
        let bits = (self.bits)();
        let trace = NewTrace {
            trace_id: bits,
            parent_id: u64::try_from(bits >> 64).unwrap_or(1),
        };
        headers::request_for_upstream(
            &mut head.headers,
            ForUpstream {
                fenced,
                idempotency: idempotency.map(|(name, choice)| (name, choice.clone())),
                peer: peer.ip,
                scheme: if peer.tls.is_some() { "https" } else { "http" },
                host: host.clone(),
                version: head.version,
                http2: upstream.h2,
                trace,
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
        request
    }

    /// Passes a request that nobody judges. `upgrade`: its tunnel may be opened.
    pub(super) async fn pass(
        &self,
        live: &Live,
        route: Option<&Arc<Route>>,
        head: Parts,
        body: Incoming,
        peer: &Peer,
        upgrade: bool,
    ) -> Result<Done, Refusal> {
        let passing = Passing {
            route,
            peer,
            upgrade,
            place: self.places.take()?,
        };
        let settings = route.map_or(live.table.settings.body, |route| route.settings.body);
        let upload =
            Upload::streamed(body, &self.rules(settings)).map_err(|error| body_refusal(&error))?;
        self.pass_upload(live, head, upload, passing).await
    }

    /// As [`Self::pass`], for a body of which a part may have been read.
    pub(super) async fn pass_upload(
        &self,
        live: &Live,
        head: Parts,
        upload: Upload,
        passing: Passing<'_>,
    ) -> Result<Done, Refusal> {
        let Passing {
            route,
            peer,
            upgrade,
            place,
        } = passing;
        let mut head = head;
        let tunnel = upgrade.then(|| take_upgrade(&mut head)).flatten();
        let upstream = &live.upstream;
        let (sent, flow) = (CancellationToken::new(), Arc::new(Flow::default()));
        let body = upload.send_unfenced(sent.clone(), Arc::clone(&flow));
        let mut request = self.upstream_request(upstream, head, body, peer, None, None);
        if let Some((_, protocol)) = &tunnel {
            request.headers_mut().insert(UPGRADE, protocol.clone());
            let upgrade = HeaderValue::from_static("upgrade");
            request.headers_mut().insert(CONNECTION, upgrade);
        }
        let began = Instant::now();
        let limit = route.map_or(live.table.settings.upstream.timeout, |route| {
            route.settings.upstream_timeout
        });
        let answered = tokio::select! {
            answered = upstream.plain.request(request) => answered,
            () = flow.silent(&sent, limit) => return Err(Refusal::TooSlow(limit)),
        };
        let response = match answered {
            Ok(response) => response,
            Err(error) if never_sent(&error) => {
                return Err(Refusal::Unreachable {
                    why: format!("The upstream cannot be reached: {}", chain(&error)),
                    spent: false,
                });
            }
            Err(error) => {
                let why = format!("The exchange with the upstream broke: {}", chain(&error));
                return Err(Refusal::Broken(why));
            }
        };
        let metrics = route.map_or(&live.table.unmatched_metrics, |route| &route.metrics);
        metrics.upstream(began.elapsed(), response.status().as_u16());
        let response = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some((client, _)) = tunnel else {
                return Err(Refusal::Broken(
                    "The upstream switched protocols unasked".into(),
                ));
            };
            self.tunnel(client, response, place)
        } else {
            let (mut parts, body) = response.into_parts();
            headers::response_for_client(&mut parts.headers, parts.version);
            parts.version = Version::default();
            let body = body.map_frame(|mut frame| {
                if let Some(trailers) = frame.trailers_mut() {
                    headers::strip_forbidden_trailers(trailers);
                }
                frame
            });
            let body = body.map_err(Into::into).boxed_unsync();
            places::keep(Response::from_parts(parts, body), (place, flow.answering()))
        };
        Ok(Done {
            response,
            outcome: Outcome::Unfenced,
        })
    }

    /// Joins the two connections that have left HTTP, until one of them ends or the process stops.
    fn tunnel(
        &self,
        client: OnUpgrade,
        mut response: Response<Incoming>,
        place: Place,
    ) -> Response<super::ClientBody> {
        let upstream = hyper::upgrade::on(&mut response);
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            let _place = place;
            let joined = async {
                let (client, upstream) = tokio::try_join!(client, upstream).ok()?;
                let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
                tokio::io::copy_bidirectional(&mut client, &mut upstream)
                    .await
                    .ok()
            };
            tokio::select! {
                _ = joined => {}
                () = stopping.cancelled() => {}
            }
        });
        let (mut parts, _) = response.into_parts();
        let protocol = parts.headers.get(UPGRADE).cloned();
        headers::response_for_client(&mut parts.headers, parts.version);
        if let Some(protocol) = protocol {
            parts.headers.insert(UPGRADE, protocol);
        }
        let upgrade = HeaderValue::from_static("upgrade");
        parts.headers.insert(CONNECTION, upgrade);
        Response::from_parts(parts, full(bytes::Bytes::new()))
    }
}

/// Says how the body is framed where hyper, left alone, would not: it takes a GET or HEAD of unknown length for
/// one without a body, and sends no length with an empty POST (RFC 9110, 8.6: a sender should), which some
/// servers answer with 411.
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

/// The client's side of a tunnel to come, and the protocol it asks for.
fn take_upgrade(head: &mut Parts) -> Option<(OnUpgrade, HeaderValue)> {
    let protocol = head.headers.get(UPGRADE)?.clone();
    Some((head.extensions.remove::<OnUpgrade>()?, protocol))
}
