//! [`Settings`]: the configuration file, block by block. Each block is a struct with its fields as
//! they are written, their defaults, and its checks; this one has the top level and the checks of
//! blocks against each other.
//!
//! The doc comments of the fields are the reference: the JSON Schema takes its descriptions from
//! them, and its defaults from the values behind them. Fields that the file does not have are
//! filled in by the checks, and are marked `skip`.
//!
//! A check that fails is reported, and the others go on. Settings with an error are never returned.
//!
//! A reload may change some settings, and only a restart the others ([`Settings::reload_from`]):
//! the marks, the leases and the open epochs depend on those that stay. Routes are compared by
//! their effect: see [`route_table`](super::route_table). Most limits are applied at the start, and
//! nothing depends on them: a reload that changes one keeps the current value, says so, and takes
//! the rest.

use std::time::Duration;

use serde_json::Value;

use super::addresses::{HostPolicy, Listen, UpstreamUrl};
use super::admin::{AdminSettings, LogSettings, TracingSettings};
use super::clients::{AddressRange, ClaimSettings, check_clients};
use super::judging::{IdempotencySettings, KeyScope, Mode, SafeMethods, Unmatched};
use super::limits::{BarrierSettings, BodySettings, LimitSettings, ShutdownSettings};
use super::lints;
use super::route::{self, RouteSettings};
use super::store::StoreSettings;
use super::tls::{self, ClientAuth, TlsFile, TlsSettings};
use super::units::{Count, Hidden, OffOr, Status};
use super::upstream::{UnknownStatuses, UpstreamSettings, fits_settle};
use super::yaml::{self, Report, Sources, blocks, shown};
use crate::routing::Router;

/// The default of `listen`.
pub(super) const LISTEN: &str = "127.0.0.1:7080";

blocks! {
    /// The configuration of fencepost. Durations are written `250ms`, `5s`, `1m`; sizes `512KiB`,
    /// `1MiB` or as plain bytes.
    #[schemars(title = "fencepost configuration", rename = "Configuration")]
    pub struct Settings {
        /// Address for clients: `host:port`, or `unix:/path/of.sock`, where the permissions of the
        /// directory decide who may connect.
        #[schemars(extend("default" = LISTEN))]
        pub listen: Listen = Listen::Tcp(LISTEN.to_owned()),
        /// The addresses of load balancers and proxies in front, single or with a prefix length:
        /// `10.1.0.0/16`, `::1`. The client of their requests is the rightmost address of
        /// `X-Forwarded-For` that is not one of them. It counts for limits, for log lines and for
        /// `claim.addresses`. Their `X-Forwarded-Proto` and `-Host` are passed on; those of others
        /// are overwritten. Each of these proxies must append the address of its own client. Their
        /// connections do not count for `limits.connections_per_client`. Without this list,
        /// `X-Forwarded-For` decides nothing.
        pub trusted_proxies: Vec<AddressRange>,
        /// TLS for clients. Without it they speak plain HTTP.
        #[serde(rename = "tls")]
        tls_files: Option<TlsFile>,
        /// TLS, ready to use; `None`: plain HTTP.
        #[serde(skip)]
        pub tls: Option<TlsSettings>,
        /// The protected upstream. `url` is required, here or by `--upstream`.
        pub upstream: UpstreamSettings,
        /// The database for the marks.
        pub store: StoreSettings,
        /// The wait of newer tokens for older requests.
        pub barrier: BarrierSettings,
        /// Limits of size and time for bodies.
        pub body: BodySettings,
        /// Limits of the data port.
        #[schemars(extend("default" = ()))]
        pub limits: LimitSettings,
        /// The end of the program on SIGTERM.
        pub shutdown: ShutdownSettings,
        /// Probes, metrics, and the API for marks.
        pub admin: AdminSettings,
        /// The log on standard error.
        pub log: LogSettings,
        /// Traces: `off`, or a block with the collector that spans go to. Follows a reload.
        pub tracing: OffOr<TracingSettings> = OffOr(None),
        /// Paths that no route matches. `safe-only`: safe methods pass unfenced, everything else
        /// gets a 404, or passes too while routes only observe. `refuse`: everything gets a 404.
        pub unmatched: Unmatched = Unmatched::SafeOnly,
        /// The treatment of safe methods (GET, HEAD, OPTIONS, PROPFIND, QUERY, REPORT, SEARCH),
        /// unless a route overrides it.
        pub safe_methods: SafeMethods = SafeMethods::Optional,
        /// The status of a stale request: 412 or 409.
        #[schemars(with = "u16", extend("enum" = [412, 409]))]
        pub stale_status: Status<100, 599> = Count(412),
        /// Refusals name the resource, the token, the mark and their difference. `false` omits
        /// all four.
        pub disclose: bool = true,
        /// The endpoint where a new holder raises the mark before it reads: `off`, or a block with
        /// its path and the clients that may claim.
        pub claim: OffOr<ClaimSettings> = OffOr(Some(ClaimSettings::default())),
        /// The routes: which requests are fenced, and by which key. The most specific route wins,
        /// in any order. Without routes, one route `/{*path}` fences POST, PUT, PATCH and DELETE,
        /// and each path is a resource of its own.
        pub routes: Vec<RouteSettings>,
        /// The file with flags and environment variables over it, as it was read; without secrets.
        #[serde(skip)]
        pub document: Hidden<Value>,
        /// The files that all this was read from.
        #[serde(skip)]
        pub sources: Sources,
    }
}

