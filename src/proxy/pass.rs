//! What is not fenced: passed on without a permit, without a lease, without waiting; and the request
//! as the upstream gets it, which both ways share.

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
use super::idempotency::Choice;
use super::respond::Refusal;
use super::table::Route;
use super::upstream::{Upstream, send};
use super::{Done, Live, Peer, Proxy};
use crate::fence::{ResourceKey, Token};
use crate::metrics::Outcome;

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
                scheme: "http",
                host: host.clone(),
                version: head.version,
                http2: upstream.h2,
                trace,
            },
        );
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
        request.extensions_mut().remove::<OnUpgrade>();
        request
    }

    /// Passes a request that nobody judges. `upgrade`: its tunnel may be opened.
    pub(super) async fn pass(
        &self,
        live: &Live,
        route: Option<&Route>,
        head: Parts,
        body: Incoming,
        peer: &Peer,
        upgrade: bool,
    ) -> Result<Done, Refusal> {
        let upload = Upload::streamed(body);
        self.pass_upload(live, route, head, upload, peer, upgrade)
            .await
    }

    /// As [`Self::pass`], for a body of which a part may have been read.
    pub(super) async fn pass_upload(
        &self,
        live: &Live,
        route: Option<&Route>,
        head: Parts,
        upload: Upload,
        peer: &Peer,
        upgrade: bool,
    ) -> Result<Done, Refusal> {
        let mut head = head;
        let tunnel = upgrade.then(|| take_upgrade(&mut head)).flatten();
        let upstream = &live.upstream;
        let body = upload.send(None, None, CancellationToken::new());
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
        let response = match tokio::time::timeout(limit, send(&upstream.plain, request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if never_sent(&error) => {
                return Err(Refusal::Unreachable {
                    why: format!("The upstream cannot be reached: {}", chain(&error)),
                    spent: false,
                });
            }
            Ok(Err(error)) => {
                let why = format!("The exchange with the upstream broke: {}", chain(&error));
                return Err(Refusal::Broken(why));
            }
            Err(_) => return Err(Refusal::TooSlow(limit)),
        };
        let metrics = route.map_or(&live.table.unmatched_metrics, |route| &route.metrics);
        metrics.upstream(began.elapsed(), response.status().as_u16());
        let response = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some((client, _)) = tunnel else {
                return Err(Refusal::Broken(
                    "The upstream switched protocols unasked".into(),
                ));
            };
            self.tunnel(client, response)
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
            Response::from_parts(parts, body.map_err(Into::into).boxed_unsync())
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
    ) -> Response<super::ClientBody> {
        let upstream = hyper::upgrade::on(&mut response);
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
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
