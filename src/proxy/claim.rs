//! The claim: raises the mark, waits until nothing older is in flight, and forwards nothing. After
//! its 204 no write of an older holder is in flight or will ever be accepted, so a new holder that
//! claims before it reads cannot be overtaken between its read and its first write.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use tokio::time::Instant;

use super::answer::Forwarded;
use super::classify::{self, Class};
use super::client::{Client, is_in};
use super::context::{Context, Listed};
use super::fenced::key_of_body;
use super::headers::{self, RESOURCE, TARGET};
use super::refusal::{Refusal, Subject, claimed};
use super::setup::Proxy;
use crate::active_requests::Stage;
use crate::body::{Received, RequestBody};
use crate::config::{ClaimSettings, Mode, RouteSettings, bearer};
use crate::http1::{Fields, RequestHead};
use crate::metrics::Outcome;
use crate::routing::Needs;

/// The subject of a claim.
struct Claim {
    subject: Subject,
    /// The conditions on the mark under which its routes believe the token.
    needs: Needs,
    /// The time that it may wait for older requests.
    wait: Duration,
}

impl Proxy {
    pub(super) async fn claim(
        &self,
        context: &Arc<Context>,
        head: RequestHead,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        // Before a permit is taken, and before the answer can show anything about a route.
        if let Some(claim) = context.table().settings.claim() {
            may_claim(claim, &head.fields, &context.client)?;
        }
        let _permit = self.in_flight.take(&context.client)?;
        let ends = context.progress.began + context.table().settings.body.timeout.0;
        let _listed = Listed::new(context, Stage::Body, ends);
        let fields = &head.fields;
        // Whether only observing routes have the key. Then a refusal of the fence is only counted.
        let mut observed = false;
        let claim = match (
            headers::text(fields, TARGET)?,
            headers::text(fields, RESOURCE)?,
        ) {
            (Some(target), None) => {
                by_target(context, &aimed(target, &head)?, body, &mut observed).await
            }
            (None, Some(key)) => by_resource(context, key, &head, &mut observed),
            _ => Err(Refusal::ambiguous(
                "Say what is claimed, by one of: X-Fencing-Target: PUT /orders/7, or \
                 X-Fencing-Resource: <key>.",
            )),
        };
        let raised = async {
            let claim = claim?;
            let _ = context.subject.set(claim.subject.clone());
            let trace = context.trace.as_deref();
            let (key, token) = (&claim.subject.0, claim.subject.1);
            let open = self.fencing.unless_known_stale(key, token, trace)?;
            let watch = (&*context.table().claim_metrics, trace);
            context.enter_admission(Instant::now(), claim.wait);
            let (subject, needs) = ((key, token), claim.needs);
            let admitted = self.fencing.admit(needs, subject, open, claim.wait, watch);
            // Nothing is sent under the permit. The claim needed only the wait.
            drop(admitted.await?.permit);
            Ok::<_, Refusal>(())
        };
        let outcome = match raised.await {
            Ok(()) => Outcome::Claimed,
            Err(refusal) if observed && refusal.outcome().observed().is_observed() => {
                context.note(&refusal, None);
                refusal.outcome().observed()
            }
            Err(refusal) => return Err(refusal),
        };
        Ok(Forwarded {
            response: claimed(),
            outcome: Some(outcome),
        })
    }
}

/// The route of the later request gives the key and the token's format.
async fn by_target(
    context: &Context,
    aimed: &RequestHead,
    body: Received,
    observed: &mut bool,
) -> Result<Claim, Refusal> {
    let table = context.table();
    let class = classify::classify(table, aimed, &context.client, &mut None)?;
    *observed = matches!(class, Class::Observed(..) | Class::Unlisted);
    let fenced = match class {
        Class::Fenced(fenced) => fenced,
        Class::Observed(_, judged) => judged?,
        Class::Unlisted => return Err(Refusal::NoRoute),
        Class::Pass { .. } | Class::Claim => {
            return Err(Refusal::ambiguous(
                "X-Fencing-Target names a request that is not fenced: there is nothing to claim.",
            ));
        }
    };
    let settings = &fenced.route.settings;
    let key = if fenced.route.template()?.uses_json() {
        let rules = context.snapshot.body_rules(settings.body);
        let upload = RequestBody::read(body, &aimed.fields, &rules, None).await?;
        key_of_body(&fenced, aimed, &upload)?
    } else {
        fenced.key(aimed, None)?
    };
    *observed &= table.could_yield(Mode::Enforce, key.as_str()).count() == 0;
    Ok(Claim {
        needs: settings.token.bounds().needs(fenced.token),
        subject: (key, fenced.token),
        wait: settings.barrier.wait.0,
    })
}