impl Settings {
    /// The first digits of the document's SHA-256, the same for the same fields and values.
    pub fn digest(&self) -> String {
        // Maps are in the order of their keys.
        yaml::digest(&self.document.0.to_string())[..12].to_owned()
    }

    /// The longest time for which a route remembers outcomes; `None`: none does.
    pub fn remembers(&self) -> Option<Duration> {
        let outcomes = self.routes.iter().flat_map(|route| &route.outcome);
        outcomes.map(|outcome| outcome.remember.0).max()
    }

    /// The requirement for client certificates on the data port; `None`: clients are not asked.
    pub fn client_auth(&self) -> Option<ClientAuth> {
        let files = self.tls_files.as_ref();
        let files = files.filter(|files| files.client_ca_file.is_some());
        files.map(|files| files.client_auth)
    }

    /// The claim endpoint; `None`: off.
    pub const fn claim(&self) -> Option<&ClaimSettings> {
        self.claim.0.as_ref()
    }

    /// Checks everything, and fills in what is derived from the fields of the file.
    pub(super) fn check(&mut self, report: &mut Report) {
        let is_socket = matches!(self.listen, Listen::Unix(_));
        let named = self.client_auth().is_some();
        let files = self.tls_files.as_ref();
        self.tls = files.and_then(|files| tls::listener(files, report));
        self.upstream.check(self.barrier.settle.0, report);
        self.store.check(report);
        self.admin.check(report);
        let no_collector = |tracing: &TracingSettings| tracing.otlp.0.is_empty();
        let is_missing = self.tracing.0.as_ref().is_some_and(no_collector);
        let text = "no collector is given\nsuch as http://127.0.0.1:4318";
        report.error_if(is_missing, "tracing.otlp", text);
        if let Some(claim) = &mut self.claim.0 {
            claim.check(named, report);
        }
        let is_other = !matches!(self.stale_status.0, 412 | 409);
        let text = format!("must be 412 or 409, found {}", self.stale_status.0);
        report.error_if(is_other, "stale_status", text);
        self.check_addresses(is_socket, report);
        self.check_routes(report);
    }

    /// Compares the address for clients with what depends on it.
    fn check_addresses(&self, is_socket: bool, report: &mut Report) {
        let claim = self.claim().and_then(|claim| claim.addresses.as_ref());
        let text = "clients of a Unix socket have no address\nremove it, or listen on a TCP port";
        for (at, is_given) in [
            ("trusted_proxies", !self.trusted_proxies.is_empty()),
            ("claim.addresses", claim.is_some()),
        ] {
            report.error_beside(is_given && is_socket, [at, "listen"], text);
        }
        let is_open = self.trusted_proxies.iter().any(AddressRange::is_everything);
        let text = "every client is trusted, and can name any address as its own\n\
                    name the proxies in front, such as 10.1.0.0/16";
        report.warn_if(is_open, "trusted_proxies", text);
    }

