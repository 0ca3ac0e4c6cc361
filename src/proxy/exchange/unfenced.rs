//! One unfenced exchange. It runs in its request's task, and ends with its client.

use std::sync::Arc;

use http::StatusCode;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{Exchange, unanswered};
use crate::body::UploadProgress;
use crate::http1::Response;
use crate::metrics::RouteMetrics;
use crate::proxy::classify::is_safe;
use crate::proxy::client_body::{AnswerFraming, ClientBody, RelayedFrame};
use crate::proxy::facts::{RequestFacts, ResponseWatch};
use crate::proxy::headers;
use crate::proxy::headers::TrailerRules;
use crate::proxy::refusal::Refusal;
use crate::proxy::tunnel::TunnelOpening;
use crate::upstream::{ResponseBody, Upstream, is_uploading, upload};

/// Sends one request, and returns the upstream's response. Its body holds the in-flight permit to
/// the end.
pub(crate) async fn forward(
    exchange: Box<Exchange>,
    (upstream, metrics, facts): (&Upstream, &RouteMetrics, &RequestFacts),
    progress: &Arc<UploadProgress>,
    tasks: &TaskTracker,
) -> Result<Response<ClientBody>, Refusal> {
    let began = Instant::now();
    let asked = &exchange.request.head;
    let repeatable = is_safe(&asked.method, &asked.fields);
    let timeout = exchange.timeout;
    let response = tokio::select! {
        biased;
        answered = upstream.send(upstream.plain(), exchange.request, repeatable) => match answered {
            Ok(response) => response,
            Err(error) => {
                // The client's fault says more than what it made of the exchange.
                let fault = progress.fault().map(Refusal::from);
                return Err(unanswered(exchange.span, fault.unwrap_or_else(|| error.into())));
            }
        },
        () = progress.silent(timeout) => {
            return Err(unanswered(exchange.span, Refusal::TooSlow(timeout)));
        }
    };
    let status = response.status();
    let watch = ResponseWatch::begin(metrics, began, status, facts, exchange.span);
    let (via, held) = (exchange.via, exchange.held);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let (answer, tunnel) = TunnelOpening::switch(exchange.opening, response, via)?;
        tasks.spawn(async move {
            let _held = held;
            if let Some(rest) = tunnel.run().await {
                watch.end(true);
                rest.finish().await;
            }
        });
        return Ok(answer);
    }
    let Response { mut head, body } = response;
    let rules = headers::response_for_client(&mut head.fields, head.version, via);
    let mut body = if is_uploading(&body) {
        relayed(body, rules, watch)
    } else {
        ClientBody::passed(body, rules, watch)
    };
    body.keep(held, Some(progress.answering()));
    Ok(Response { head, body })
}

/// Relays a response in a task of its own, which goes on with the upload: the client may send all
/// before it reads. The task ends with the response, or when the client leaves.
fn relayed(mut body: ResponseBody, rules: TrailerRules, watch: ResponseWatch) -> ClientBody {
    let framing = AnswerFraming::of(&body);
    let (frames, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let whole = tokio::select! {
            whole = relay(&mut body, &rules, &frames) => whole,
            () = frames.closed() => false,
        };
        watch.end(whole);
    });
    ClientBody::relayed(framing, receiver)
}

/// `false`: the response broke off, or its client has left.
async fn relay(
    body: &mut ResponseBody,
    rules: &TrailerRules,
    frames: &mpsc::Sender<RelayedFrame>,
) -> bool {
    loop {
        let message = match body.frame().await {
            None => RelayedFrame::Last(None),
            Some(Err(_)) => return false,
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    rules.strip(trailers);
                }
                if body.is_end_stream() {
                    RelayedFrame::Last(Some(frame))
                } else {
                    RelayedFrame::Next(frame)
                }
            }
        };
        let last = matches!(message, RelayedFrame::Last(_));
        let sent = tokio::select! {
            sent = frames.send(message) => sent.is_ok(),
            _ = upload(body) => false,
        };
        if last || !sent {
            return sent;
        }
    }
}
