//! Observe mode: nothing is refused, nothing waits. The check runs beside the request, advances the
//! marks as if the route enforced, and counts what it would have refused.

use std::sync::Arc;

use http::Response;
use http::request::Parts;
use hyper::body::Incoming;

use super::body::Upload;
use super::classify::Fenced;
use super::respond::Refusal;
use super::table::Route;
use super::tunnel;
use super::{About, ClientBody, Live, Peer, Proxy, body_refusal, too_long_for_key};
use crate::fence::ResourceKey;
use crate::marks::lane::{Answer, Want};
use crate::metrics::{DecidedBy, Outcome};

impl Proxy {
    /// Forwards a request of an observing route, whatever is found.
    pub(super) async fn observe(
        &self,
        live: &Live,
        route: &Arc<Route>,
        judged: Result<Fenced, Refusal>,
        (head, body): (Parts, Incoming),
        peer: &Peer,
        about: &About,
    ) -> Result<Response<ClientBody>, Refusal> {
        let upgrade = tunnel::wanted(&head.headers);
        let (upload, key) = match &judged {
            Ok(fenced)
                if fenced
                    .template()
                    .is_ok_and(crate::fence::KeyTemplate::uses_json) =>
            {
                let limits = route.settings.body;
                let read = Upload::read(body, &head.headers, limits.buffer, None, limits.timeout);
                let upload = read.await.map_err(|error| body_refusal(&error))?;
                let key = match upload.whole() {
                    Some(whole) => fenced.key(&head, Some(&whole)),
                    None => Err(too_long_for_key(limits.buffer)),
                };
                (upload, key)
            }
            Ok(fenced) => (Upload::streamed(body), fenced.key(&head, None)),
            Err(refusal) => (Upload::streamed(body), Err(refusal.clone())),
        };
        self.check_beside(route, judged, key, about.clone());
        let passed = self.pass_upload(live, Some(route), head, upload, peer, upgrade);
        Ok(passed.await?.response)
    }

    /// Checks in a task of its own, and counts the request.
    fn check_beside(
        &self,
        route: &Arc<Route>,
        judged: Result<Fenced, Refusal>,
        key: Result<ResourceKey, Refusal>,
        about: About,
    ) {
        let (gate, route) = (self.gate.clone(), Arc::clone(route));
        self.tasks.spawn(async move {
            let found = match (judged, key) {
                (Ok(fenced), Ok(key)) => {
                    let token = fenced.token;
                    let _ = about.subject.set((key.clone(), token));
                    match gate.glance(&key, token) {
                        Err(refusal) => Err(refusal),
                        Ok(()) => match gate.ask(&key, token, Want::Raise).await {
                            Ok(Answer::Granted { advanced: true }) => Ok(Outcome::Advanced),
                            Ok(Answer::Granted { advanced: false } | Answer::Spent) => {
                                Ok(Outcome::Current)
                            }
                            Ok(Answer::Stale { mark }) => Err(Refusal::Stale {
                                key,
                                token,
                                mark,
                                decided_by: DecidedBy::Store,
                            }),
                            Err(error) => Err(Refusal::StoreUnavailable {
                                why: error.to_string(),
                                retry_after: std::time::Duration::ZERO,
                                spent: false,
                            }),
                        },
                    }
                }
                (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
            };
            match found {
                Ok(outcome) => route.metrics.request(outcome),
                Err(refusal) => {
                    route.metrics.request(refusal.outcome().observed());
                    super::log(
                        &route.settings.label,
                        &about,
                        &refusal,
                        "would have been refused",
                    );
                }
            }
        });
    }
}
