//! The second half of an exchange: its answer has begun, and is relayed to the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;

use super::client_side::{self, ClientSender};
use super::conclusion::{Conclusion, Doubt, GrpcStatus};
use super::cuts::{Cuts, give_up};
use super::open::OpenExchange;
use super::{Answered, ExchangeLimits, HeadTx};
use crate::metrics::Outcome;
use crate::proxy::body::BoxError;
use crate::proxy::body::MemoryShare;
use crate::proxy::body::{AnswerFraming, ClientBody};
use crate::proxy::headers;
use crate::proxy::headers::trailers::TrailerRules;
use crate::proxy::headers::via::Via;
use crate::proxy::response_watch::ResponseWatch;
use crate::proxy::upstream::ResponseBody;
use crate::routing::{ResourceKey, Token};

/// An exchange whose answer has begun.
pub(super) struct AnsweredExchange<G> {
    pub open: OpenExchange<G>,
    pub head: HeadTx,
    pub sent: CancellationToken,
    pub conclusion: Conclusion,
    pub via: Via,
    pub memory: MemoryShare,
}

impl<G> AnsweredExchange<G> {
    /// Relays the whole response to the client, and ends the permit.
    pub(super) async fn hand_on(self, response: Response<ResponseBody>, watch: ResponseWatch) {
        // However this ends, variables are dropped in the reverse order: hold, upload, permit.
        let Self {
            head,
            open,
            sent,
            conclusion,
            via,
            memory,
        } = self;
        let OpenExchange {
            counted,
            key,
            token,
            limits,
            sending,
            upload,
            hold,
        } = open;
        let cuts = Cuts::of(&sending, limits);
        let (mut parts, mut body) = response.into_parts();
        let mut later = conclusion.in_trailers(&parts);
        let last = |later: &GrpcStatus| later.doubt().filter(|_| body.is_end_stream());
        let doubt = conclusion
            .doubt(&parts)
            .or_else(|| later.as_ref().and_then(last));
        let trailers = headers::response_for_client(&mut parts.headers, parts.version, via);
        parts.version = Version::default();
        let framing = AnswerFraming::of(&body);
        let answered = |body| Answered {
            response: Response::from_parts(parts, body),
            doubt,
        };
        // While the client still uploads, it gets the answer as it comes.
        let first = if sent.is_cancelled() {
            first_frame(&mut body).await
        } else {
            Poll::Pending
        };
        let mut reading = Relay {
            body: &mut body,
            rules: &trailers,
            later: &mut later,
        };
        let (mut whole, left) = match reading.at_once(first) {
            Ok(frame) => {
                let answered = answered(ClientBody::whole(framing, frame));
                (true, Remainder::Answer(head, answered))
            }
            Err(first) => {
                let (mut client, relayed) = client_side::channel(framing, memory);
                let _ = head.send(Ok(answered(relayed)));
                let whole = reading.pump(first, &mut client, cuts).await;
                (whole, Remainder::Frames(client))
            }
        };
        watch.end(whole);
        let mut finish = std::pin::pin!(left.finish(whole));
        let mut finished = false;
        let early = !sent.is_cancelled();
        if whole && early {
            (whole, finished) = upload_ends(&sent, cuts, limits, finish.as_mut()).await;
        }
        let told = later.and_then(|status| status.doubt());
        let told = told.filter(|_| whole && doubt.is_none());
        if let Some(doubt) = told {
            say_unknown(&key, token, doubt);
        }
        if whole && doubt.is_none() && told.is_none() {
            hold.disarm();
            sending.settled();
            // Frees the stream before the client has taken the answer.
            drop(body);
        } else {
            drop((body, upload));
            if whole && !early {
                // The whole request had arrived before the answer, and the connection is sound.
                hold.disarm();
            } else {
                // Nothing more is to arrive when the settling starts.
                give_up(hold, cuts).await;
            }
            drop(sending);
        }
        drop(counted);
        if whole && !finished {
            finish.await;
        }
    }
}

/// Logs a doubt that only the trailers showed. The request was counted and logged by its head.
fn say_unknown(key: &ResourceKey, token: Token, doubt: Doubt) {
    tracing::warn!(
        outcome = Outcome::OutcomeUnknown.as_str(),
        resource = key.as_str(),
        token = token.to_string(),
        reason = doubt.to_string(),
        "the outcome is unknown"
    );
}

/// Waits for an upload that goes on after its answer: the connection still carries bytes of this
/// request. The client gets the whole answer meanwhile, because it may send no more until it has
/// read it. The wait ends after the time limits of the upload and of the answer. Returns whether
/// the upload has ended by itself, and whether the client has its answer.
async fn upload_ends(
    sent: &CancellationToken,
    cuts: Cuts<'_>,
    limits: ExchangeLimits,
    mut finish: Pin<&mut impl Future<Output = ()>>,
) -> (bool, bool) {
    let mut cut = std::pin::pin!(cuts.due());
    let mut late = std::pin::pin!(tokio::time::sleep(limits.upload + limits.timeout));
    let mut finished = false;
    loop {
        tokio::select! {
            () = sent.cancelled() => return (true, finished),
            _ = &mut cut => return (false, finished),
            () = &mut late => return (false, finished),
            () = &mut finish, if !finished => finished = true,
        }
    }
}

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
    /// Hands it over, if the response is `whole`.
    async fn finish(self, whole: bool) {
        match self {
            Self::Answer(head, answered) => {
                let _ = head.send(Ok(answered));
            }
            Self::Frames(client) => client.finish(whole).await,
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

    /// Follows the response to its end, from its `first` frame on; `false` if it broke or was cut.
    async fn pump(
        &mut self,
        mut first: Poll<NextFrame>,
        client: &mut ClientSender,
        cuts: Cuts<'_>,
    ) -> bool {
        let cut = cuts.due();
        let mut cut = std::pin::pin!(cut);
        loop {
            let frame = match std::mem::replace(&mut first, Poll::Pending) {
                Poll::Ready(frame) => frame,
                Poll::Pending => tokio::select! {
                    frame = self.body.frame() => frame,
                    _ = &mut cut => return false,
                },
            };
            let mut frame = match frame {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => frame,
            };
            self.strip(&mut frame);
            if self.body.is_end_stream() {
                // The response is whole already. The rest is between the proxy and its client.
                client.keep_last(frame);
                return true;
            }
            tokio::select! {
                () = client.give(frame, cuts.superseded) => {}
                _ = &mut cut => return false,
            }
        }
    }
}
