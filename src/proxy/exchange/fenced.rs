//! One fenced exchange, in a future of its own that owns the permit.
//!
//! A handler's future is dropped when its client leaves, but an exchange that has begun must be
//! followed to its end. So the exchange runs in its handler's task only while its client waits for
//! the answer's head. If the client leaves before that, or the answer did not come whole with its
//! head, the rest runs to its end in a spawned task ([`SpawnOnDrop`]). [`forward`] consumes the
//! [`Permit`], so that nothing fenced can be sent without one, and nothing can be sent twice.
//!
//! Nothing is queued: over HTTP/2 a connection is reserved before the request is sent. A request that
//! waits for one gives up as soon as a newer token is known or its client has left. Nothing of it has
//! been sent then.
//!
//! From [`Permit::begin`] on, the permit ends as settled in two cases. Nothing was sent. Or the
//! response has arrived whole, shows that the upstream has finished
//! ([`Conclusion`](super::conclusion::Conclusion)), and the upstream's host has acknowledged what was
//! sent of the request ([`taken`]). In every other case (a break, a
//! timeout, a reset, a panic) the permit is dropped, and counts as an unknown outcome. Before that,
//! the drop of the connection resets it, so that nothing more of the request arrives and the outcome
//! settles from then on.

use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt as _;
use http::StatusCode;
use http_body::Body as _;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::conclusion::{Asked, Conclusion, Doubt};
use super::reply::{ClientSender, Reply, ResponseWatch};
use super::{Answered, SpawnOnDrop};
use crate::active_requests::Stage;
use crate::body::UploadProgress;
use crate::config::Count;
use crate::fencing::operations::OwnAttempt;
use crate::fencing::permit::{Permit, Sending};
use crate::fencing::{Refused, Undecided};
use crate::http1::Response;
use crate::metrics::{InFlightGuard, Outcome};
use crate::proxy::answer::Forwarded;
use crate::proxy::client_body::{ClientBody, ReplySource};
use crate::proxy::context::{Context, Listed};
use crate::proxy::headers::{self, Via};
use crate::proxy::limits::InFlightPermit;
use crate::proxy::recorder::Recorder;
use crate::proxy::refusal::Refusal;
use crate::proxy::routing_table::Route;
use crate::proxy::upstream_request::{Exchange, unanswered};
use crate::upstream::{Reserved, ResponseBody, SendError, Upstream, poll_taken, taken};

/// Sends one request under its permit, and returns the head of the upstream's response with a
/// streaming body. Dropping this future does not end an exchange that has begun, and dropping the
/// body ends none.
pub(in crate::proxy) async fn forward(
    permit: Permit,
    exchange: Box<Exchange>,
    mut terms: FenceTerms,
    held: (InFlightPermit, Listed),
    tasks: &TaskTracker,
) -> Result<Forwarded, Refusal> {
    terms.context.progress.enter(Stage::Connection, None);
    // Lets whatever else is ready on this worker run first. So requests leave together, and wake an
    // upstream on the same machine once for several. An attempt has just waited for the store; left
    // here by its client, it would be given back behind the permit.
    if terms.attempt.is_none() {
        tokio::task::yield_now().await;
    }
    let reserved = match reserve(&terms.context.snapshot.upstream, &permit).await {
        Ok(reserved) => reserved,
        Err(refusal) => {
            terms.give_back().await;
            return Err(unanswered(exchange.span, refusal));
        }
    };
    let followed = Box::pin(follow(permit, reserved, exchange, terms, held));
    let answered = SpawnOnDrop::new(followed, tasks).await;
    answered.unwrap_or_else(|| Err(Refusal::Broken("the exchange was aborted".into())))
}

