//! Passes unfenced requests on: without a fencing permit, without a lease, without waiting.

use std::sync::Arc;

use super::answer::{CountAs, Forwarded};
use super::context::Context;
use super::exchange::unfenced;
use super::limits::InFlightPermit;
use super::refusal::Refusal;
use super::routing_table::Route;
use super::setup::Proxy;
use super::upstream_request::Additions;
use crate::body::{Received, RequestBody, UploadProgress};
use crate::http1::RequestHead;
use crate::metrics::Outcome;

impl Proxy {
    /// Passes a request that is not judged. `upgrade`: its tunnel may be opened.
    pub(super) async fn unfenced(
        &self,
        context: &Context<'_>,
        route: Option<&Arc<Route>>,
        upgrade: bool,
        head: RequestHead,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        let permit = self.in_flight.take(context.client)?;
        let settings = match route {
            Some(route) => route.settings.body,
            None => context.table().settings.body,
        };
        let rules = context.snapshot.body_rules(settings);
        let upload = RequestBody::streamed(body, &rules)?;
        self.pass(context, route, upgrade, (head, upload), permit)
            .await
    }

    /// As [`Self::unfenced`], for a body that may have been read in part.
    pub(super) async fn pass(
        &self,
        context: &Context<'_>,
        route: Option<&Arc<Route>>,
        upgrade: bool,
        (mut head, upload): (RequestHead, RequestBody),
        permit: InFlightPermit,
    ) -> Result<Forwarded, Refusal> {
        let mut additions = Additions::default();
        if upgrade && !context.snapshot.upstream.h2 {
            additions.opening = self.tunnel(&mut head, context.client)?;
        }
        let progress = Arc::new(UploadProgress::default());
        let body = upload.send_unfenced(Arc::clone(&progress));
        let exchange = self.exchange(context, route, head, body, additions, permit);
        let metrics = route.map_or(&context.table().unmatched_metrics, |route| &route.metrics);
        let way = (&*context.snapshot.upstream, &**metrics, &*context.facts);
        Ok(Forwarded {
            response: unfenced::forward(exchange, way, &progress, &self.tasks).await?,
            counted: CountAs::Outcome(Outcome::Unfenced),
        })
    }
}
