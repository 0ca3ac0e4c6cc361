//! [`OpenExchange`]: a fenced exchange that has begun, and how it ends: without an answer, or with
//! the end of its [answer](hand_on).

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::StatusCode;
use http_body::Body as _;

use super::conclusion::{Asked, Conclusion, Doubt};
use super::reply::{ClientSender, Reply, ResponseWatch};
use crate::body::UploadProgress;
use crate::fencing::permit::Sending;
use crate::http1::Response;
use crate::metrics::{InFlightGuard, Outcome};
use crate::proxy::answer::Forwarded;
use crate::proxy::client_body::{ClientBody, ReplySource};
use crate::proxy::context::Context;
use crate::proxy::headers::{self, Via};
use crate::proxy::limits::InFlightPermit;
use crate::proxy::refusal::Refusal;
use crate::proxy::routing_table::Route;
use crate::upstream::{ResponseBody, poll_taken, taken};

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
    pub via: Via,
}

impl FenceTerms {
    /// An exchange has ended that was answered, or whose unknown outcome its client was not there to
    /// get: counts the request, and logs the reason if the outcome is `unknown`. `status`: of the
    /// answer.
    pub(super) fn ended(&self, status: Option<StatusCode>, unknown: Option<&Refusal>) {
        let (metrics, label) = (&self.route.metrics, &self.route.settings.label);
        let Some(refusal) = unknown else {
            return metrics.request(self.outcome);
        };
        metrics.request(refusal.outcome());
        let status = status.unwrap_or_else(|| refusal.status(self.context.style()));
        self.context.note(label, refusal, Some(status));
    }
}

/// An exchange that has begun. The connection must be dropped before its permit ends: the drop
/// resets what the upstream has not taken, and the settling starts after that.
pub(super) struct OpenExchange {
    pub sending: Sending,
    /// Counts the exchange as in flight, and keeps the in-flight permit of its request.
    pub counted: (InFlightGuard, InFlightPermit),
    pub terms: FenceTerms,
}

/// An exchange that got no answer.
pub(super) struct Unanswered {
    pub refusal: Refusal,
    pub terms: FenceTerms,
}

impl OpenExchange {
    /// Resolves when the exchange must end, regardless of the upstream and the client:
    /// `barrier.grace` after a newer token is known, or when the lease has been lapsed for too long.
    pub(super) async fn cut(&self) -> Refusal {
        let overdue = async {
            self.sending.superseded().cancelled().await;
            tokio::time::sleep(self.terms.route.settings.barrier_grace).await;
        };
        let cause = tokio::select! {
            () = overdue => "a newer token waits, and the exchange did not end within barrier.grace",
            () = self.sending.cutoff().cancelled() =>
                "the proxy has lost its lease on the store, or is stopping",
        };
        Refusal::Broken(cause.into())
    }

    /// Ends the permit of an exchange whose answer cannot be handed on, as an unknown outcome.
    pub(super) fn broken(self, refusal: Refusal) -> Unanswered {
        drop(self.sending);
        let terms = self.terms;
        Unanswered { refusal, terms }
    }

    /// Ends the permit of a request that was not sent, or that the upstream has not processed. Its
    /// token can be used again.
    pub(super) async fn without_effect(mut self, mut refusal: Refusal) -> Unanswered {
        let (key, token) = (self.sending.key().clone(), self.sending.token());
        let fencing = Arc::clone(self.sending.fencing());
        self.sending.settled();
        if let Some(name) = self.terms.spend.take()
            && let Refusal::Unreachable { spent, .. } = &mut refusal
        {
            *spent = !fencing.give_back(&key, token, name).await;
        }
        let terms = self.terms;
        Unanswered { refusal, terms }
    }
}

/// What is left of an exchange when its answer is handed on.
pub(super) type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer of the upstream.
pub(in crate::proxy) struct Answered {
    /// Its outcome may be unknown though the response comes whole.
    pub forwarded: Forwarded,
    /// `None`: the exchange is over.
    pub(super) rest: Option<Rest>,
}