/// Follows an exchange from its first step to the head of its answer, and further if that came
/// whole.
async fn follow(
    permit: Permit,
    reserved: Reserved,
    exchange: Box<Exchange>,
    mut terms: FenceTerms,
    held: (InFlightPermit, Listed),
) -> Answered {
    if let Some(name) = &terms.spend {
        let ends = Instant::now() + terms.context.table().settings.store.timeout.0;
        terms.context.progress.enter(Stage::Store, Some(ends));
        if let Err(refusal) = spend(&permit, name).await {
            terms.give_back().await;
            drop(permit);
            return (Err(unanswered(exchange.span, refusal)), None);
        }
    }
    if let Some(attempt) = &mut terms.attempt {
        attempt.begin();
    }
    let open = OpenExchange {
        sending: permit.begin(),
        counted: (terms.route.metrics.in_flight(), held),
        terms,
    };
    let (began, timeout) = (Instant::now(), open.terms.route.settings.upstream.timeout.0);
    let upstream = &open.terms.context.snapshot.upstream;
    let progress = &open.terms.context.progress;
    progress.sends(&open.terms.progress);
    let sent = |at| progress.enter(Stage::Upstream, Some(at + timeout));
    sent(began);
    let answered = tokio::select! {
        // Biased: the first poll sends a request that is in one piece. Its end is then known
        // before the deadline is polled, so its upload needs no timer and wakes no other task. The
        // future is dropped before the permit ends.
        biased;
        answered = upstream.send(reserved, exchange.request) => answered.map_err(broken_off),
        () = open.terms.progress.silent(began, timeout, sent) => Err(Refusal::TooSlow(timeout)),
        refusal = open.cut() => Err(refusal),
    };
    let response = match answered {
        Ok(response) => response,
        Err(refusal) => {
            let answer = match unanswered(exchange.span, refusal) {
                Refusal::Unreachable(cause) => Err(open.without_effect(cause).await),
                refusal => Ok(open.broken(&refusal)),
            };
            return (answer, None);
        }
    };
    let status = response.status();
    let watch = ResponseWatch::begin(began, status, &open.terms.context, exchange.span);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        // Nobody has asked for it: a fenced request opens no tunnel.
        drop(response);
        let cause = "the upstream switched protocols unasked";
        return (Ok(open.broken(&Refusal::Broken(cause.into()))), None);
    }
    hand_on(open, response, watch).await
}

/// The reason why there is no response. The upload is a part of the exchange: if it breaks off, a
/// part of it may have arrived.
fn broken_off(error: SendError) -> Refusal {
    match error {
        SendError::Body(error) => Refusal::Broken(error.to_string()),
        error => error.into(),
    }
}

/// Reserves a connection upstream. The permit delays newer tokens meanwhile, so the wait
/// ends as soon as one is known.
async fn reserve(upstream: &Upstream, permit: &Permit) -> Result<Reserved, Refusal> {
    let reserved = tokio::select! {
        // Biased: mostly a connection is there, and nothing else need be waited for.
        biased;
        reserved = upstream.reserve(Some(permit.incarnation())) => reserved?,
        () = permit.superseded().cancelled() => return Err(superseded(permit)),
        () = permit.cutoff.cancelled() => return Err(cut_off()),
    };
    if permit.cutoff.is_cancelled() {
        return Err(cut_off());
    }
    if permit.superseded().is_cancelled() {
        return Err(superseded(permit));
    }
    Ok(reserved)
}

/// The exchange was not begun before the lease ended.
fn cut_off() -> Refusal {
    Refused::Unavailable(Undecided::ClosedUnsent).into()
}

fn superseded(permit: &Permit) -> Refusal {
    let superseded = permit.fencing.superseded(&permit.key, permit.token);
    superseded.into()
}

/// Spends the permit's token (`reuse: once`) under `name`. If the store does not answer, the token
/// counts as spent, and the answer to the client says so.
async fn spend(permit: &Permit, name: &str) -> Result<(), Refusal> {
    let spent = permit.fencing.spend(&permit.key, permit.token, name).await;
    spent.map_err(|refused| match refused {
        Refused::Unavailable(_) => Refusal::from(refused).and_spent(),
        decided => decided.into(),
    })?;
    if permit.superseded().is_cancelled() {
        // The token is stale now, spent or not.
        return Err(superseded(permit));
    }
    Ok(())
}

/// The terms of a fenced exchange.
pub(in crate::proxy) struct FenceTerms {
    pub context: Arc<Context>,
    pub route: Arc<Route>,
    /// Tells when nothing more of the request's body will be sent. The time for the response's head
    /// runs from then on.
    pub progress: Arc<UploadProgress>,
    /// The outcome to count, if it becomes known.
    pub outcome: Outcome,
    pub asked: Asked,
    /// `reuse: once`: the name to spend the permit's token under before the send.
    pub spend: Option<String>,
    /// The right to send the operation, where its outcome is remembered.
    pub attempt: Option<OwnAttempt>,
    pub via: Via,
}

