//! The claim: raises the mark, waits until nothing older is in flight, and forwards nothing. After its 204
//! no write of an older holder is in flight or will ever be accepted, so a new holder that claims before
//! it reads cannot be overtaken between its read and its first write.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Uri};

use super::body::Upload;
use super::body_refusal::{body_refusal, too_long_for_key};
use super::classify::{self, Class, Fenced};
use super::core::{Live, Proxy};
use super::counting::{CountAs, Forwarded};
use super::headers::{self, RESOURCE, TARGET};
use super::peer::Peer;
use super::received::Received;
use super::refusal::Refusal;
use super::request_context::RequestContext;
use super::respond;
use super::table::Route;
use crate::config::ClaimSettings;
use crate::fencing::writer::Caller;
use crate::metrics::Outcome;
use crate::routing::{Needs, ResourceKey, Token};

/// What a claim is for.
struct Claim {
    route: Arc<Route>,
    key: ResourceKey,
    token: Token,
    /// What its routes need of the mark to believe the token.
    needs: Needs,
}

impl Proxy {
    pub(super) async fn claim(
        &self,
        live: &Live,
        head: Parts,
        body: Received,
        peer: &Peer,
        about: &RequestContext,
    ) -> Result<Forwarded, Refusal> {
        // Before anything is taken, or said of a route.
        if let Some(claim) = &live.table.claim {
            may_claim(claim, &head.headers, peer)?;
        }
        let _place = self.places.take(peer)?;
        let field = |name: &HeaderName| {
            headers::text(&head.headers, name)
                .map_err(|error| Refusal::Ambiguous(error.to_string()))
        };
        let claim = match (field(&TARGET)?, field(&RESOURCE)?) {
            (Some(target), None) => self.by_target(live, target, (&head, peer), body).await?,
            (None, Some(key)) => by_resource(live, key, (&head, peer))?,
            (Some(_), Some(_)) => {
                let why = "Send either X-Fencing-Target or X-Fencing-Resource, not both.";
                return Err(Refusal::Ambiguous(why.into()));
            }
            (None, None) => {
                let why = "Say what is claimed: X-Fencing-Target: PUT /orders/7, or X-Fencing-Resource: <key>.";
                return Err(Refusal::Ambiguous(why.into()));
            }
        };
        let _ = about.subject.set((claim.key.clone(), claim.token));
        self.unless_stale(&claim.key, claim.token)?;
        let wait = claim.route.settings.barrier_wait;
        let metrics = &live.table.claim_metrics;
        let caller = Caller {
            needs: claim.needs,
            origin: peer.origin(),
        };
        let admitted = self
            .admit(caller, (&claim.key, claim.token), wait, metrics)
            .await?;
        // Nothing is sent under it: the wait was the point.
        drop(admitted.permit);
        Ok(Forwarded {
            response: respond::claimed(),
            counted: CountAs::Outcome(Outcome::Claimed),
        })
    }

    /// The route of the request that is to come derives the key and the token's format.
    async fn by_target(
        &self,
        live: &Live,
        target: &str,
        (head, peer): (&Parts, &Peer),
        body: Received,
    ) -> Result<Claim, Refusal> {
        let malformed = || {
            Refusal::Ambiguous(
                "X-Fencing-Target is a method, one space, and a path: PUT /orders/7".into(),
            )
        };
        let (method, path) = target.split_once(' ').ok_or_else(malformed)?;
        if !path.starts_with('/') || path.contains('#') {
            return Err(malformed());
        }
        let mut aimed = head.clone();
        aimed.method = Method::from_bytes(method.as_bytes()).map_err(|_| malformed())?;
        // The authority of the claim itself stays: `{host}` is the same for both.
        let mut parts = aimed.uri.clone().into_parts();
        parts.path_and_query = Some(path.parse().map_err(|_| malformed())?);
        aimed.uri = Uri::from_parts(parts).map_err(|_| malformed())?;
        let fenced = match classify::classify(&live.table, &aimed, peer) {
            Class::Fenced(fenced) => fenced,
            Class::Refused(_, refusal) => return Err(refusal),
            Class::Pass { .. } | Class::Observed(..) | Class::Claim | Class::LastHop(..) => {
                let why = "X-Fencing-Target names a request that no route enforces: there is nothing to claim.";
                return Err(Refusal::Ambiguous(why.into()));
            }
        };
        let key = if fenced.template()?.uses_json() {
            self.key_from_body(&fenced, &aimed, body, peer).await?
        } else {
            fenced.key(&aimed, None)?
        };
        let token = fenced.token;
        Ok(Claim {
            needs: fenced.route.settings.token_bounds.needs(token),
            route: fenced.route,
            key,
            token,
        })
    }

