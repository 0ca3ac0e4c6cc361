//! The second half of an exchange: its answer has begun, and is relayed to the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;

use super::Answered;
use super::client_side::{self, ClientSender};
use super::conclusion::{Doubt, GrpcStatus};
use super::open::{End, OpenExchange, Unanswered};
use crate::body::BoxError;
use crate::http1::Response;
use crate::proxy::client_body::{AnswerFraming, ClientBody};
use crate::proxy::facts::ResponseWatch;
use crate::proxy::headers;
use crate::proxy::headers::TrailerRules;
use crate::proxy::headers::Via;
use crate::proxy::refusal::{Refusal, Why};
use crate::upstream::{ResponseBody, poll_taken, taken, upload};

/// The client takes the rest of an answer, or the rest of an exchange is followed.
pub(super) type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer, and what is left of its exchange. `None`: that is over.
pub(super) struct Handed {
    pub answered: Answered,
    pub rest: Option<Rest>,
}

/// Hands an answer on, and ends the permit if the answer came whole with its head.
///
/// # Errors
///
/// It broke off before the client got anything.
pub(super) async fn hand_on(
    open: OpenExchange,
    response: Response<ResponseBody>,
    via: Via,
    watch: ResponseWatch,
) -> Result<Handed, Unanswered> {
    let Response { mut head, body } = response;
    let conclusion = open.terms.conclusion();
    let later = conclusion.in_trailers(&head);
    let doubt = conclusion.doubt(&head);
    let rules = headers::response_for_client(&mut head.fields, head.version, via);
    let framing = AnswerFraming::of(&body);
    let mut relay = Relay {
        body,
        rules,
        later,
        doubt,
        status: head.status,
        open,
    };
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut relay.body).poll_frame(cx))).await;
    match relay.at_once(first) {
        Ok(frame) => {
            watch.end(true);
            let answered = Answered {
                response: Response {
                    head,
                    body: ClientBody::whole(framing, frame),
                },
                in_doubt: relay.doubt().is_some(),
            };
            let rest = match poll_taken(&mut relay.body) {
                Poll::Ready(taken) => {
                    relay.conclude(taken);
                    None
                }
                Poll::Pending => Some(Box::pin(relay.until_taken(None)) as Rest),
            };
            Ok(Handed { answered, rest })
        }
        Err(Poll::Ready(Some(Err(error)))) => {
            // The client has got nothing yet.
            drop(relay.body);
            Err(relay.open.broken(broken(&error)))
        }
        Err(first) => {
            let memory = relay.open.terms.snapshot.memory.share();
            let (client, body) = client_side::channel(framing, memory);
            let answered = Answered {
                in_doubt: relay.doubt.is_some(),
                response: Response { head, body },
            };
            let rest = Some(Box::pin(relay.follow(first, client, watch)) as Rest);
            Ok(Handed { answered, rest })
        }
    }
}

fn broken(error: &BoxError) -> Refusal {
    let said = "The answer broke off";
    Refusal::Broken(Why::of(said, error))
}

type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

/// A response that is being read, and its exchange.
struct Relay {
    /// In this order: the connection is dropped before its permit ends.
    body: ResponseBody,
    rules: TrailerRules,
    later: Option<GrpcStatus>,
    /// The doubt that the head leaves.
    doubt: Option<Doubt>,
    status: StatusCode,
    open: OpenExchange,
}

impl Relay {
    /// All of a response that is whole with its `first` frame.
    ///
    /// # Errors
    /// Yields the frame where it is not, or not yet known to be.
    fn at_once(&mut self, first: Poll<NextFrame>) -> Result<Option<Frame<Bytes>>, Poll<NextFrame>> {
        match first {
            Poll::Ready(None) => Ok(None),
            Poll::Ready(Some(Ok(mut frame))) if self.body.is_end_stream() => {
                strip(&mut frame, &self.rules, &mut self.later);
                Ok(Some(frame))
            }
            first => Err(first),
        }
    }

