//! Handles a fenced request: body, marks, barrier, exchange. Read it from top to bottom: the order
//! of the phases is the correctness argument.

use std::sync::Arc;

use http::Method;
use tokio::time::Instant;

use super::answer::Forwarded;
use super::classify::Fenced;
use super::context::{Context, Listed};
use super::exchange::{Asked, FenceTerms, fenced};
use super::headers::is_grpc;
use super::operation::Turn;
use super::refusal::Refusal;
use super::setup::Proxy;
use super::upstream_request::names;
use crate::active_requests::Stage;
use crate::body::{Received, RequestBody};
use crate::config::{Reuse, SafeMethods};
use crate::http1::RequestHead;
use crate::metrics::Outcome;
use crate::routing::ResourceKey;

impl Proxy {
    /// Checks a request's token, and forwards the request under a permit.
    pub(super) async fn fenced(
        &self,
        context: &Arc<Context>,
        fenced: Fenced,
        head: RequestHead,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        let permit = self.in_flight.take(&context.client)?;
        let (route, token) = (Arc::clone(&fenced.route), fenced.token);
        let settings = &route.settings;
        let came = context.progress.began;
        let listed = Listed::new(context, Stage::Body, came + settings.body.timeout.0);
        let whole = matches!(body, Received::Whole(_));

        // Phase 2: the body up to `body.buffer`, and the keys that are derived from it.
        let (upload, key, open) = self.upload_and_key(context, &fenced, &head, body).await?;
        let (idempotency, asked) = names(&fenced, &head, &key, &upload)?;

        // Phase 3: the marks, then the barrier. Everything after this happens under the permit.
        let needs = settings.token.bounds().needs(token);
        let wait = settings.barrier.wait.0;
        let subject = (&key, token);
        let watch = (&*route.metrics, context.trace.as_deref());
        // The clock is read only for a body that has come later.
        let came = if whole { came } else { Instant::now() };
        context.enter_admission(came, wait);
        let admitted = self.fencing.admit(needs, subject, open, wait, watch);
        let admitted = admitted.await?;

        // Phase 4: what is known of the operation, where outcomes are remembered.
        let attempt = match asked {
            None => None,
            Some(asked) => {
                let (context, permit) = ((&**context, &route), &admitted.permit);
                match self.operation(context, &head, asked, permit).await? {
                    Turn::Send(attempt) => Some(attempt),
                    Turn::Replay(response) => {
                        let outcome = Some(Outcome::Replayed);
                        return Ok(Forwarded { response, outcome });
                    }
                }
            }
        };

        // Phase 5: the exchange.
        let once = settings.reuse == Reuse::Once && fenced.unsafe_method;
        let terms = FenceTerms {
            context: Arc::clone(context),
            route: Arc::clone(&route),
            progress: Arc::default(),
            outcome: if admitted.advanced {
                Outcome::Advanced
            } else {
                Outcome::Current
            },
            asked: Asked {
                head: head.method == Method::HEAD,
                writes: fenced.unsafe_method || settings.safe_methods == SafeMethods::Required,
                grpc: is_grpc(&head.fields),
            },
            spend: once.then(|| self.spend_name()),
            attempt,
            via: self.via,
        };
        let body = upload.send(Arc::clone(&terms.progress), true);
        let idempotency = idempotency.as_ref();
        let own = idempotency.map(|(name, key)| (*name, key.as_deref()));
        let exchange = self.exchange(context, head, body, Some(subject), own);
        let kept = (Arc::clone(&permit), listed);
        let forwarded = fenced::forward(admitted.permit, exchange, terms, kept, &self.tasks);

        // Phase 6: the answer. The exchange may end long before or after the client has taken it.
        let mut forwarded = forwarded.await?;
        forwarded.response.body.keep(permit);
        Ok(forwarded)
    }

    /// Reads the body up to `body.buffer`, and derives the key. Says too whether memory has found the
    /// epoch open.
    async fn upload_and_key(
        &self,
        context: &Context,
        fenced: &Fenced,
        head: &RequestHead,
        body: Received,
    ) -> Result<(RequestBody, ResourceKey, bool), Refusal> {
        let (settings, token) = (&fenced.route.settings, fenced.token);

        // A token that is known to be stale is refused before its body is asked for
        // (Expect: 100-continue).
        let early = if fenced.route.template()?.uses_json() {
            None
        } else {
            let key = fenced.key(head, None)?;
            let _ = context.subject.set((key.clone(), token));
            let trace = context.trace.as_deref();
            let open = self.fencing.unless_known_stale(&key, token, trace)?;
            // A body that is still to come may take long.
            Some((key, open && matches!(body, Received::Whole(_))))
        };

        // The body first, up to `body.buffer`: a client that pauses halfway through is judged when
        // its body ends. gRPC is different: a client that pauses may be waiting for an answer.
        let limits = settings.body;
        let hold = is_grpc(&head.fields).then_some(limits.progress_timeout.0 / 60);
        let rules = context.snapshot.body_rules(limits);
        let upload = RequestBody::read(body, &head.fields, &rules, hold).await?;
        if let Some((key, open)) = early {
            return Ok((upload, key, open));
        }
        let key = key_of_body(fenced, head, &upload)?;
        let _ = context.subject.set((key.clone(), token));
        Ok((upload, key, false))
    }
}

/// Derives the key of a request whose key is read from its body.
pub(super) fn key_of_body(
    fenced: &Fenced,
    head: &RequestHead,
    upload: &RequestBody,
) -> Result<ResourceKey, Refusal> {
    let whole = upload.whole().ok_or_else(|| {
        Refusal::TooLarge(format!(
            "The resource key of this route is read from the body, which may have {} bytes for \
             that (body.buffer).",
            fenced.route.settings.body.buffer.0
        ))
    })?;
    fenced.key(head, Some(&whole.joined()))
}
