//! One request from its head to its answer: it is classified, and goes the way of its class.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};

use super::classify::{self, Class};
use super::core::Proxy;
use super::counting::{CountAs, Forwarded, Scope};
use super::pass::Passing;
use super::peer::Peer;
use super::received::Received;
use super::refusal::Refusal;
use super::reply::ClientBody;
use super::request_context::RequestContext;
use super::respond;
use super::{headers, http2, tunnel};
use crate::metrics::{Limit, Outcome};
use crate::wire::request::{RequestError, RequestErrorKind};

/// How long a request that is shed waits for its answer. Many clients ask again at once: answered at once, they would
/// take the time of those that are admitted (`benches/run.sh --only overload`).
const SHED_PAUSE: Duration = Duration::from_millis(100);

impl Proxy {
    /// One request, whatever it is.
    pub(crate) async fn handle(
        &self,
        request: Request<Received>,
        peer: &Peer,
    ) -> Response<ClientBody> {
        let live = self.live();
        let table = &live.table;
        let about = RequestContext::of(&request, peer);
        let (mut head, body) = request.into_parts();
        if peer.mutual || table.settings.asks_clients() {
            headers::identity::strip(&mut head.headers);
        }
        let class = match (
            http2::check(&head, &table.settings.limits),
            self.via.check(&head.headers),
        ) {
            (Ok(()), Ok(())) => classify::classify(table, &head, peer),
            // What goes round would wait for itself, whatever the route.
            (Ok(()), Err(round)) => Class::Refused(None, Refusal::Loop(round)),
            (Err(error), _) => {
                if let Some(limit) = limit_of(error) {
                    self.metrics.limit(limit);
                }
                Class::Refused(None, Refusal::of_head(error))
            }
        };
        let (scope, done) = match class {
            Class::Pass { route, upgrade } => {
                let passed = self
                    .pass(&live, route.as_ref(), head, body, peer, upgrade)
                    .await;
                (Scope::Route(route), passed)
            }
            Class::Observed(route, judged) => {
                let observed = match self.places.take(peer) {
                    Ok(place) => {
                        let passing = Passing {
                            route: Some(&route),
                            peer,
                            upgrade: tunnel::wanted(&head.headers),
                            place,
                        };
                        self.observe(&live, judged, (head, body), passing, &about)
                            .await
                    }
                    // Overload is not the fence's decision: it ends a request in every mode.
                    Err(refusal) => Err(refusal),
                };
                (Scope::Route(Some(route)), observed)
            }
            Class::Claim => {
                let claimed = self.claim(&live, head, body, peer, &about).await;
                (Scope::Claims, claimed)
            }
            Class::Fenced(fenced) => {
                let route = Arc::clone(&fenced.route);
                let done = self.fenced(&live, fenced, head, body, peer, &about).await;
                (Scope::Route(Some(route)), done)
            }
            Class::LastHop(route, allowed) => {
                let response = respond::last_hop(&allowed);
                let counted = CountAs::Outcome(Outcome::Answered);
                (Scope::Route(route), Ok(Forwarded { response, counted }))
            }
            Class::Refused(route, refusal) => (Scope::Route(route), Err(refusal)),
        };
        let shed = matches!(done, Err(Refusal::Overloaded(_)));
        let response = self.finish(table, &scope, &about, done);
        if shed {
            tokio::time::sleep(SHED_PAUSE).await;
        }
        response
    }

    /// Answers a request whose head is not taken. The connection ends with it.
    pub(crate) fn refuse(&self, error: RequestError, peer: &Peer) -> Response<ClientBody> {
        let live = self.live();
        let table = &live.table;
        let about = RequestContext::unread(peer);
        let refused = Err(Refusal::of_head(error));
        let mut response = self.finish(table, &Scope::Route(None), &about, refused);
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
        response
    }
}

/// The limit that a head is over, if that is why it is refused.
pub(crate) fn limit_of(error: RequestError) -> Option<Limit> {
    match error.kind() {
        RequestErrorKind::HeadBytes => Some(Limit::HeaderBytes),
        RequestErrorKind::HeadFields => Some(Limit::HeaderCount),
        RequestErrorKind::TargetLong => Some(Limit::TargetBytes),
        RequestErrorKind::Slow => Some(Limit::HeadTimeout),
        RequestErrorKind::Malformed | RequestErrorKind::Method | RequestErrorKind::Version => None,
    }
}
