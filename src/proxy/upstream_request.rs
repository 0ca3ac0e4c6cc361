//! The request as the upstream gets it, fenced or not: target, header, body framing, idempotency
//! key, and the tunnel that it asks for.

use http::Version;

use super::classify::Fenced;
use super::context::Context;
use super::destination;
use super::headers::{self, ForUpstream, http2};
use super::idempotency::{self, RequestDigest};
use super::operation::AskedOperation;
use super::refusal::Refusal;
use super::setup::Proxy;
use crate::body::{RequestBody, UpstreamRequest};
use crate::http1::RequestHead;
use crate::http1::names::HOST;
use crate::routing::{ResourceKey, Token};
use crate::traces::UpstreamSpan;

/// An exchange that is ready to begin.
pub(super) struct Exchange {
    pub request: UpstreamRequest,
    /// `None`: the request is not traced.
    pub span: Option<UpstreamSpan>,
}

/// Ends the span of an exchange without a response. Returns why there is none.
pub(super) fn unanswered(span: Option<UpstreamSpan>, refusal: Refusal) -> Refusal {
    if let Some(span) = span {
        span.failed(refusal.outcome().as_str());
    }
    refusal
}

impl Proxy {
    /// The exchange of a request, ready to be sent: the target byte for byte as it was checked, hop-by-hop
    /// and `X-Fencing-*` fields off, ours on. Boxed, since it goes from hand to hand. `fenced` and
    /// `idempotency`: of a fenced request.
    pub(super) fn exchange(
        &self,
        context: &Context,
        mut head: RequestHead,
        body: RequestBody,
        fenced: Option<(&ResourceKey, Token)>,
        idempotency: Option<(&str, Option<&str>)>,
    ) -> Box<Exchange> {
        let (upstream, client) = (&context.snapshot.upstream, &context.client);
        let host = head.target.host(&head.fields);
        let added = ForUpstream {
            fenced: fenced.map(|(key, token)| (token, key)),
            idempotency,
            client: client.forwarded.as_deref(),
            identity: client.identity.as_deref(),
            scheme: if client.tls.is_some() {
                "https"
            } else {
                "http"
            },
            host: host.as_deref(),
            host_in_key: context
                .route
                .as_ref()
                .is_some_and(|route| route.host_in_key),
            by_proxy: context.by_proxy,
            version: head.version,
            http2: upstream.h2,
            via: self.via,
        };
        let fields = &mut head.fields;
        headers::request_for_upstream(fields, added);
        // Behind the edits, which look at every field.
        context.identify(fields);
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
        let trace = context.trace.as_ref();
        let span = trace.map(|trace| trace.upstream(&upstream.authority));
        if let Some(span) = &span {
            span.propagate(fields);
        }
        // The client's side of an upgrade is not the upstream's.
        head.upgrade = None;
        Box::new(Exchange {
            request: UpstreamRequest { head, body },
            span,
        })
    }
}

/// The idempotency key that goes upstream, and the operation if its outcome is remembered.
pub(super) fn names<'a>(
    fenced: &'a Fenced,
    head: &RequestHead,
    key: &ResourceKey,
    upload: &RequestBody,
) -> Result<Names<'a>, Refusal> {
    let settings = &fenced.route.settings;
    let (idempotency, outcome) = (settings.idempotency(), settings.outcome.as_ref());
    let remembers = outcome.is_some();
    if !fenced.unsafe_method || idempotency.is_none() && !remembers {
        return Ok((None, None));
    }
    let operation = if remembers {
        Some(remembered(head)?)
    } else {
        headers::text(&head.fields, headers::OPERATION)?
    };
    let keeps = idempotency.map(|block| idempotency::keeps_clients(block, &head.fields));
    // A key of the client's own may differ from holder to holder.
    let keeps = keeps.transpose()?.unwrap_or_default() && !remembers;
    let digest = upload.whole().filter(|_| !keeps).map(|body| {
        let (targets, method) = (destination::targets(head), head.method.as_str());
        RequestDigest::of(method, &targets, body.length(), body.pieces())
    });
    let token = (!remembers).then_some(fenced.token);
    let own = match idempotency {
        Some(block) if !keeps => {
            let made = idempotency::key(block, key, token, operation, digest.as_ref())?;
            if made.is_none() {
                fenced.route.metrics.keyless.inc();
            }
            Some((&*block.header.0, made))
        }
        _ => None,
    };
    let asked = match operation.zip(outcome) {
        None => None,
        Some((name, settings)) => Some(AskedOperation {
            name: name.to_owned(),
            digest: digest.ok_or_else(|| Refusal::TooLarge(NO_DIGEST.to_owned()))?,
            settings,
        }),
    };
    Ok((own, asked))
}

/// The idempotency header of a request and the key for it ([`ForUpstream::idempotency`]), and the
/// request's operation if the outcome of that is remembered.
pub(super) type Names<'a> = (
    Option<(&'a str, Option<String>)>,
    Option<AskedOperation<'a>>,
);

/// The longest name of an operation that is remembered.
const LONGEST_OPERATION: usize = 255;

/// The reason where the body was too long to be digested.
const NO_DIGEST: &str = "this route remembers outcomes, and the body is too long to be compared \
                         (body.buffer); send a shorter one";

/// The name of an operation whose outcome is to be remembered. The trailers of gRPC cannot be.
fn remembered(head: &RequestHead) -> Result<&str, Refusal> {
    if headers::is_grpc(&head.fields) {
        return Err(Refusal::ambiguous(
            "this route remembers outcomes (outcome), which cannot be done for gRPC; use another \
             route",
        ));
    }
    let name = headers::text(&head.fields, headers::OPERATION)?;
    let fits =
        |name: &&str| !name.is_empty() && name.len() <= LONGEST_OPERATION && !name.contains('\0');
    name.filter(fits).ok_or_else(|| {
        Refusal::Ambiguous(format!(
            "this route remembers outcomes (outcome): name the operation in X-Fencing-Operation \
             with at most {LONGEST_OPERATION} bytes, the same for every holder"
        ))
    })
}
