//! Passes unfenced requests on: without a fencing permit, without a lease, without waiting. The
//! exchange runs in its request's task, and ends with its client.

use std::sync::Arc;

use http::StatusCode;
use http_body::Body as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answer::Forwarded;
use super::client_body::{ClientBody, ReplySource};
use super::context::{Context, Listed};
use super::exchange::Conclusion;
use super::exchange::reply::{ClientSender, Reply, ResponseWatch};
use super::headers;
use super::limits::InFlightPermit;
use super::refusal::Refusal;
use super::setup::Proxy;
use super::tunnel::TunnelOpening;
use super::upstream_request::{Exchange, unanswered};
use crate::active_requests::Stage;
use crate::body::{Received, RequestBody, UploadProgress};
use crate::http1::{RequestHead, Response};
use crate::metrics::Outcome;

impl Proxy {
    /// Passes a request that is not judged. `upgrade`: its tunnel may be opened. `outcome`: to count.
    pub(super) async fn unfenced(
        &self,
        context: &Arc<Context>,
        upgrade: bool,
        head: RequestHead,
        body: Received,
        outcome: Outcome,
    ) -> Result<Forwarded, Refusal> {
        let permit = self.in_flight.take(&context.client)?;
        let settings = match &context.route {
            Some(route) => route.settings.body,
            None => context.table().settings.body,
        };
        let rules = context.snapshot.body_rules(settings);
        let upload = RequestBody::streamed(body, &rules)?;
        let passed = self.pass(context, upgrade, head, upload, permit);
        Ok(Forwarded {
            response: passed.await?,
            outcome: Some(outcome),
        })
    }

    /// As [`Self::unfenced`], for a body that may have been read in part.
    pub(super) async fn pass(
        &self,
        context: &Arc<Context>,
        upgrade: bool,
        mut head: RequestHead,
        upload: RequestBody,
        permit: InFlightPermit,
    ) -> Result<Response<ClientBody>, Refusal> {
        let upstream = &context.snapshot.upstream;
        let timeout = match &context.route {
            Some(route) => route.settings.upstream.timeout.0,
            None => context.table().settings.upstream.timeout.0,
        };
        let mut opening = None;
        if upgrade && !upstream.h2 {
            opening = TunnelOpening::take(&mut head, &self.stopping);
        }
        let progress = Arc::new(UploadProgress::default());
        context.progress.sends(&progress);
        let body = upload.send(Arc::clone(&progress), false);
        let exchange = self.exchange(context, head, body, None, None);
        let Exchange { mut request, span } = *exchange;
        if let Some(opening) = &opening {
            opening.ask(&mut request.head.fields);
        }
        // As for fenced requests: requests leave together.
        tokio::task::yield_now().await;
        let began = Instant::now();
        let _listed = Listed::new(context, Stage::Upstream, began + timeout);
        let sent = |at| context.progress.enter(Stage::Upstream, Some(at + timeout));
        let answered = async {
            let reserved = upstream.reserve(None).await?;
            upstream.send(reserved, request).await
        };
        let answered = tokio::select! {
            biased;
            answered = answered => answered.map_err(Refusal::from),
            () = progress.silent(began, timeout, sent) => Err(Refusal::TooSlow(timeout)),
        };
        let response = match answered {
            Ok(response) => response,
            Err(refusal) => return Err(unanswered(span, refusal)),
        };
        progress.answered();
        let status = response.status();
        let watch = ResponseWatch::begin(began, status, context, span);
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let (answer, tunnel) = TunnelOpening::switch(opening, response, self.via)?;
            // A tunnel may never end. It counts among the connections, no longer among the requests.
            drop(permit);
            self.tasks.spawn(async move {
                if tunnel.await {
                    watch.whole();
                }
            });
            return Ok(answer);
        }
        let Response { mut head, body } = response;
        let rules = headers::response_for_client(&mut head.fields, head.version, self.via);
        let length = body.size_hint().exact();
        let mut reply = Reply::new(body, rules, Conclusion::default(), watch);
        let source = if let Some(content) = reply.at_once().await? {
            ReplySource::Whole(content)
        } else if progress.is_uploading() {
            // In a task of its own, which goes on with the upload: the client may send all before it
            // reads. The task ends with the response, or when the client leaves.
            let (mut client, frames) = ClientSender::new(context.snapshot.memory.share());
            tokio::spawn(async move {
                let left = client.left();
                let superseded = CancellationToken::new();
                if let Ok(last) = reply.relay(&mut client, &superseded, left).await {
                    client.finish(last);
                }
            });
            ReplySource::Relayed(frames)
        } else {
            ReplySource::Passed(Box::new(reply))
        };
        let mut body = ClientBody::new(source, length);
        body.keep(permit);
        Ok(Response { head, body })
    }
}
