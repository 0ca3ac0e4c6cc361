//! The request path. Read [`Proxy::handle`] and [`Proxy::fenced`] from top to bottom: the order of the
//! phases is the correctness argument.
//!
//! 1. [`classify`]: refuse what is malformed or ambiguous; find the route, parse the token.
//! 2. [`body`]: read the body up to `body.buffer`; derive the key.
//! 3. [`admit`]: ask the marks, wait at the barrier: a permit, or a refusal.
//! 4. [`forward`]: one exchange, in a future of its own that owns the permit and outlives its client.
//! 5. [`respond`]: the one place that maps what became of it to HTTP.

mod account;
mod admit;
mod body;
mod claim;
mod classify;
mod conclusion;
mod derive;
mod forward;
pub(crate) mod frames;
pub mod headers;
mod http2;
pub mod idempotency;
pub mod jsonkey;
mod memory;
mod observe;
mod pace;
mod pass;
mod peer;
mod places;
mod rate;
mod received;
mod reply;
mod respond;
mod shares;
pub(crate) mod slow;
pub(crate) mod spare;
mod switch;
mod table;
mod tunnel;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::account::{About, Throttles};
pub(crate) use self::body::BoxError;
use self::body::{BodyError, BodyRules, Upload};
use self::classify::{Class, Fenced};
use self::conclusion::{Conclusion, Doubt};
use self::forward::{Exchange, Limits};
use self::headers::via::Via;
use self::memory::Memory;
use self::pass::Passing;
pub(crate) use self::peer::{Peer, PeerNames};
use self::places::Places;
use self::rate::LeastRate;
pub(crate) use self::received::{Feed, Received, Wish, streamed};
pub(crate) use self::reply::ClientBody;
use self::respond::Refusal;
pub(crate) use self::shares::{ConnectionPlaces, Network};
use self::slow::SlowClients;
pub(crate) use self::switch::{Handover, handover};
use self::table::{Route, Table};
use self::tunnel::Opening;
pub(crate) use self::tunnel::keep_alive;
use self::upstream::Upstream;
pub use self::upstream::UpstreamError;
use crate::config::{BodySettings, Reuse, Settings, TlsSettings};
use crate::fencing::Fencing;
use crate::fencing::writer::Caller;
use crate::metrics::{CLAIM, Limit, Metrics, Outcome, RouteMetrics, UNMATCHED};
use crate::rejections::Rejections;
use crate::routing::{Allow, RouteConflict};
use crate::wire::{
    self,
    chunked::trailer_limits,
    head::HeadLimits,
    request::{Kind, RequestError},
};
use crate::worker::PerWorker;

/// How long a request that is shed waits for its answer. Many clients ask again at once: answered at once, they would
/// take the time of those that are admitted (`benches/run.sh --only overload`).
const SHED_PAUSE: Duration = Duration::from_millis(100);

/// Why the request path cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("routes conflict: {}", list(.0))]
    Routes(Vec<RouteConflict>),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