impl FenceTerms {
    /// The operation has not been done: it may be sent again.
    async fn give_back(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.give_back().await;
        }
    }
}

/// An exchange that has begun. The connection must be dropped before its permit ends: the drop
/// resets what the upstream has not taken, and the settling starts after that.
struct OpenExchange {
    sending: Sending,
    /// Counts the exchange as in flight, keeps the in-flight permit of its request, and lists it.
    counted: (InFlightGuard, (InFlightPermit, Listed)),
    terms: FenceTerms,
}

impl OpenExchange {
    /// Resolves when the exchange must end, regardless of the upstream and the client:
    /// `barrier.grace` after a newer token is known, or when the lease has been lapsed for too long.
    async fn cut(&self) -> Refusal {
        let overdue = async {
            self.sending.superseded().cancelled().await;
            let end = Instant::now() + self.terms.route.settings.barrier.grace.0;
            self.terms.context.progress.cut_at(end);
            tokio::time::sleep_until(end).await;
        };
        let cause = tokio::select! {
            () = overdue => "a newer token waits, and the exchange did not end within barrier.grace",
            () = self.sending.cutoff.cancelled() =>
                "the proxy has lost its lease on the store, or is stopping",
        };
        Refusal::Broken(cause.into())
    }

    /// Ends the permit, and counts the request. `status`: of the answer. `unknown`: the reason if the
    /// outcome is; it is logged.
    fn end(self, status: StatusCode, unknown: Option<&Refusal>) {
        let Self {
            sending,
            counted,
            terms,
        } = self;
        match unknown {
            None => sending.settled(),
            Some(_) => drop(sending),
        }
        drop(counted);
        let outcome = unknown.map_or(terms.outcome, Refusal::outcome);
        terms.route.metrics.request(outcome);
        if let Some(refusal) = unknown {
            terms.context.note(refusal, Some(status));
        }
    }

    /// Ends the permit of an exchange whose answer cannot be handed on, as an unknown outcome.
    /// Returns the answer in its place.
    fn broken(self, refusal: &Refusal) -> Forwarded {
        let response = self.terms.context.refuse(refusal);
        self.end(response.status(), Some(refusal));
        let outcome = Some(refusal.outcome());
        Forwarded { response, outcome }
    }

    /// Ends the permit of a request that was not sent, or that the upstream has not processed. Its
    /// token can be used again.
    async fn without_effect(mut self, cause: String) -> Refusal {
        let (key, token) = (self.sending.key.clone(), self.sending.token);
        let fencing = Arc::clone(&self.sending.fencing);
        // Under the permit, so that the next one's request finds the operation free.
        self.terms.give_back().await;
        self.sending.settled();
        let refusal = Refusal::Unreachable(cause);
        if let Some(name) = self.terms.spend.take()
            && !fencing.give_back(&key, token, name).await
        {
            return refusal.and_spent();
        }
        refusal
    }
}

