//! The second half of an exchange: its answer has begun, and is handed on to the client, to its end.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answered::{Answered, HeadTx};
use super::client::{self, AnswerFraming, Followed, FollowedClient};
use super::cuts::{Cuts, give_up};
use super::limits::ExchangeLimits;
use crate::fencing::barrier::Sending;
use crate::metrics::{Outcome, ResponseTimer};
use crate::proxy::body::BoxError;
use crate::proxy::conclusion::{Conclusion, Doubt, GrpcStatus};
use crate::proxy::headers;
use crate::proxy::headers::trailers::TrailerRules;
use crate::proxy::headers::via::Via;
use crate::proxy::memory::Share;
use crate::proxy::reply::ClientBody;
use crate::proxy::upstream::{ExchangeHold, ResponseBody};
use crate::routing::{ResourceKey, Token};

/// An exchange whose answer has begun. Fields are dropped in this order: an upload that still runs
/// ends before the settling starts, and so before the permit.
pub(super) struct AnsweredExchange<C> {
    pub hold: ExchangeHold,
    pub upload: DropGuard,
    pub sending: Sending,
    /// Counts the exchange as in flight, and holds what is held for it.
    pub counted: C,
    pub head: HeadTx,
    pub key: ResourceKey,
    pub token: Token,
    pub sent: CancellationToken,
    pub limits: ExchangeLimits,
    pub conclusion: Conclusion,
    pub via: Via,
    pub memory: Share,
}

impl<C> AnsweredExchange<C> {
    /// Hands the response to the client, to its end, and ends the permit.
    pub(super) async fn hand_on(self, response: Response<ResponseBody>, timer: ResponseTimer) {
        // However this ends, variables are dropped in the reverse order: hold, upload, permit.
        let Self {
            head,
            counted,
            key,
            token,
            sending,
            upload,
            hold,
            sent,
            limits,
            conclusion,
            via,
            memory,
        } = self;
        let cuts = Cuts::of(&sending, limits);
        let (mut parts, mut body) = response.into_parts();
        let mut later = conclusion.in_trailers(&parts);
        let last = |later: &GrpcStatus| later.doubt().filter(|_| body.is_end_stream());
        let doubt = conclusion
            .doubt(&parts)
            .or_else(|| later.as_ref().and_then(last));
        let trailers = headers::response_for_client(&mut parts.headers, parts.version, &via);
        parts.version = Version::default();
        let framing = AnswerFraming::of(&body);
        let answered = |body| Answered {
            response: Response::from_parts(parts, ClientBody::followed(body)),
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
                let answered = answered(Followed::whole(framing, frame));
                (true, Remainder::Answer(head, answered))
            }
            Err(first) => {
                let (mut client, followed) = client::way(framing, memory);
                let _ = head.send(Ok(answered(followed)));
                let whole = reading.pump(first, &mut client, cuts).await;
                (whole, Remainder::Frames(client))
            }
        };
        drop(timer);
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
            // Its stream is free before its client has taken the answer.
            drop(body);
        } else {
            drop((body, upload));
            if whole && !early {
                // All of the request was there before the answer, and nothing is wrong with the connection.
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

/// The trailers have told what the head had not: the request is counted and logged by its head.
fn say_unknown(key: &ResourceKey, token: Token, doubt: Doubt) {
    tracing::warn!(
        outcome = Outcome::OutcomeUnknown.as_str(),
        resource = key.as_str(),
        token = token.to_string(),
        reason = doubt.to_string(),
        "the outcome is unknown"
    );
}

/// The upstream has answered early and the client still uploads: the connection still carries bytes of this
/// request. The client gets the whole answer meanwhile: it may send no more until it has read it. An upstream
/// that takes no more of it has the time that an answer may take. Says whether the upload has ended by
/// itself, and whether the client has its answer.
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
    Frames(FollowedClient),
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

    /// Takes from trailers what the client is not to have.
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
        client: &mut FollowedClient,
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
                // Whole already: the rest is between the proxy and its client.
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
