//! Observe mode: nothing is refused by the fence, nothing waits. (Overload, want of memory and clients that stall
//! are none of the fence's: they end a request in every mode.) The check runs beside the request, advances the
//! marks as if the route enforced, and counts what it would have refused.

use std::sync::Arc;

use http::request::Parts;
use tokio::sync::oneshot;

use super::access_log::log;
use super::admit::refusal;
use super::body::{Upload, UploadError};
use super::body_refusal::{body_refusal, too_long_for_key};
use super::classify::Fenced;
use super::core::{Live, Proxy};
use super::counting::{CountAs, Forwarded};
use super::pass::Passing;
use super::places::InFlightPlace;
use super::received::Received;
use super::refusal::Refusal;
use super::request_context::RequestContext;
use super::table::Route;
use crate::config::BodySettings;
use crate::fencing::growth::Origin;
use crate::fencing::writer::Caller;
use crate::metrics::Outcome;
use crate::routing::{KeyTemplate, ResourceKey};

impl Proxy {
    /// Forwards a request of an observing route, whatever is found.
    pub(super) async fn observe(
        &self,
        live: &Live,
        judged: Result<Fenced, Refusal>,
        (head, body): (Parts, Received),
        passing: Passing<'_>,
        about: &RequestContext,
    ) -> Result<Forwarded, Refusal> {
        let Some(route) = passing.route else {
            unreachable!("only a route observes")
        };
        let is_call = live.calls(&head.headers);
        let enforced = self.rules(route.settings.body, passing.peer, is_call);
        // The limit on length is one of the refusals that are only counted; memory and slowness are not.
        let unbounded = BodySettings {
            max: None,
            ..route.settings.body
        };
        let rules = self.rules(unbounded, passing.peer, is_call);
        let too_long = enforced.admit(&body).map_err(|error| body_refusal(&error));
        let refused = |error: UploadError| body_refusal(&error);
        let (upload, key) = match &judged {
            Ok(fenced) if fenced.template().is_ok_and(KeyTemplate::uses_json) => {
                let read = Upload::read(body, &head.headers, &rules, None).await;
                let upload = read.map_err(refused)?;
                let key = match upload.whole() {
                    Some(whole) => fenced.key(&head, Some(&whole)),
                    None => Err(too_long_for_key(rules.settings.buffer)),
                };
                (upload, key)
            }
            Ok(fenced) => {
                let upload = Upload::streamed(body, &rules).map_err(refused)?;
                (upload, fenced.key(&head, None))
            }
            Err(refusal) => {
                let upload = Upload::streamed(body, &rules).map_err(refused)?;
                (upload, Err(refusal.clone()))
            }
        };
        let key = too_long.and(key);
        if let (Ok(fenced), Ok(key)) = (&judged, &key) {
            let _ = about.subject.set((key.clone(), fenced.token));
        }
        let place = Arc::clone(&passing.place);
        let origin = passing.peer.origin();
        let (failed, exchange) = oneshot::channel();
        self.check_beside(
            route,
            (judged, origin),
            key,
            about.clone(),
            (place, exchange),
        );
        match self.pass_upload(live, head, upload, passing).await {
            Ok(Forwarded { response, .. }) => Ok(Forwarded {
                response,
                counted: CountAs::Beside,
            }),
            Err(refusal) => {
                let _ = failed.send(());
                Err(refusal)
            }
        }
    }

    /// Checks in a task of its own, and counts the request. `exchange` says that it failed: then the
    /// failure is the last thing that became of the request, and counts in place of the check.
    fn check_beside(
        &self,
        route: &Arc<Route>,
        (judged, origin): (Result<Fenced, Refusal>, Option<Origin>),
        key: Result<ResourceKey, Refusal>,
        about: RequestContext,
        (place, exchange): (InFlightPlace, oneshot::Receiver<()>),
    ) {
        let (fencing, route) = (Arc::clone(&self.fencing), Arc::clone(route));
        let throttles = Arc::clone(&self.throttles);
        self.tasks.spawn(async move {
            // Checks that wait for the store are no more than the requests that may be in flight.
            let _place = place;
            let found = match (judged, key) {
                (Ok(fenced), Ok(key)) => {
                    let token = fenced.token;
                    let needs = route.settings.token_bounds.needs(token);
                    let caller = Some(Caller { needs, origin });
                    let raised = match fencing.unless_known_stale(&key, token) {
                        Ok(()) => fencing.raise(caller, &key, token).await,
                        Err(refused) => Err(refused),
                    };
                    match raised {
                        Ok(true) => Ok(Outcome::Advanced),
                        Ok(false) => Ok(Outcome::Current),
                        Err(refused) => Err(refusal(refused, &key, token)),
                    }
                }
                (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
            };
            let outcome = match found {
                Ok(outcome) => outcome,
                Err(refusal) => {
                    let outcome = refusal.outcome().observed();
                    if let Some(left_out) = throttles.say(outcome) {
                        let message = "would have been refused";
                        log(&route.settings.label, &about, &refusal, message, left_out);
                    }
                    outcome
                }
            };
            // A stop waits for checks, and not for what they stand beside.
            tokio::spawn(async move {
                // An exchange that did not fail, or whose client has left, only drops its end.
                if exchange.await.is_err() {
                    route.metrics.request(outcome);
                }
            });
        });
    }
}