/// Hands an answer on, and ends the permit if the answer came whole with its head, or broke off
/// before the client got anything.
async fn hand_on(
    open: OpenExchange,
    response: Response<ResponseBody>,
    watch: ResponseWatch,
) -> Answered {
    let Response { mut head, body } = response;
    let (unknown, known) = (&open.terms.route.settings.unknown, open.terms.outcome);
    let conclusion = Conclusion::of(open.terms.asked, unknown, &head);
    let rules = headers::response_for_client(&mut head.fields, head.version, open.terms.via);
    let length = body.size_hint().exact();
    let mut reply = Reply::new(body, rules, conclusion, watch);
    if let Some(settings) = &open.terms.route.settings.outcome
        && open.terms.attempt.is_some()
    {
        reply.recorder = Some(Box::new(Recorder::new(settings, &head)));
    }
    let mut relay = Relay {
        reply,
        status: head.status,
        open,
    };
    let (source, doubt, rest) = match relay.reply.at_once().await {
        Err(refusal) => {
            drop(relay.reply);
            return (Ok(relay.open.broken(&refusal)), None);
        }
        Ok(Some(content)) => {
            let (doubt, rest) = match poll_taken(&mut relay.reply.body) {
                Poll::Ready(taken) => (relay.conclude(taken).await, None),
                Poll::Pending => (
                    relay.reply.conclusion.doubt(),
                    Some(relay.until_taken().boxed()),
                ),
            };
            (ReplySource::Whole(content), doubt, rest)
        }
        Ok(None) => {
            let request = &relay.open.terms.context;
            request.progress.enter(Stage::Response, None);
            let (client, frames) = ClientSender::new(request.snapshot.memory.share());
            let doubt = relay.reply.conclusion.head;
            let rest = Some(relay.follow(client).boxed());
            (ReplySource::Relayed(frames), doubt, rest)
        }
    };
    let outcome = Some(doubt.map_or(known, |_| Outcome::OutcomeUnknown));
    let body = ClientBody::new(source, length);
    let response = Response { head, body };
    (Ok(Forwarded { response, outcome }), rest)
}

/// An answer that is being read, and its exchange.
struct Relay {
    /// In this order: the connection is dropped before its permit ends.
    reply: Reply,
    status: StatusCode,
    open: OpenExchange,
}

impl Relay {
    /// Ends an exchange whose answer is whole. `taken`: the upstream has taken what was sent. Returns
    /// why the outcome is unknown, if it is.
    async fn conclude(mut self, taken: bool) -> Option<Doubt> {
        let doubt = self.reply.conclusion.doubt();
        let doubt = doubt.or((!taken).then_some(Doubt::NotTaken));
        if doubt.is_none() {
            self.record().await;
        }
        let unknown = doubt.map(|doubt| Refusal::Broken(doubt.to_string()));
        self.end(unknown.as_ref());
        doubt
    }

    /// Records the outcome of the operation, where that is remembered. The permit is still held, so that
    /// the next one's request finds the record.
    async fn record(&mut self) {
        let terms = &mut self.open.terms;
        if let Some(settings) = &terms.route.settings.outcome
            && let Some(recorder) = self.reply.recorder.take()
            && let Some(attempt) = terms.attempt.take()
        {
            if settings
                .not_done
                .contains(&Count(self.status.as_u16().into()))
            {
                attempt.give_back().await;
            } else {
                attempt.know(&recorder.answer(), settings.remember.0).await;
            }
        }
    }

    /// Ends the permit. A connection that has not been released is reset before that: nothing more is
    /// to arrive when the settling starts. `unknown`: the reason if the outcome is.
    fn end(self, unknown: Option<&Refusal>) {
        drop(self.reply);
        self.open.end(self.status, unknown);
    }

    /// Relays the answer to its end, and ends the permit. The client sees the end when the permit is
    /// free, or at once if the upstream has yet to take what was sent.
    async fn follow(mut self, mut client: ClientSender) {
        let (superseded, cut) = (self.open.sending.superseded(), self.open.cut());
        let read = self.reply.relay(&mut client, superseded, cut).await;
        match read.map(|last| (last, poll_taken(&mut self.reply.body))) {
            Err(refusal) => self.end(Some(&refusal)),
            Ok((last, Poll::Ready(taken))) => {
                self.conclude(taken).await;
                client.finish(last);
            }
            Ok((last, Poll::Pending)) => {
                client.finish(last);
                self.until_taken().await;
            }
        }
    }

    /// Waits until the upstream has taken what was sent of a request that was answered early, and
    /// ends the permit. The wait is as long as that for the head of a response, and shorter where a
    /// newer token waits.
    async fn until_taken(mut self) {
        let timeout = self.open.terms.route.settings.upstream.timeout.0;
        let progress = &self.open.terms.context.progress;
        progress.enter(Stage::Response, Some(Instant::now() + timeout));
        let in_time = tokio::select! {
            taken = taken(&mut self.reply.body) => taken,
            _ = self.open.cut() => false,
            () = tokio::time::sleep(timeout) => false,
        };
        self.conclude(in_time).await;
    }
}

#[cfg(test)]
mod tests;
