//! One request from its head to its answer: it is classified, handled according to its class, and
//! answered.

use std::sync::Arc;
use std::time::Duration;

use super::classify::{self, Class};
use super::client::{Client, is_in};
use super::context::Context;
use super::headers;
use super::refusal::Refusal;
use super::setup::Proxy;
use crate::body::Received;
use crate::http1::{MessageError, RequestHead, Response};
use crate::metrics::{Limit, Metrics, Outcome};
use crate::proxy::client_body::ClientBody;

/// How long a request that is refused for overload waits for its answer. Many clients retry at
/// once, and fast answers would cost the CPU time of admitted requests (`benches/run.sh --only
/// overload`).
const SHED_PAUSE: Duration = Duration::from_millis(100);

impl Proxy {
    /// Handles one request of any class.
    pub(crate) async fn handle(
        &self,
        mut head: RequestHead,
        body: Received,
        client: &Arc<Client>,
    ) -> Response<ClientBody> {
        let snapshot = self.snapshot();
        let trusted = &snapshot.table.settings.trusted_proxies;
        let by_proxy = client.ip.is_none_or(|ip| is_in(trusted, ip));
        let behind = client.behind(trusted, &head.fields);
        let client = behind.map_or_else(|| Arc::clone(client), Arc::new);
        if snapshot.table.settings.client_auth().is_some() {
            headers::strip_identity(&mut head.fields);
        }
        // A request in a loop would wait for itself, on any route.
        let mut route = None;
        let class = if self.via.is_in(&head.fields) {
            Err(Refusal::Loop)
        } else {
            classify::classify(&snapshot.table, &head, &client, &mut route)
        };
        let place = (route, matches!(class, Ok(Class::Claim)));
        let context = Context::of(Some(&head), snapshot, client, by_proxy, place);
        let done = match class {
            Ok(Class::Pass { upgrade }) => {
                self.unfenced(&context, upgrade, head, body, Outcome::Unfenced)
                    .await
            }
            Ok(Class::Unlisted) => {
                context.note(&Refusal::NoRoute, None);
                let outcome = Outcome::ObservedNoRoute;
                self.unfenced(&context, true, head, body, outcome).await
            }
            Ok(Class::Observed(route, judged)) => {
                self.observe(&context, route, judged, head, body).await
            }
            Ok(Class::Claim) => self.claim(&context, head, body).await,
            Ok(Class::Fenced(fenced)) => self.fenced(&context, fenced, head, body).await,
            Err(refusal) => Err(refusal),
        };
        let shed = matches!(&done, Err(refusal) if refusal.outcome() == Outcome::Overloaded);
        let response = context.answer(done);
        if shed {
            tokio::time::sleep(SHED_PAUSE).await;
        }
        response
    }

    /// Refuses a request whose head breaks a rule, or could not be read.
    pub(crate) fn refuse(&self, error: MessageError, client: &Arc<Client>) -> Response<ClientBody> {
        count_limit(&self.metrics, error);
        let (snapshot, client) = (self.snapshot(), Arc::clone(client));
        let context = Context::of(None, snapshot, client, false, (None, false));
        context.answer(Err(error.into()))
    }
}

/// Counts the limit that a head or trailer section exceeds, if that is the reason for the refusal.
pub(crate) fn count_limit(metrics: &Metrics, error: MessageError) {
    metrics.limit(match error {
        MessageError::Bytes(_) => Limit::HeaderBytes,
        MessageError::Fields(_) => Limit::HeaderCount,
        MessageError::TargetLong(_) => Limit::TargetBytes,
        MessageError::Slow(_) => Limit::HeadTimeout,
        _ => return,
    });
}
