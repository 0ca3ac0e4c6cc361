//! The way of a fenced request: body, marks, barrier, exchange. Read it from top to bottom: the order
//! of the phases is the correctness argument.

use std::sync::Arc;

use http::Method;
use http::request::Parts;
use tokio_util::sync::CancellationToken;

use super::body::Upload;
use super::body_refusal::{body_refusal, too_long_for_key};
use super::classify::{self, Fenced};
use super::conclusion::{self, Conclusion};
use super::core::{Live, Proxy};
use super::counting::{CountAs, Forwarded};
use super::forward::{self, Exchange, ExchangeLimits};
use super::peer::Peer;
use super::received::Received;
use super::refusal::Refusal;
use super::request_context::RequestContext;
use super::tunnel::TunnelOpening;
use super::upstream::Upstream;
use super::{derive, headers};
use crate::config::Reuse;
use crate::fencing::writer::Caller;
use crate::metrics::Outcome;
use crate::routing::{Allow, ResourceKey};

impl Proxy {
    /// A request that is to be judged.
    pub(super) async fn fenced(
        &self,
        live: &Live,
        fenced: Fenced,
        mut head: Parts,
        body: Received,
        peer: &Peer,
        about: &RequestContext,
    ) -> Result<Forwarded, Refusal> {
        let place = self.places.take(peer)?;
        let route = Arc::clone(&fenced.route);
        let settings = &route.settings;
        let token = fenced.token;
        let is_grpc = conclusion::is_grpc(&head.headers);
        let (upload, key) = self
            .upload_and_key(live, &fenced, (&head, body), is_grpc, peer, about)
            .await?;
        let idempotency = derive::idempotency(&fenced, &head, &key, &upload)?;
        let opening = fenced
            .upgrade
            .then(|| self.opening(&live.upstream, &mut head, &upload, peer))
            .transpose()?;

        let caller = Caller {
            needs: settings.token_bounds.needs(token),
            origin: peer.origin(),
        };

        // The marks, then the barrier. Everything after this happens under the permit.
        let wait = settings.barrier_wait;
        let admitted = self
            .admit(caller, (&key, token), wait, &route.metrics)
            .await?;

        let once = settings.reuse == Reuse::Once && fenced.unsafe_method;
        let spend = once.then(|| self.spend_name());
        let (sent, cut) = (CancellationToken::new(), CancellationToken::new());
        let trailers = derive::trailers(&fenced, &head, idempotency.as_ref());
        let body = upload.send(trailers, sent.clone()).cut_by(cut.clone());
        let fence = Some((token, &key));
        let is_head = head.method == Method::HEAD;
        let mut request = self.upstream_request(
            &live.upstream,
            head,
            body,
            peer,
            fence,
            idempotency.as_ref(),
        );
        if let Some(opening) = &opening {
            opening.ask(request.headers_mut());
        }
        let exchange = Exchange {
            request,
            opening,
            sent,
            cut,
            limits: ExchangeLimits {
                timeout: settings.upstream_timeout,
                upload: settings.body.timeout,
                grace: settings.barrier_grace,
            },
            conclusion: Conclusion {
                unknown: settings.unknown.clone(),
                head: is_head,
                unsafe_method: fenced.unsafe_method,
                grpc: is_grpc,
            },
            upstream: Arc::clone(&live.upstream),
            metrics: Arc::clone(&route.metrics),
            spend,
            via: self.via,
            memory: self.memory.share(),
            held: Arc::clone(&place),
        };
        let answered =
            forward::forward(admitted.permit, exchange, &self.fencing, &self.tasks).await?;
        let counted = match answered.doubt {
            Some(doubt) => CountAs::InDoubt(doubt),
            None if admitted.advanced => CountAs::Outcome(Outcome::Advanced),
            None => CountAs::Outcome(Outcome::Current),
        };
        // The exchange may be over long before the client has taken its answer, and the other way round.
        let mut response = answered.response;
        response.body_mut().keep(place, None);
        Ok(Forwarded { response, counted })
    }

    /// Reads the body as far as it fits, and derives the key.
    async fn upload_and_key(
        &self,
        live: &Live,
        fenced: &Fenced,
        (head, body): (&Parts, Received),
        is_grpc: bool,
        peer: &Peer,
        about: &RequestContext,
    ) -> Result<(Upload, ResourceKey), Refusal> {
        let settings = &fenced.route.settings;
        let token = fenced.token;

        // What is known to be stale is refused before its body is asked for (Expect: 100-continue).
        let early = if fenced.template()?.uses_json() {
            None
        } else {
            let key = fenced.key(head, None)?;
            let _ = about.subject.set((key.clone(), token));
            self.unless_stale(&key, token)?;
            Some(key)
        };

        // The body first, as far as it fits: a client that pauses halfway through is judged when its
        // body ends. Not so for gRPC, where a pause may be a client that waits for an answer.
        let limits = settings.body;
        let hold = is_grpc.then_some(limits.stream_after);
        let rules = self.rules(limits, peer, live.upstream.h2 && is_grpc);
        let upload = Upload::read(body, &head.headers, &rules, hold)
            .await
            .map_err(|error| body_refusal(&error))?;
        if let Some(name) = upload.trailers().and_then(headers::path_override)
            && !settings.allow.allows(Allow::PATH_OVERRIDE)
        {
            return Err(classify::path_override(name));
        }
        let key = if let Some(key) = early {
            key
        } else {
            let whole = upload
                .whole()
                .ok_or_else(|| too_long_for_key(limits.buffer))?;
            let key = fenced.key(head, Some(&whole))?;
            let _ = about.subject.set((key.clone(), token));
            key
        };
        Ok((upload, key))
    }

    /// The tunnel that a fenced request asks for. Its body must be here: what has left HTTP has no end of a body to
    /// wait for.
    fn opening(
        &self,
        upstream: &Upstream,
        head: &mut Parts,
        upload: &Upload,
        peer: &Peer,
    ) -> Result<TunnelOpening, Refusal> {
        if upstream.h2 {
            return Err(Refusal::UpgradeRefused);
        }
        if upload.whole().is_none() {
            let why = "The body of a request that opens a tunnel may have body.buffer bytes.";
            return Err(Refusal::TooLarge(why.into()));
        }
        self.tunnel(head, peer)?.ok_or(Refusal::UpgradeRefused)
    }
}