fn list(conflicts: &[RouteConflict]) -> String {
    let texts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// What a reload replaces.
#[derive(Clone)]
pub(crate) struct Live {
    table: Arc<Table>,
    upstream: Arc<Upstream>,
}

impl Live {
    /// Whether a request is a gRPC call that its upstream can take as one.
    fn calls(&self, headers: &HeaderMap) -> bool {
        self.upstream.h2 && conclusion::is_grpc(headers)
    }
}

/// The request path.
pub struct Proxy {
    /// Each worker's own pointer to it: no core waits for another one's count of those who use it.
    live: PerWorker<Arc<Live>>,
    fencing: Arc<Fencing>,
    /// Exchanges and whatever else must finish though its client has left.
    tasks: TaskTracker,
    /// Ends tunnels when the process stops.
    stopping: CancellationToken,
    places: Places,
    memory: Arc<Memory>,
    /// What trailers may have.
    trailers: HeadLimits,
    /// `limits.body_rate`.
    least: Option<LeastRate>,
    metrics: Arc<Metrics>,
    rejections: Arc<Rejections>,
    /// Which refusals are logged.
    throttles: Arc<Throttles>,
    spends: AtomicU64,
    /// What this process calls itself in `Via`.
    via: Via,
}

/// What [`Proxy::new`] takes.
pub(crate) struct ProxySetup {
    pub settings: Arc<Settings>,
    pub fencing: Arc<Fencing>,
    pub metrics: Arc<Metrics>,
    pub tasks: TaskTracker,
    pub stopping: CancellationToken,
    pub rejections: Arc<Rejections>,
    /// What this process calls itself in `Via`.
    pub via: Via,
}

/// A request that was answered by the upstream, or a claim that was granted.
struct Done {
    response: Response<ClientBody>,
    counted: CountAs,
}

/// How a request is counted.
enum CountAs {
    Outcome(Outcome),
    /// It was sent and answered, and the answer leaves open what became of it.
    InDoubt(Doubt),
    /// The check beside its exchange counts it.
    Beside,
}

/// Where a request is counted.
enum Scope {
    /// `None`: no route matched.
    Route(Option<Arc<Route>>),
    Claims,
}

impl Scope {
    /// The series, and the label.
    fn series<'a>(&'a self, table: &'a Table) -> (&'a RouteMetrics, &'a str) {
        match self {
            Self::Route(Some(route)) => (&route.metrics, &route.settings.label),
            Self::Route(None) => (&table.unmatched_metrics, UNMATCHED),
            Self::Claims => (&table.claim_metrics, CLAIM),
        }
    }
}

impl Proxy {
    pub(crate) fn new(setup: ProxySetup) -> Result<Self, ProxyError> {
        let ProxySetup {
            settings,
            fencing,
            metrics,
            tasks,
            stopping,
            rejections,
            via,
        } = setup;
        let upstream = Upstream::new(&settings.upstream, fencing.lease(), &metrics)?;
        let upstream = Arc::new(upstream);
        let limits = settings.limits;
        let places = Places::new(&limits, Arc::clone(&metrics));
        let table = Table::new(settings, &metrics).map_err(ProxyError::Routes)?;
        let table = Arc::new(table);
        let live = Live { table, upstream };
        Ok(Self {
            live: PerWorker::new(|| Arc::new(live.clone())),
            fencing,
            tasks,
            stopping,
            least: limits.body_rate.map(|bytes| LeastRate {
                bytes,
                until_needed: false,
                slow: places.slow(),
                network: None,
            }),
            places,
            memory: Memory::new(limits.body_memory, Arc::clone(&metrics)),
            trailers: trailer_limits(HeadLimits {
                bytes: limits.header_bytes,
                fields: limits.header_count,
                target: limits.target_bytes,
            }),
            metrics,
            rejections,
            throttles: Arc::default(),
            spends: AtomicU64::new(0),
            via,
        })
    }

    /// Makes of new settings what [`Self::reload`] takes.
    pub(crate) fn prepare(&self, settings: Arc<Settings>) -> Result<Live, ProxyError> {
        let (lease, metrics) = (self.fencing.lease(), &self.metrics);
        let upstream = Arc::new(Upstream::new(&settings.upstream, lease, metrics)?);
        let table = Arc::new(Table::new(settings, metrics).map_err(ProxyError::Routes)?);
        Ok(Live { table, upstream })
    }

    /// Takes new settings for the requests that come from now on. What is in flight keeps its own.
    pub(crate) fn reload(&self, live: &Live) {
        let old = self.live();
        self.live.change(|own| *own = Arc::new(live.clone()));
        old.upstream.retire();
    }

    /// The requests that make room where places become few.
    pub(crate) fn slow_clients(&self) -> Arc<SlowClients> {
        self.places.slow()
    }

    /// TLS of the data port, as it is for connections that come from now on.
    pub(crate) fn tls(&self) -> Option<TlsSettings> {
        self.live().table.settings.tls.clone()
    }

    fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.own())
    }

    /// One request, whatever it is.
    pub(crate) async fn handle(
        &self,
        request: Request<Received>,
        peer: &Peer,
    ) -> Response<ClientBody> {
        let live = self.live();
        let table = &live.table;
        let about = About::of(&request, peer);
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
                (Scope::Route(route), Ok(Done { response, counted }))
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
        let about = About::unread(peer);
        let refused = Err(Refusal::of_head(error));
        let mut response = self.finish(table, &Scope::Route(None), &about, refused);
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
        response
    }

    /// A request that is to be judged.
    async fn fenced(
        &self,
        live: &Live,
        fenced: Fenced,
        mut head: Parts,
        body: Received,
        peer: &Peer,
        about: &About,
    ) -> Result<Done, Refusal> {
        let place = self.places.take(peer)?;
        let route = Arc::clone(&fenced.route);
        let settings = &route.settings;
        let token = fenced.token;

        // What is known to be stale is refused before its body is asked for (Expect: 100-continue).
        let early = if fenced.template()?.uses_json() {
            None
        } else {
            let key = fenced.key(&head, None)?;
            let _ = about.subject.set((key.clone(), token));
            self.unless_stale(&key, token)?;
            Some(key)
        };

        // The body first, as far as it fits: who pauses halfway through is judged when it ends. But for gRPC, where
        // a pause may be a client that waits for an answer.
        let limits = settings.body;
        let is_grpc = conclusion::is_grpc(&head.headers);
        let hold = is_grpc.then_some(limits.stream_after);
        let rules = self.rules(limits, peer, live.calls(&head.headers));
        let upload = Upload::read(body, &head.headers, &rules, hold)
            .await
            .map_err(|error| body_refusal(&error))?;
        if let Some(name) = upload.trailers().and_then(headers::path_override)
            && !settings.allow.allows(Allow::PATH_OVERRIDE)
        {
            return Err(classify::path_override(name));
        }
        let key = if let Some(key) = early {
            key
        } else {
            let whole = upload
                .whole()
                .ok_or_else(|| too_long_for_key(limits.buffer))?;
            let key = fenced.key(&head, Some(&whole))?;
            let _ = about.subject.set((key.clone(), token));
            key
        };
        let idempotency = derive::idempotency(&fenced, &head, &key, &upload)?;
        let opening = fenced
            .upgrade
            .then(|| self.opening(&live.upstream, &mut head, &upload, peer))
            .transpose()?;

        let caller = Caller {
            needs: settings.token_bounds.needs(token),
            origin: peer.origin(),
        };

        // The marks, then the barrier. Everything after this happens under the permit.
        let wait = settings.barrier_wait;
        let admitted = self
            .admit(caller, (&key, token), wait, &route.metrics)
            .await?;

        let once = settings.reuse == Reuse::Once && fenced.unsafe_method;
        let spend = once.then(|| self.spend_name());
        let (sent, cut) = (CancellationToken::new(), CancellationToken::new());
        let trailers = derive::trailers(&fenced, &head, idempotency.as_ref());
        let body = upload.send(trailers, sent.clone()).cut_by(cut.clone());
        let fence = Some((token, &key));
        let is_head = head.method == Method::HEAD;
        let mut request = self.upstream_request(
            &live.upstream,
            head,
            body,
            peer,
            fence,
            idempotency.as_ref(),
        );
        if let Some(opening) = &opening {
            opening.ask(request.headers_mut());
        }
        let exchange = Exchange {
            request,
            opening,
            sent,
            cut,
            limits: Limits {
                timeout: settings.upstream_timeout,
                upload: limits.timeout,
                grace: settings.barrier_grace,
            },
            conclusion: Conclusion {
                unknown: settings.unknown.clone(),
                head: is_head,
                unsafe_method: fenced.unsafe_method,
                grpc: is_grpc,
            },
            upstream: Arc::clone(&live.upstream),
            metrics: Arc::clone(&route.metrics),
            spend,
            via: self.via,
            memory: self.memory.share(),
            held: Arc::clone(&place),
        };
        let answered =
            forward::forward(admitted.permit, exchange, &self.fencing, &self.tasks).await?;
        let counted = match answered.doubt {
            Some(doubt) => CountAs::InDoubt(doubt),
            None if admitted.advanced => CountAs::Outcome(Outcome::Advanced),
            None => CountAs::Outcome(Outcome::Current),
        };
        // The exchange may be over long before the client has taken its answer, and the other way round.
        let mut response = answered.response;
        response.body_mut().keep(place, None);
        Ok(Done { response, counted })
    }

    /// The tunnel that a fenced request asks for. Its body must be here: what has left HTTP has no end of a body to
    /// wait for.
    fn opening(
        &self,
        upstream: &Upstream,
        head: &mut Parts,
        upload: &Upload,
        peer: &Peer,
    ) -> Result<Opening, Refusal> {
        if upstream.h2 {
            return Err(Refusal::UpgradeRefused);
        }
        if upload.whole().is_none() {
            let why = "The body of a request that opens a tunnel may have body.buffer bytes.";
            return Err(Refusal::TooLarge(why.into()));
        }
        self.tunnel(head, peer)?.ok_or(Refusal::UpgradeRefused)
    }

    /// What a tunnel takes, if a request asks for one and there is room.
    fn tunnel(&self, head: &mut Parts, peer: &Peer) -> Result<Option<Opening>, Refusal> {
        let opening = Opening::take(head, &self.stopping, peer.until);
        opening
            .map(|opening| Ok(opening.holding(self.places.take_tunnel()?)))
            .transpose()
    }

    /// What holds for the bodies of requests under these settings. The messages of a gRPC call come
    /// when there is something to say: they may be slow as long as nobody else needs the place. A
    /// content type alone makes no call: it takes an upstream that speaks HTTP/2.
    fn rules(&self, settings: BodySettings, peer: &Peer, is_call: bool) -> BodyRules {
        BodyRules {
            settings,
            memory: Arc::clone(&self.memory),
            trailers: self.trailers,
            least: self.least.clone().map(|least| LeastRate {
                until_needed: is_call,
                network: peer.ip.map(Network::of),
                ..least
            }),
        }
    }

    fn spend_name(&self) -> String {
        let number = self.spends.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.fencing.instance())
    }
}

