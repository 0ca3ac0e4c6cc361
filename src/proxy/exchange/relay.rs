//! The second half of an exchange: its answer has begun, and is relayed to the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;

use super::client_side::{self, ClientSender};
use super::conclusion::{Conclusion, Doubt, GrpcStatus};
use super::cuts::Cuts;
use super::open::OpenExchange;
use super::{Answered, Ended, ExchangeLimits, HeadTx, refuse};
use crate::proxy::body::BoxError;
use crate::proxy::body::MemoryShare;
use crate::proxy::body::{AnswerFraming, ClientBody};
use crate::proxy::headers;
use crate::proxy::headers::trailers::TrailerRules;
use crate::proxy::headers::via::Via;
use crate::proxy::message::Response;
use crate::proxy::refusal::{Refusal, Why};
use crate::proxy::response_watch::ResponseWatch;
use crate::proxy::upstream::{ResponseBody, poll_taken, taken, upload};

/// An exchange whose answer has begun.
pub(super) struct AnsweredExchange<G, E> {
    pub open: OpenExchange<G>,
    pub head: HeadTx,
    pub conclusion: Conclusion,
    pub via: Via,
    pub memory: MemoryShare,
    pub ended: E,
}

impl<G, E: Ended> AnsweredExchange<G, E> {
    /// Relays the whole response to the client, and ends the permit.
    pub(super) async fn hand_on(self, response: Response<ResponseBody>, watch: ResponseWatch) {
        let Self {
            head,
            open,
            conclusion,
            via,
            memory,
            ended,
        } = self;
        let cuts = open.cuts();
        // However this ends, the body is dropped before the permit, which is declared before it.
        let Response {
            head: mut said,
            mut body,
        } = response;
        let status = said.status;
        let mut later = conclusion.in_trailers(&said);
        let doubt = conclusion.doubt(&said);
        let trailers = headers::response_for_client(&mut said.fields, said.version, via);
        let framing = AnswerFraming::of(&body);
        let answered = |body, in_doubt| Answered {
            response: Response { head: said, body },
            in_doubt,
        };
        let mut reading = Relay {
            body: &mut body,
            rules: &trailers,
            later: &mut later,
        };
        let first = first_frame(reading.body).await;
        let (left, read) = match reading.at_once(first) {
            Ok(frame) => {
                let in_doubt = doubt.or(reading.doubt()).is_some();
                let answered = answered(ClientBody::whole(framing, frame), in_doubt);
                (Remainder::Answer(head, answered), Ok(()))
            }
            Err(Poll::Ready(Some(Err(error)))) => {
                // The client has got nothing yet.
                drop((body, open.sending));
                refuse(head, broken(&error), ended);
                return;
            }
            Err(first) => {
                let (mut client, relayed) = client_side::channel(framing, memory);
                let _ = head.send(Ok(answered(relayed, doubt.is_some())));
                let read = Box::pin(reading.pump(first, &mut client, cuts, open.limits)).await;
                (Remainder::Frames(client), read)
            }
        };
        let whole = read.is_ok();
        watch.end(whole);
        let (mut left, mut finish) = (Some(left), None);
        let mut end = read.and(in_doubt(doubt.or(later.and_then(|later| later.doubt()))));
        if whole {
            let in_time = match poll_taken(&mut body) {
                Poll::Ready(taken) => taken,
                Poll::Pending => {
                    finish = left.take().and_then(|left| left.finish(whole));
                    Box::pin(early(&mut body, cuts, open.limits, &mut finish)).await
                }
            };
            end = end.and(in_doubt((!in_time).then_some(Doubt::NotTaken)));
        }
        // A connection that has not been released is reset before the permit ends: nothing more is
        // to arrive when the settling starts.
        drop(body);
        if end.is_ok() {
            open.sending.settled();
        } else {
            drop(open.sending);
        }
        drop(open.counted);
        ended(Some(status), end.err());
        let finish = left.map_or(finish, |left| left.finish(whole));
        if let Some(finish) = finish {
            finish.await;
        }
    }
}