/// Hands an answer on, and ends the permit if the answer came whole with its head.
///
/// # Errors
///
/// It broke off before the client got anything.
pub(super) async fn hand_on(
    open: OpenExchange,
    response: Response<ResponseBody>,
    watch: ResponseWatch,
) -> Result<Answered, Unanswered> {
    let Response { mut head, body } = response;
    let unknown = &open.terms.route.settings.unknown;
    let conclusion = Conclusion::of(open.terms.asked, unknown, &head);
    let (mut doubt, mut outcome) = (conclusion.head, open.terms.outcome);
    let rules = headers::response_for_client(&mut head.fields, head.version, open.terms.via);
    let length = body.size_hint().exact();
    let mut relay = Relay {
        reply: Reply::new(body, rules, conclusion),
        status: head.status,
        open,
    };
    let content = match relay.reply.at_once().await {
        Ok(content) => content,
        Err(refusal) => {
            drop(relay.reply);
            return Err(relay.open.broken(refusal));
        }
    };
    let (body, rest) = if let Some(content) = content {
        watch.end(true);
        doubt = relay.reply.conclusion.doubt();
        let rest = match poll_taken(&mut relay.reply.body) {
            Poll::Ready(taken) => {
                doubt = doubt.or((!taken).then_some(Doubt::NotTaken));
                relay.conclude(taken);
                None
            }
            Poll::Pending => Some(Box::pin(relay.until_taken()) as Rest),
        };
        (ClientBody::new(ReplySource::Whole(content), length), rest)
    } else {
        let (client, frames) = ClientSender::new(relay.open.terms.context.snapshot.memory.share());
        let rest = Box::pin(relay.follow(client, watch)) as Rest;
        (
            ClientBody::new(ReplySource::Relayed(frames), length),
            Some(rest),
        )
    };
    if doubt.is_some() {
        outcome = Outcome::OutcomeUnknown;
    }
    let (response, outcome) = (Response { head, body }, Some(outcome));
    let forwarded = Forwarded { response, outcome };
    Ok(Answered { forwarded, rest })
}

/// An answer that is being read, and its exchange.
struct Relay {
    /// In this order: the connection is dropped before its permit ends.
    reply: Reply,
    status: StatusCode,
    open: OpenExchange,
}

impl Relay {
    /// Ends an exchange whose answer is whole. `taken`: the upstream has taken what was sent.
    fn conclude(self, taken: bool) {
        let doubt = self
            .reply
            .conclusion
            .doubt()
            .or((!taken).then_some(Doubt::NotTaken));
        let unknown = doubt.map(|doubt| Refusal::Broken(doubt.to_string()));
        self.end(unknown.as_ref());
    }

    /// Ends the permit. A connection that has not been released is reset before that: nothing more is
    /// to arrive when the settling starts. `unknown`: the reason if the outcome is.
    fn end(self, unknown: Option<&Refusal>) {
        drop(self.reply);
        let OpenExchange {
            sending,
            counted,
            terms,
        } = self.open;
        match unknown {
            None => sending.settled(),
            Some(_) => drop(sending),
        }
        drop(counted);
        terms.ended(Some(self.status), unknown);
    }

    /// Relays the answer to its end, and ends the permit. The client sees the end when the permit is
    /// free, or at once if the upstream has yet to take what was sent.
    async fn follow(mut self, mut client: ClientSender, watch: ResponseWatch) {
        let (superseded, cut) = (self.open.sending.superseded(), self.open.cut());
        let read = self.reply.relay(&mut client, superseded, cut).await;
        watch.end(read.is_ok());
        match read.map(|last| (last, poll_taken(&mut self.reply.body))) {
            Err(refusal) => self.end(Some(&refusal)),
            Ok((last, Poll::Ready(taken))) => {
                self.conclude(taken);
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
        let timeout = self.open.terms.route.settings.upstream_timeout;
        let in_time = tokio::select! {
            taken = taken(&mut self.reply.body) => taken,
            _ = self.open.cut() => false,
            () = tokio::time::sleep(timeout) => false,
        };
        self.conclude(in_time);
    }
}