    /// The doubt that the answer leaves, as far as it has come.
    fn doubt(&self) -> Option<Doubt> {
        let later = || self.later.as_ref().and_then(GrpcStatus::doubt);
        self.doubt.or_else(later)
    }

    /// Ends an exchange whose answer is whole. `taken`: the upstream has taken what was sent.
    fn conclude(self, taken: bool) {
        let doubt = self.doubt().or((!taken).then_some(Doubt::NotTaken));
        self.end(doubt.map_or(End::Whole, End::Doubt));
    }

    /// A connection that has not been released is reset before the permit ends: nothing more is to
    /// arrive when the settling starts.
    fn end(self, end: End) {
        drop(self.body);
        self.open.conclude(self.status, end);
    }

    /// Relays the response to its end, from its `first` frame on, and ends the permit.
    async fn follow(
        mut self,
        first: Poll<NextFrame>,
        mut client: ClientSender,
        watch: ResponseWatch,
    ) {
        let read = self.pump(first, &mut client).await;
        watch.end(read.is_ok());
        match read {
            Err(refusal) => self.end(End::Broken(refusal)),
            Ok(()) => match poll_taken(&mut self.body) {
                Poll::Ready(taken) => {
                    self.conclude(taken);
                    client.finish().await;
                }
                Poll::Pending => self.until_taken(Some(Box::pin(client.finish()))).await,
            },
        }
    }

    /// Waits until the upstream has taken what was sent of a request that was answered early, and
    /// ends the permit. The client gets the answer meanwhile, because it may send no more until it
    /// has read it: `finish` is `None` once it has all of it. The wait is as long as that for the
    /// head of a response, and shorter where a newer token waits.
    async fn until_taken(mut self, mut finish: Option<Rest>) {
        let (cuts, limits) = (self.open.cuts(), self.open.terms.limits());
        let in_time = {
            let mut taken = std::pin::pin!(taken(&mut self.body));
            let mut cut = std::pin::pin!(cuts.due());
            let mut late = std::pin::pin!(tokio::time::sleep(limits.timeout));
            loop {
                let passed_on = async {
                    match &mut finish {
                        Some(finish) => finish.await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    taken = &mut taken => break taken,
                    _ = &mut cut => break false,
                    () = &mut late => break false,
                    () = passed_on => finish = None,
                }
            }
        };
        self.conclude(in_time);
        if let Some(finish) = finish {
            finish.await;
        }
    }

    /// Follows the response to its end.
    ///
    /// # Errors
    ///
    /// It broke or was cut.
    async fn pump(
        &mut self,
        mut first: Poll<NextFrame>,
        client: &mut ClientSender,
    ) -> Result<(), Refusal> {
        let (cuts, limits) = (self.open.cuts(), self.open.terms.limits());
        let cut = cuts.due();
        let mut cut = std::pin::pin!(cut);
        loop {
            let frame = match std::mem::replace(&mut first, Poll::Pending) {
                Poll::Ready(frame) => frame,
                Poll::Pending => tokio::select! {
                    frame = self.body.frame() => frame,
                    cut = &mut cut => return Err(cut.refusal(limits)),
                },
            };
            let mut frame = match frame {
                None => return Ok(()),
                Some(frame) => frame.map_err(|error| broken(&error))?,
            };
            strip(&mut frame, &self.rules, &mut self.later);
            if self.body.is_end_stream() {
                // The response is whole already. The rest is between the proxy and its client.
                client.keep_last(frame);
                return Ok(());
            }
            tokio::select! {
                () = client.give(frame, cuts.superseded) => {}
                // The client may read no more before it has sent all.
                error = upload(&mut self.body) => return Err(broken(&error)),
                cut = &mut cut => return Err(cut.refusal(limits)),
            }
        }
    }
}

/// Removes the trailers that the client must not get.
fn strip(frame: &mut Frame<Bytes>, rules: &TrailerRules, later: &mut Option<GrpcStatus>) {
    if let Some(trailers) = frame.trailers_mut() {
        if let Some(status) = later {
            status.read(trailers);
        }
        rules.strip(trailers);
    }
}