/// The answer leaves open what became of the request.
fn in_doubt(doubt: Option<Doubt>) -> Result<(), Refusal> {
    let said = "The answer leaves open what became of the request";
    doubt.map_or(Ok(()), |doubt| Err(Refusal::Broken(Why::of(said, &doubt))))
}

fn broken(error: &BoxError) -> Refusal {
    let said = "The answer broke off";
    Refusal::Broken(Why::of(said, error))
}

/// Waits until the upstream has taken what was sent of a request that was answered early, and says
/// if it has. The client gets the answer meanwhile, because it may send no more until it has read
/// it: `finish` is empty once it has all of it. The wait is as long as that for the head of a
/// response, and shorter where a newer token waits.
async fn early(
    body: &mut ResponseBody,
    cuts: Cuts<'_>,
    limits: ExchangeLimits,
    finish: &mut Option<Finish>,
) -> bool {
    let mut taken = std::pin::pin!(taken(body));
    let mut cut = std::pin::pin!(cuts.due());
    let mut late = std::pin::pin!(tokio::time::sleep(limits.timeout));
    loop {
        let passed_on = async {
            match finish {
                Some(finish) => finish.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            taken = &mut taken => return taken,
            _ = &mut cut => return false,
            () = &mut late => return false,
            () = passed_on => *finish = None,
        }
    }
}

/// The client takes the rest of an answer.
type Finish = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The part of an answer that the client has not got yet.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for an exchange, and mostly it is the large one"
)]
enum Remainder {
    /// All of an answer that came whole with its head.
    Answer(HeadTx, Answered),
    Frames(ClientSender),
}

impl Remainder {
    /// Hands it over, if the response is `whole`. Returns what takes longer.
    fn finish(self, whole: bool) -> Option<Finish> {
        match self {
            Self::Answer(head, answered) => {
                let _ = head.send(Ok(answered));
                None
            }
            Self::Frames(client) => whole.then(|| Box::pin(client.finish()) as Finish),
        }
    }
}

type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

/// The first frame, if it is there already.
async fn first_frame(body: &mut ResponseBody) -> Poll<NextFrame> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await
}

/// A response that is being read.
struct Relay<'a> {
    body: &'a mut ResponseBody,
    rules: &'a TrailerRules,
    later: &'a mut Option<GrpcStatus>,
}

impl Relay<'_> {
    /// All of a response that is whole with its `first` frame.
    ///
    /// # Errors
    /// Yields the frame where it is not, or not yet known to be.
    fn at_once(&mut self, first: Poll<NextFrame>) -> Result<Option<Frame<Bytes>>, Poll<NextFrame>> {
        match first {
            Poll::Ready(None) => Ok(None),
            Poll::Ready(Some(Ok(mut frame))) if self.body.is_end_stream() => {
                self.strip(&mut frame);
                Ok(Some(frame))
            }
            first => Err(first),
        }
    }

    /// Removes the trailers that the client must not get.
    fn strip(&mut self, frame: &mut Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_mut() {
            if let Some(status) = self.later {
                status.read(trailers);
            }
            self.rules.strip(trailers);
        }
    }

    /// The doubt that the trailers leave, as far as they have come.
    fn doubt(&self) -> Option<Doubt> {
        self.later.as_ref().and_then(GrpcStatus::doubt)
    }

    /// Follows the response to its end, from its `first` frame on.
    ///
    /// # Errors
    ///
    /// It broke or was cut.
    async fn pump(
        &mut self,
        mut first: Poll<NextFrame>,
        client: &mut ClientSender,
        cuts: Cuts<'_>,
        limits: ExchangeLimits,
    ) -> Result<(), Refusal> {
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
            self.strip(&mut frame);
            if self.body.is_end_stream() {
                // The response is whole already. The rest is between the proxy and its client.
                client.keep_last(frame);
                return Ok(());
            }
            tokio::select! {
                () = client.give(frame, cuts.superseded) => {}
                // The client may read no more before it has sent all.
                error = upload(self.body) => return Err(broken(&error)),
                cut = &mut cut => return Err(cut.refusal(limits)),
            }
        }
    }
}
