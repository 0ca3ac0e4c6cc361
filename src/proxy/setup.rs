//! The parts of the request path that all phases share, and how they are set up and reloaded.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::is_in;
use super::headers::Via;
use super::limits::InFlightLimit;
use super::notes::Notes;
use super::routing_table::{RoutingTable, Snapshot};
use crate::active_requests::ActiveRequests;
use crate::body::BodyMemory;
use crate::boot_clock::BootClock;
use crate::config::{LimitSettings, Settings, TlsSettings};
use crate::fencing::Fencing;
use crate::fencing::lease::Lease;
use crate::metrics::Metrics;
use crate::rejections::Rejections;
use crate::store::InstanceId;
use crate::traces::Traces;
use crate::upstream::Upstream;
use crate::worker::PerWorker;

/// The error of setting up the request path.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("{0}")]
    Upstream(String),
    #[error("tracing: {0:#}")]
    Traces(#[from] anyhow::Error),
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
    /// As they were at the start.
    pub(crate) limits: LimitSettings,
    pub(crate) metrics: Arc<Metrics>,
    pub(super) spends: AtomicU64,
    /// The name of this process in `Via`.
    pub(super) via: Via,
}

impl Proxy {
    /// Of the settings, the limits stay as they are now. `stopping` ends tunnels.
    pub(crate) fn new(
        settings: Arc<Settings>,
        fencing: Arc<Fencing>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        stopping: CancellationToken,
        rejections: Arc<Rejections>,
        via: Via,
    ) -> Result<Self, ProxyError> {
        let limits = settings.limits;
        let notes = Arc::new(Notes::new(rejections));
        let memory = BodyMemory::new(limits.body_memory.bytes(), Arc::clone(&metrics));
        let snapshot = snapshot(settings, &fencing, &metrics, notes, memory, None)?;
        Ok(Self {
            snapshot: PerWorker::new(|| Arc::new(snapshot.clone())),
            fencing,
            tasks,
            stopping,
            in_flight: InFlightLimit::new(&limits, Arc::clone(&metrics)),
            limits,
            metrics,
            spends: AtomicU64::new(0),
            via,
        })
    }

    /// Prepares new settings for [`Self::reload`].
    pub(crate) fn prepare(&self, settings: Arc<Settings>) -> Result<Snapshot, ProxyError> {
        let now = self.snapshot();
        let (notes, memory) = (Arc::clone(&now.notes), Arc::clone(&now.memory));
        let (fencing, metrics) = (&self.fencing, &self.metrics);
        let traces = now.traces.as_ref();
        snapshot(settings, fencing, metrics, notes, memory, traces)
    }

    /// Applies new settings to later requests. Requests in flight keep theirs.
    pub(crate) fn reload(&self, snapshot: &Snapshot) {
        self.snapshot
            .change(|own| *own = Arc::new(snapshot.clone()));
    }

    /// Sends the spans that have ended, for up to `within`.
    pub(crate) async fn finish_traces(&self, within: Duration) {
        if let Some(traces) = self.snapshot().traces.clone() {
            traces.finish(within).await;
        }
    }

    /// The requests in progress.
    pub(crate) fn active(&self) -> Arc<ActiveRequests> {
        Arc::clone(&self.snapshot().notes.active)
    }

    /// The TLS settings for new connections of the data port.
    pub(crate) fn tls(&self) -> Option<TlsSettings> {
        self.snapshot().table.settings.tls.clone()
    }

    /// Whether this is the address of a proxy that may name its clients.
    pub(crate) fn trusts(&self, ip: IpAddr) -> bool {
        is_in(&self.snapshot().table.settings.trusted_proxies, ip)
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.own())
    }

    pub(super) fn spend_name(&self) -> String {
        let number = self.spends.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.fencing.instance())
    }
}

/// The snapshot of these settings. `traces`: those that run now.
fn snapshot(
    settings: Arc<Settings>,
    fencing: &Fencing,
    metrics: &Arc<Metrics>,
    notes: Arc<Notes>,
    memory: Arc<BodyMemory>,
    traces: Option<&Arc<Traces>>,
) -> Result<Snapshot, ProxyError> {
    let upstream = Upstream::new(&settings.upstream, fencing.lease(), metrics);
    let upstream = upstream.map_err(ProxyError::Upstream)?;
    let wanted = settings.tracing.0.as_ref();
    let traces = match (traces, wanted) {
        (Some(traces), _) if traces.has(wanted) => Some(Arc::clone(traces)),
        (_, Some(wanted)) => Some(Traces::start(wanted, &fencing.instance().name())?),
        (_, None) => None,
    };
    Ok(Snapshot {
        upstream: Arc::new(upstream),
        table: Arc::new(RoutingTable::new(settings, metrics)),
        traces,
        notes,
        memory,
    })
}

/// Opens one connection to the upstream, TLS included, and sends no request: whether it can be reached,
/// as `fencepost check --connect` asks.
///
/// # Errors
///
/// Why there is none, for an operator.
pub async fn reach(settings: &Settings) -> Result<(), String> {
    let metrics = Arc::new(Metrics::new(&[]));
    let (clock, nobody) = (BootClock::boottime(), InstanceId::from_bits(0));
    let unshared = Lease::new(clock, Duration::MAX, nobody);
    let upstream = Upstream::new(&settings.upstream, &Arc::new(unshared), &metrics)?;
    upstream.reach().await
}