    /// Checks each route, and all against each other.
    fn check_routes(&mut self, report: &mut Report) {
        let text = "there are no routes, so nothing is fenced\n\
                    name one, or leave `routes` out: then each path is a resource of its own";
        report.error_if(self.routes.is_empty(), "routes", text);
        let mut routes = std::mem::take(&mut self.routes);
        for (index, route) in routes.iter_mut().enumerate() {
            self.check_route(&route::path(index), route, report);
        }
        self.routes = routes;
        let routes = &self.routes;
        collisions(routes, report);
        if let Some(claim) = self.claim() {
            lints::ways_around_claims(claim, routes, report);
        }
        if routes.iter().all(RouteSettings::is_whole) {
            lints::shared_keys(routes, report);
            lints::routes(routes, report);
        }
        let (observe, enforce) = (Mode::Observe, Mode::Enforce);
        let has = |mode| routes.iter().any(|route| route.mode == mode);
        let takes_all = |route: &RouteSettings| route.path.as_str().starts_with("/{*");
        let opens = has(observe)
            && !has(enforce)
            && !routes.iter().any(takes_all)
            && self.unmatched == Unmatched::SafeOnly;
        let text = "while routes only observe, writes to paths that no route lists pass \
                    (observed-no-route); once a route enforces, they get 404 no-route\n\
                    list every path that clients write to; mode: bypass is for those without a fence";
        report.warn_if(opens, "unmatched", text);
        let guarded = routes.iter().any(|route| !route.require_client.is_empty());
        let is_open = guarded && self.unmatched == Unmatched::SafeOnly;
        let text = "safe methods of every client pass where no route matches, and the upstream may \
                    take such a path for one with a require_client\nunmatched: refuse";
        report.warn_if(is_open, "unmatched", text);
    }

    /// Checks the route at this path of the configuration, beside the rest of it.
    fn check_route(&self, at: &str, route: &mut RouteSettings, report: &mut Report) {
        let field = |name: &str| format!("{at}.{name}");
        let text = "a route needs a path\nsuch as /orders/{id}, or /{*path} for every path";
        report.error_if(route.path.as_str().is_empty(), &field("path"), text);
        let claim = self.claim().map(|claim| claim.path.0.as_str());
        let text = "this is the path of the claim endpoint\n\
                    claims never reach a route: choose another `claim.path`, or `claim: off`";
        report.error_if(claim == Some(route.path.as_str()), &field("path"), text);
        let text = "observe refuses nothing: stale writes reach the upstream and are only counted\n\
                    enforce, once the counts are what you expect";
        report.warn_if(route.mode == Mode::Observe, &field("mode"), text);
        let judged = "resource token reuse idempotency outcome barrier".split(' ');
        let idle = judged.map(field).find(|field| report.is_given(field));
        let text = "bypass forwards without a check, so this has no effect\nremove it, or enforce";
        if let Some(idle) = idle.filter(|_| route.mode == Mode::Bypass) {
            report.warn(idle, text);
        }
        let text = "no method is allowed\nleave it out to allow POST, PUT, PATCH and DELETE";
        report.error_if(route.methods.is_empty(), &field("methods"), text);
        let moves = ["COPY", "MOVE"]
            .iter()
            .any(|verb| route.methods.contains(*verb));
        let text = "COPY and MOVE name another resource on the client's host, which the upstream does \
                    not see\nupstream.host: preserve, and HTTP/1.1 to the upstream";
        let http2 = self.upstream.http2 || matches!(self.upstream.url, UpstreamUrl::H2c(_));
        let is_foreign = http2 || self.upstream.host != HostPolicy::Preserve;
        report.warn_if(moves && is_foreign, &field("methods"), text);
        route.check_name(&field("name"), report);
        let (clients, named) = (field("require_client"), self.client_auth().is_some());
        check_clients(&clients, &route.require_client, named, report);
        if route.upstream.timeout != self.upstream.timeout {
            let at = field("upstream.timeout");
            fits_settle(&at, route.upstream.timeout, self.barrier.settle.0, report);
        }
        let grpc = &self.upstream.unknown_grpc_statuses;
        route.unknown = UnknownStatuses::of(&route.upstream.unknown_statuses, grpc);
        if route.mode == Mode::Bypass {
            route.idempotency = OffOr(None);
            route.outcome = None;
        }
        route.check_outcome(&field("outcome"), report);
        let needs_body = |block: &IdempotencySettings| block.key == KeyScope::Operation;
        let is_keyless = route.body.buffer.0 == 0 && route.idempotency().is_some_and(needs_body);
        let text = "`body.buffer` is 0: a request with a body that names no operation gets no key\n\
                    raise body.buffer, or say `idempotency.key: epoch`";
        report.warn_if(is_keyless, &field("idempotency"), text);
        let replaces = |block: &IdempotencySettings| block.header.0 == "authorization";
        let is_taken = route.idempotency().is_some_and(replaces);
        let text = "Authorization cannot carry an idempotency key: the upstream needs the client's\n\
                    use a header that has no other meaning: Idempotency-Key";
        report.error_if(is_taken, &field("idempotency.header"), text);
        route.check_key(&field("resource"), named, report);
    }

