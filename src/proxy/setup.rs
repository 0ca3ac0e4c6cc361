//! The parts of the request path that all phases share, and how they are set up and reloaded.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::headers::Via;
use super::limits::InFlightLimit;
use super::log::Notes;
use super::long_body::LongBodies;
use super::routing_table::{RoutingTable, Snapshot};
use super::trusted_proxies;
use crate::body::BodyMemory;
use crate::body::BodyRules;
use crate::boot_clock::BootClock;
use crate::config::{BodySettings, Settings, TlsSettings};
use crate::fencing::Fencing;
use crate::fencing::lease::Lease;
use crate::metrics::Metrics;
use crate::rejections::Rejections;
use crate::routing::RouteConflict;
use crate::store::InstanceId;
use crate::traces::{Traces, TracesError};
use crate::upstream::{Upstream, UpstreamError};
use crate::worker::PerWorker;

/// The error of setting up the request path.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("routes conflict: {}", list(.0))]
    Routes(Vec<RouteConflict>),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Traces(#[from] TracesError),
}

fn list(conflicts: &[RouteConflict]) -> String {
    let texts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The request path.
pub struct Proxy {
    /// Each worker has its own pointer to the settings, so that no core waits for another one's
    /// reference count.
    pub(super) snapshot: PerWorker<Arc<Snapshot>>,
    pub(super) fencing: Arc<Fencing>,
    /// Exchanges and other tasks that must finish even if the client has left.
    pub(super) tasks: TaskTracker,
    /// Ends tunnels when the process stops.
    pub(super) stopping: CancellationToken,
    pub(super) in_flight: InFlightLimit,
    pub(super) memory: Arc<BodyMemory>,
    pub(super) long_bodies: LongBodies,
    pub(super) metrics: Arc<Metrics>,
    pub(super) notes: Arc<Notes>,
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

/// Starts to trace requests, if the settings say so.
fn traces(
    settings: &Settings,
    fencing: &Fencing,
    metrics: &Metrics,
) -> Result<Option<Arc<Traces>>, TracesError> {
    let instance = fencing.instance();
    let wanted = settings.tracing.as_ref();
    wanted
        .map(|settings| Traces::start(settings, &instance.name(), metrics))
        .transpose()
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
        let in_flight = InFlightLimit::new(&limits, Arc::clone(&metrics));
        let table = RoutingTable::new(settings, &metrics).map_err(ProxyError::Routes)?;
        let table = Arc::new(table);
        let traces = traces(&table.settings, &fencing, &metrics)?;
        let notes = Arc::new(Notes::new(rejections));
        let memory = BodyMemory::new(limits.body_memory, Arc::clone(&metrics));
        let snapshot = Snapshot {
            table,
            upstream,
            traces,
            notes: Arc::clone(&notes),
            memory: Arc::clone(&memory),
        };
        Ok(Self {
            snapshot: PerWorker::new(|| Arc::new(snapshot.clone())),
            fencing,
            tasks,
            stopping,
            in_flight,
            long_bodies: LongBodies::new(),
            memory,
            metrics,
            notes,
            spends: AtomicU64::new(0),
            via,
        })
    }

    /// Prepares new settings for [`Self::reload`].
    pub(crate) fn prepare(&self, settings: Arc<Settings>) -> Result<Snapshot, ProxyError> {
        let (lease, metrics) = (self.fencing.lease(), &self.metrics);
        let upstream = Arc::new(Upstream::new(&settings.upstream, lease, metrics)?);
        let table = Arc::new(RoutingTable::new(settings, metrics).map_err(ProxyError::Routes)?);
        let now = self.snapshot();
        let wanted = table.settings.tracing.as_ref();
        let traces = match &now.traces {
            Some(traces) if traces.has(wanted) => Some(Arc::clone(traces)),
            _ => traces(&table.settings, &self.fencing, metrics)?,
        };
        Ok(Snapshot {
            table,
            upstream,
            traces,
            notes: Arc::clone(&self.notes),
            memory: Arc::clone(&self.memory),
        })
    }

    /// Applies new settings to later requests. Requests in flight keep theirs.
    pub(crate) fn reload(&self, snapshot: &Snapshot) {
        let old = self.snapshot();
        self.snapshot
            .change(|own| *own = Arc::new(snapshot.clone()));
        old.upstream.retire();
    }

    /// Sends the spans that have ended, for up to `within`.
    pub(crate) async fn finish_traces(&self, within: Duration) {
        if let Some(traces) = self.snapshot().traces.clone() {
            traces.finish(within).await;
        }
    }

    /// The TLS settings for new connections of the data port.
    pub(crate) fn tls(&self) -> Option<TlsSettings> {
        self.snapshot().table.settings.tls.clone()
    }

    /// Whether this is the address of a proxy that may name its clients.
    pub(crate) fn trusts(&self, ip: IpAddr) -> bool {
        trusted_proxies::have(&self.snapshot().table.settings.trusted_proxies, ip)
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.own())
    }

    /// The rules for the bodies of requests under these settings.
    pub(super) fn body_rules(&self, settings: BodySettings) -> BodyRules {
        BodyRules {
            settings,
            memory: Arc::clone(&self.memory),
        }
    }

    pub(super) fn spend_name(&self) -> String {
        let number = self.spends.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.fencing.instance())
    }
}

/// Opens one connection to the upstream, TLS included, and sends no request: whether it can be reached,
/// as `fencepost check --connect` asks.
///
/// # Errors
///
/// Why there is none, for an operator.
pub async fn reach(settings: &Settings) -> Result<(), String> {
    let metrics = Arc::new(Metrics::new(&[]));
    let unshared = Lease::new(BootClock::boottime(), None, InstanceId::from_bits(0));
    let upstream = Upstream::new(&settings.upstream, &Arc::new(unshared), &metrics)
        .map_err(|error| error.to_string())?;
    upstream.reach().await
}
