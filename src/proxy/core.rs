//! The parts of the request path: how they are set up and reloaded, and what all phases share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::request::Parts;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::BodyRules;
use super::conclusion;
use super::headers::via::Via;
use super::memory::Memory;
use super::peer::Peer;
use super::places::Places;
use super::rate::LeastRate;
use super::refusal::Refusal;
use super::refusal_throttles::RefusalThrottles;
use super::shares::Network;
use super::slow::SlowClients;
use super::table::RoutingTable;
use super::tunnel::TunnelOpening;
use super::upstream::{Upstream, UpstreamError};
use crate::config::{BodySettings, Settings, TlsSettings};
use crate::fencing::Fencing;
use crate::metrics::Metrics;
use crate::rejections::Rejections;
use crate::routing::RouteConflict;
use crate::wire::chunked::trailer_limits;
use crate::wire::head::HeadLimits;
use crate::worker::PerWorker;

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

/// The parts that a reload replaces.
#[derive(Clone)]
pub(crate) struct Live {
    pub(super) table: Arc<RoutingTable>,
    pub(super) upstream: Arc<Upstream>,
}

impl Live {
    /// Whether a request is a gRPC call that its upstream can take as one.
    pub(super) fn calls(&self, headers: &HeaderMap) -> bool {
        self.upstream.h2 && conclusion::is_grpc(headers)
    }
}

/// The request path.
pub struct Proxy {
    /// Each worker's own pointer to it: no core waits for another one's count of those who use it.
    pub(super) live: PerWorker<Arc<Live>>,
    pub(super) fencing: Arc<Fencing>,
    /// Exchanges and whatever else must finish though its client has left.
    pub(super) tasks: TaskTracker,
    /// Ends tunnels when the process stops.
    pub(super) stopping: CancellationToken,
    pub(super) places: Places,
    pub(super) memory: Arc<Memory>,
    /// The limits of trailers.
    pub(super) trailers: HeadLimits,
    /// `limits.body_rate`.
    pub(super) least: Option<LeastRate>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) rejections: Arc<Rejections>,
    /// Which refusals are logged.
    pub(super) throttles: Arc<RefusalThrottles>,
    pub(super) spends: AtomicU64,
    /// The name of this process in `Via`.
    pub(super) via: Via,
}

/// The arguments of [`Proxy::new`].
pub(crate) struct ProxySetup {
    pub settings: Arc<Settings>,
    pub fencing: Arc<Fencing>,
    pub metrics: Arc<Metrics>,
    pub tasks: TaskTracker,
    pub stopping: CancellationToken,
    pub rejections: Arc<Rejections>,
    /// The name of this process in `Via`.
    pub via: Via,
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
        let table = RoutingTable::new(settings, &metrics).map_err(ProxyError::Routes)?;
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
        let table = Arc::new(RoutingTable::new(settings, metrics).map_err(ProxyError::Routes)?);
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

    pub(super) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.own())
    }

    /// What a tunnel takes, if a request asks for one and there is room.
    pub(super) fn tunnel(
        &self,
        head: &mut Parts,
        peer: &Peer,
    ) -> Result<Option<TunnelOpening>, Refusal> {
        let opening = TunnelOpening::take(head, &self.stopping, peer.until);
        opening
            .map(|opening| Ok(opening.holding(self.places.take_tunnel()?)))
            .transpose()
    }

    /// The rules for the bodies of requests under these settings. The messages of a gRPC call come
    /// when there is something to say: they may be slow as long as nobody else needs the place. A
    /// content type alone makes no call: it takes an upstream that speaks HTTP/2.
    pub(super) fn rules(&self, settings: BodySettings, peer: &Peer, is_call: bool) -> BodyRules {
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

    pub(super) fn spend_name(&self) -> String {
        let number = self.spends.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.fencing.instance())
    }
}
