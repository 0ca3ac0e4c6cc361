//! The routes as the request path uses them: settings, metrics and the router, swapped whole on
//! reload.

use std::sync::Arc;

use super::notes::Notes;
use super::refusal::{AnswerStyle, Refusal};
use crate::body::{BodyMemory, BodyRules};
use crate::config::{BodySettings, Mode, RouteSettings, Settings};
use crate::metrics::{CLAIM, Metrics, RouteMetrics, UNMATCHED};
use crate::routing::{CheckedPath, KeyTemplate, Router, Source};
use crate::traces::Traces;
use crate::upstream::Upstream;

/// One route.
pub(crate) struct Route {
    pub settings: RouteSettings,
    pub metrics: Arc<RouteMetrics>,
    /// The key is made of the host, so an upstream must find no other one.
    pub host_in_key: bool,
}

impl Route {
    /// The template of its resource keys. Every route that fences has one.
    pub(crate) fn template(&self) -> Result<&KeyTemplate, Refusal> {
        let key = self.settings.key.as_ref();
        key.ok_or_else(|| Refusal::ambiguous("This route has no resource key."))
    }
}

/// The parts that a reload replaces, and those that exchanges need besides.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub table: Arc<RoutingTable>,
    pub upstream: Arc<Upstream>,
    /// `None`: no request is traced.
    pub traces: Option<Arc<Traces>>,
    pub notes: Arc<Notes>,
    pub memory: Arc<BodyMemory>,
}

impl Snapshot {
    /// The rules for the bodies of requests under these settings.
    pub(super) fn body_rules(&self, settings: BodySettings) -> BodyRules {
        BodyRules {
            settings,
            memory: Arc::clone(&self.memory),
        }
    }
}

#[cfg(test)]
impl Snapshot {
    /// The snapshot of a process with these settings.
    pub(crate) fn of(
        settings: Settings,
        lease: &Arc<crate::fencing::lease::Lease>,
        metrics: &Arc<Metrics>,
    ) -> Arc<Self> {
        let upstream = Upstream::new(&settings.upstream, lease, metrics);
        Arc::new(Self {
            upstream: Arc::new(upstream.expect("an upstream")),
            table: Arc::new(RoutingTable::new(Arc::new(settings), metrics)),
            traces: None,
            notes: Arc::new(Notes::new(Arc::default())),
            memory: BodyMemory::new(64 << 20, Arc::clone(metrics)),
        })
    }
}

/// All routes of one configuration.
pub(crate) struct RoutingTable {
    router: Router,
    routes: Vec<Arc<Route>>,
    /// Some route enforces, or lets only some clients in: then nothing ambiguous passes anywhere.
    pub strict: bool,
    pub unmatched_metrics: Arc<RouteMetrics>,
    pub claim_metrics: Arc<RouteMetrics>,
    pub settings: Arc<Settings>,
}

impl RoutingTable {
    /// The style of an answer to this request.
    pub(crate) fn style(&self, grpc: bool) -> AnswerStyle {
        AnswerStyle {
            stale_status: self.settings.stale_status.status(),
            disclose: self.settings.disclose,
            grpc,
        }
    }

    pub(crate) fn new(settings: Arc<Settings>, metrics: &Metrics) -> Self {
        // A configuration with conflicts has no settings.
        let (index, _) = Router::new(settings.routes.iter().map(|route| &route.path));
        let routes = settings
            .routes
            .iter()
            .map(|route| {
                let mut parts = route.key.iter().flat_map(KeyTemplate::parts);
                let host_in_key = parts.any(|source| matches!(source, Source::Host));
                Arc::new(Route {
                    settings: route.clone(),
                    host_in_key,
                    metrics: metrics.route(route.label()),
                })
            })
            .collect();
        Self {
            router: index,
            routes,
            strict: settings
                .routes
                .iter()
                .any(|route| route.mode == Mode::Enforce || !route.require_client.is_empty()),
            unmatched_metrics: metrics.route(UNMATCHED),
            claim_metrics: metrics.route(CLAIM),
            settings,
        }
    }

    /// The most specific route that matches.
    pub(crate) fn find(&self, path: &CheckedPath) -> Option<&Arc<Route>> {
        self.routes.get(self.router.find(path)?)
    }

    /// The routes of this mode that some request reaches with this key.
    pub(crate) fn could_yield(&self, mode: Mode, key: &str) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().filter(move |route| {
            let settings = &route.settings;
            let reach = |path: &CheckedPath| {
                let found = self
                    .find(path)
                    .is_some_and(|found| Arc::ptr_eq(found, route));
                found && path.oddity_not_in(settings.allow).is_none()
            };
            let template = settings.key.as_ref();
            settings.mode == mode
                && template.is_some_and(|template| template.sample(key, reach).is_some())
        })
    }
}