    async fn key_from_body(
        &self,
        fenced: &Fenced,
        aimed: &Parts,
        body: Received,
        peer: &Peer,
    ) -> Result<ResourceKey, Refusal> {
        let limits = fenced.route.settings.body;
        let rules = self.rules(limits, peer, false);
        let upload = Upload::read(body, &aimed.headers, &rules, None)
            .await
            .map_err(|error| body_refusal(&error))?;
        let whole = upload
            .whole()
            .ok_or_else(|| too_long_for_key(limits.buffer))?;
        fenced.key(aimed, Some(&whole))
    }
}

/// Whether a client is let in by the limits on who may claim.
fn may_claim(claim: &ClaimSettings, headers: &HeaderMap, peer: &Peer) -> Result<(), Refusal> {
    if !peer.may_claim(claim) {
        return Err(Refusal::ClaimRefused);
    }
    match &claim.tokens {
        Some(tokens) if !bearer(headers).is_some_and(|token| tokens.take(token)) => {
            Err(Refusal::Unauthorized)
        }
        _ => Ok(()),
    }
}

/// The one bearer token of a request (RFC 6750, 2.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let line = line.as_bytes();
    let (scheme, token) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| token.trim_ascii())
}

/// A key by name. One that no enforcing route can yield protects nothing, and is refused. Which of
/// several routes the holder will use cannot be told. So the peer has to be let in by each, and each
/// has to read the token in the same way: `10` is another token in decimal than in hexadecimal.
fn by_resource(live: &Live, key: &str, (head, peer): (&Parts, &Peer)) -> Result<Claim, Refusal> {
    let key = headers::resource_of(key)
        .map_err(|error| Refusal::Ambiguous(format!("X-Fencing-Resource: {error}")))?;
    let key = classify::short(key, live.table.settings.limits.key_bytes)?;
    let routes: Vec<_> = live.table.could_yield(key.as_str()).collect();
    let route = *routes.first().ok_or_else(|| {
        let why = format!("No enforcing route can yield the resource key {key}: claiming it would protect nothing.");
        Refusal::Ambiguous(why)
    })?;
    if !routes.iter().all(|route| peer.may_use(&route.settings)) {
        return Err(Refusal::ClientRefused);
    }
    let format = route.settings.token_format;
    if !routes
        .iter()
        .all(|route| route.settings.token_format == format)
    {
        let why = format!(
            "Several routes can yield the resource key {key}, and they read tokens in different formats. \
             Claim by the request that is to come instead, such as X-Fencing-Target: PUT /orders/7."
        );
        return Err(Refusal::Ambiguous(why));
    }
    let token = headers::fencing_token(&head.headers)
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?
        .ok_or(Refusal::TokenRequired)?;
    let token = format
        .parse(token.as_bytes())
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?;
    // Each of them has to believe it.
    let needs = routes.iter();
    let needs = needs.map(|route| route.settings.token_bounds.needs(token));
    Ok(Claim {
        needs: needs.reduce(Needs::and).unwrap_or_default(),
        route: Arc::clone(route),
        key,
        token,
    })
}