/// The limit that a head is over, if that is why it is refused.
pub(crate) fn limit_of(error: RequestError) -> Option<Limit> {
    match error.kind() {
        Kind::HeadBytes => Some(Limit::HeaderBytes),
        Kind::HeadFields => Some(Limit::HeaderCount),
        Kind::TargetLong => Some(Limit::TargetBytes),
        Kind::Slow => Some(Limit::HeadTimeout),
        Kind::Malformed | Kind::Method | Kind::Version => None,
    }
}

fn body_refusal(error: &BodyError) -> Refusal {
    match error {
        BodyError::TooLarge(limit) => Refusal::TooLarge(format!(
            "This route takes bodies up to {limit} bytes (body.max)."
        )),
        BodyError::Broken(broken) if let Some(malformed) = malformed(&**broken) => {
            malformed_refusal(malformed)
        }
        BodyError::Trailers(error) => malformed_refusal(*error),
        BodyError::NoRoom => Refusal::Overloaded(
            "There is no memory left for the body. Nothing was forwarded. See limits.body_memory.",
        ),
        BodyError::Crowded => Refusal::Overloaded(
            "Places were needed, and the rest of the body was waited for. Nothing was forwarded. See limits.in_flight.",
        ),
        BodyError::TooSlow(_)
        | BodyError::Paused(_)
        | BodyError::TooLow(_)
        | BodyError::Broken(_)
        | BodyError::Cut => Refusal::ClientGone(format!("{error}")),
    }
}

fn malformed_refusal(error: wire::chunked::BodyError) -> Refusal {
    let what = format!("The body of the request: {error}.");
    if error.is_too_large() {
        Refusal::HeadTooLarge(what)
    } else {
        Refusal::Ambiguous(what)
    }
}

/// What is wrong with a body, if that is why it broke off.
fn malformed(broken: &(dyn std::error::Error + 'static)) -> Option<wire::chunked::BodyError> {
    let mut causes = std::iter::successors(Some(broken), |error| error.source());
    causes.find_map(|error| error.downcast_ref().copied())
}

fn too_long_for_key(buffer: u64) -> Refusal {
    Refusal::TooLarge(format!(
        "The resource key of this route is read from the body, which may have {buffer} bytes for that (body.buffer)."
    ))
}
