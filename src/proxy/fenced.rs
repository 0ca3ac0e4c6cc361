//! Handles a fenced request: body, marks, barrier, exchange. Read it from top to bottom: the order
//! of the phases is the correctness argument.

use std::sync::Arc;

use http::Method;

use super::answer::{CountAs, Forwarded};
use super::body::{Received, Upload};
use super::classify::Fenced;
use super::context::Context;
use super::destination;
use super::exchange::conclusion::Conclusion;
use super::exchange::{Ended, ExchangeLimits, FenceTerms, fenced};
use super::headers::media::is_grpc;
use super::idempotency::RequestDigest;
use super::limits::in_flight::InFlightPermit;
use super::long_body::LongBodies;
use super::message::RequestHead;
use super::notes::Noted;
use super::refusal::Refusal;
use super::routing_table::Route;
use super::setup::Proxy;
use super::upstream_request::{Additions, idempotency_key};
use super::{classify, headers, upstream_request};
use crate::config::Reuse;
use crate::metrics::Outcome;
use crate::routing::{KeyTemplate, ResourceKey};

impl Proxy {
    /// Checks a request's token, and forwards the request under a permit.
    pub(super) async fn fenced(
        &self,
        context: &Context<'_>,
        fenced: Fenced,
        head: RequestHead,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        let permit = self.in_flight.take(context.client)?;
        let (route, token) = (Arc::clone(&fenced.route), fenced.token);
        let settings = &route.settings;
        let is_grpc = is_grpc(&head.fields);
        let is_head = head.method == Method::HEAD;

        // Phase 2: the body up to `body.buffer`, and the keys that are derived from it.
        let kept = Arc::clone(&permit);
        let (upload, key) = self
            .upload_and_key(context, &fenced, &head, (body, kept), is_grpc)
            .await?;
        let (upload, digest) = self.digest(&fenced, &head, upload, &permit).await;
        let idempotency = idempotency_key(&fenced, &head, &key, || {
            digest.or_else(|| {
                upstream_request::digest(&head.method, &destination::targets(&head), &upload)
            })
        })?;

        // Phase 3: the marks, then the barrier. Everything after this happens under the permit.
        let needs = settings.token_bounds.needs(token);
        let wait = settings.barrier_wait;
        let subject = (&key, token);
        let watch = (&*route.metrics, context.trace());
        let admitted = self.fencing.admit(needs, subject, wait, watch);
        let admitted = admitted.await?;

        // Phase 4: the exchange.
        let outcome = if admitted.advanced {
            Outcome::Advanced
        } else {
            Outcome::Current
        };
        let once = settings.reuse == Reuse::Once && fenced.unsafe_method;
        let terms = FenceTerms {
            upstream: Arc::clone(&context.snapshot.upstream),
            metrics: Arc::clone(&route.metrics),
            progress: Arc::default(),
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
            spend: once.then(|| self.spend_name()),
            memory: self.memory.share(),
            ended: reports_end(context, &route, outcome),
        };
        let body = upload.send(Arc::clone(&terms.progress));
        let additions = Additions {
            fenced: Some((token, &key)),
            idempotency,
            opening: None,
        };
        let in_flight = Arc::clone(&permit);
        let exchange = self.exchange(context, Some(&route), head, body, additions, in_flight);
        let (fencing, tasks) = (&self.fencing, &self.tasks);
        let answered = fenced::forward(admitted.permit, exchange, terms, fencing, tasks).await?;

        // Phase 5: the answer.
        let counted = CountAs::AtEnd((!answered.in_doubt).then_some(outcome));
        // The exchange may end long before or after the client has taken its answer.
        let mut response = answered.response;
        response.body.keep(permit, None);
        Ok(Forwarded { response, counted })
    }

    /// Reads the body up to `body.buffer`, and derives the key.
    async fn upload_and_key(
        &self,
        context: &Context<'_>,
        fenced: &Fenced,
        head: &RequestHead,
        (body, permit): (Received, InFlightPermit),
        is_grpc: bool,
    ) -> Result<(Upload, ResourceKey), Refusal> {
        let (settings, token) = (&fenced.route.settings, fenced.token);

        // A token that is known to be stale is refused before its body is asked for
        // (Expect: 100-continue).
        let early = if fenced.template()?.uses_json() {
            None
        } else {
            let key = fenced.key(head, None)?;
            context.is_about((key.clone(), token));
            self.fencing
                .unless_known_stale(&key, token, context.trace())?;
            Some(key)
        };

        // The body first, up to `body.buffer`: a client that pauses halfway through is judged when
        // its body ends. gRPC is different: a client that pauses may be waiting for an answer.
        let limits = settings.body;
        let hold = is_grpc.then_some(limits.stream_after);
        let rules = self.body_rules(limits);
        let upload = Upload::read(body, &head.fields, &rules, hold).await?;
        if let Some(key) = early {
            return Ok((upload, key));
        }
        let (upload, key) = self.key_of_body(fenced, head, upload, permit).await;
        let key = key?;
        context.is_about((key.clone(), token));
        Ok((upload, key))
    }

    /// Derives the key of a request whose key is read from its body.
    pub(super) async fn key_of_body(
        &self,
        fenced: &Fenced,
        head: &RequestHead,
        upload: Upload,
        permit: InFlightPermit,
    ) -> (Upload, Result<ResourceKey, Refusal>) {
        let wanted = fenced.template().map(KeyTemplate::json_paths);
        let buffer = fenced.route.settings.body.buffer;
        let read = move |upload: &Upload| {
            let whole = upload.whole()?;
            let whole = whole.ok_or_else(|| Refusal::too_long_for_key(buffer))?;
            classify::json_members(&whole.data, &wanted?)
        };
        let (upload, members) = self.long_bodies.work(upload, permit, read).await;
        (upload, members.and_then(|json| fenced.key_with(head, json)))
    }

    /// The digest of a request with a long body, if its idempotency key needs one.
    async fn digest(
        &self,
        fenced: &Fenced,
        head: &RequestHead,
        upload: Upload,
        permit: &InFlightPermit,
    ) -> (Upload, Option<RequestDigest>) {
        let wanted = fenced.unsafe_method
            && fenced.route.settings.idempotency.is_some()
            && !head.fields.contains(headers::OPERATION);
        if !wanted || !LongBodies::is_long(&upload) {
            return (upload, None);
        }
        let (method, targets) = (head.method.clone(), destination::targets(head).into_owned());
        let digest = move |upload: &Upload| upstream_request::digest(&method, &targets, upload);
        self.long_bodies
            .work(upload, Arc::clone(permit), digest)
            .await
    }
}

/// Counts a fenced request when its exchange has ended: with `outcome`, or as unknown.
fn reports_end(context: &Context<'_>, route: &Arc<Route>, outcome: Outcome) -> impl Ended + use<> {
    let (snapshot, facts) = (Arc::clone(&context.snapshot), Arc::clone(&context.facts));
    let route = Arc::clone(route);
    move |status, unknown| {
        let Some(refusal) = unknown else {
            return route.metrics.request(outcome);
        };
        route.metrics.request(refusal.outcome());
        let noted = Noted {
            label: &route.settings.label,
            facts: &facts,
            status: status.unwrap_or_else(|| refusal.status(snapshot.table.style(&facts))),
            refusal: &refusal,
        };
        snapshot.notes.note(&snapshot.table.settings.log, noted);
    }
}