/// The request that a claim names. The authority of the claim itself stays: `{host}` is the same
/// for both.
fn aimed(target: &str, head: &RequestHead) -> Result<RequestHead, Refusal> {
    let named = target.split_once(' ').and_then(|(method, path)| {
        let is_path = path.starts_with('/') && !path.contains('#');
        let is_target = is_path && path.bytes().all(|byte| byte.is_ascii_graphic());
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let target = is_target.then(|| head.target.at(path))??;
        Some((method, target))
    });
    let Some((method, target)) = named else {
        let why = "X-Fencing-Target is a method, one space, and a path: PUT /orders/7";
        return Err(Refusal::ambiguous(why));
    };
    let fields = head.fields.clone();
    Ok(RequestHead::new(method, target, head.version, fields))
}

/// Checks the limits on clients that may claim.
fn may_claim(claim: &ClaimSettings, fields: &Fields, client: &Client) -> Result<(), Refusal> {
    let ranges = claim.addresses.as_ref();
    let from_there = ranges.is_none_or(|ranges| client.ip.is_some_and(|ip| is_in(ranges, ip)));
    if !from_there || !client.is_one_of(&claim.require_client) {
        return Err(Refusal::ClientRefused);
    }
    match &claim.tokens {
        Some(tokens)
            if !bearer(fields.get_all("authorization")).is_some_and(|token| tokens.take(token)) =>
        {
            Err(Refusal::Unauthorized)
        }
        _ => Ok(()),
    }
}

/// The subject of a claim that names the key itself. A key that no route can yield protects nothing,
/// and is refused. If several routes can yield it, the proxy does not know which one the holder will
/// use. So each must admit the client, and each must read the token in the same way: `10` is another
/// token in decimal than in hexadecimal. If one enforces, those that observe do not count.
fn by_resource(
    context: &Context,
    key: &str,
    head: &RequestHead,
    observed: &mut bool,
) -> Result<Claim, Refusal> {
    let (table, client) = (context.table(), &context.client);
    let key = headers::resource_of(key)
        .map_err(|error| Refusal::Ambiguous(format!("X-Fencing-Resource: {error}")))?;
    let could_yield = |mode| table.could_yield(mode, key.as_str());
    let mut routes: Vec<_> = could_yield(Mode::Enforce).collect();
    if routes.is_empty() {
        routes.extend(could_yield(Mode::Observe));
        *observed = !routes.is_empty();
    }
    let Some(route) = routes.first() else {
        return Err(Refusal::Ambiguous(format!(
            "No route that enforces or observes can yield the resource key {key}: claiming it would protect nothing."
        )));
    };
    let mut settings = routes.iter().map(|route| &route.settings);
    let refuses = |one: &RouteSettings| !client.is_one_of(&one.require_client);
    if settings.clone().any(refuses) {
        return Err(Refusal::ClientRefused);
    }
    let format = route.settings.token.format;
    if settings.any(|one| one.token.format != format) {
        return Err(Refusal::Ambiguous(format!(
            "Several routes can yield the resource key {key}, and they read tokens in different \
             formats. Claim by the request that is to come instead, such as X-Fencing-Target: PUT \
             /orders/7."
        )));
    }
    let token = classify::token(route, head)?;
    // The token must be plausible to each of them.
    let needs = routes.iter();
    let needs = needs.map(|route| route.settings.token.bounds().needs(token));
    Ok(Claim {
        needs: needs.reduce(Needs::and).unwrap_or_default(),
        subject: (key, token),
        wait: route.settings.barrier.wait.0,
    })
}