    /// Takes the new settings, and returns the names of fields that keep their value until a
    /// restart. If a setting changes that may not, every reason is returned and nothing is taken.
    pub fn reload_from(&self, mut new: Self) -> Result<(Self, Vec<String>), Vec<String>> {
        let (admin, new_admin) = (&self.admin, &new.admin);
        let (store, becomes) = (&self.store, &new.store);
        // Clients of the other protocol would fail from one moment to the next.
        let tls = self.tls.is_some() != new.tls.is_some();
        let admin_tls = admin.tls.is_some() != new_admin.tls.is_some();
        let fixed = [
            ("listen", self.listen != new.listen),
            ("admin.listen", admin.listen != new_admin.listen),
            ("the presence of tls", tls),
            ("the presence of admin.tls", admin_tls),
            ("store.url", store.target != becomes.target),
            ("store.tls", store.tls != becomes.tls),
            ("store.namespace", store.namespace != becomes.namespace),
            ("store.lease", store.lease != becomes.lease),
            ("store.timeout", store.timeout != becomes.timeout),
            (
                "store.cached_marks",
                store.cached_marks != becomes.cached_marks,
            ),
            ("store.migrate", store.migrate != becomes.migrate),
            (
                "upstream.undelivered",
                self.upstream.undelivered != new.upstream.undelivered,
            ),
            ("barrier.settle", self.barrier.settle != new.barrier.settle),
        ];
        let fixed = fixed.into_iter().filter(|(_, is_changed)| *is_changed);
        let reason = |(name, _)| format!("{name} cannot change while fencepost runs: restart it");
        let reasons: Vec<_> = fixed.map(reason).collect();
        if !reasons.is_empty() {
            return Err(reasons);
        }
        let mut kept = new.limits.keep(&self.limits);
        if self.barrier.queue != new.barrier.queue {
            new.barrier.queue = self.barrier.queue;
            kept.push("barrier.queue".to_owned());
        }
        if self.log.format != new.log.format {
            new.log.format = self.log.format;
            kept.push("log.format".to_owned());
        }
        Ok((new, kept))
    }
}

/// Reports routes that could not be told apart: in requests by their paths, in metrics by their
/// labels.
fn collisions(routes: &[RouteSettings], report: &mut Report) {
    let (_, conflicts) = Router::new(routes.iter().map(|route| &route.path));
    for conflict in conflicts {
        let (first, second) = (route::path(conflict.first), route::path(conflict.second));
        let text = format!(
            "{conflict} ({first} and {second})\nmake one of them more specific, or remove it",
        );
        report.error(format!("{second}.path"), text);
    }
    for (i, route) in routes.iter().enumerate() {
        let label = route.label();
        let mut before = routes[..i].iter();
        let other = before.rfind(|other| other.label() == label && other.path != route.path);
        let Some(other) = other else { continue };
        let (label, first, second) = (shown(label), &other.path, &route.path);
        let text = format!(
            "the routes {first} and {second} are both called {label}\n\
             metrics could not tell them apart: give each its own name",
        );
        report.error(format!("{}.name", route::path(i)), text);
    }
}
