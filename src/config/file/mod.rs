//! The file, block by block. Each block has a file with its fields as they are written, their
//! defaults, and its checks; this one has the top level and the checks of blocks against each
//! other.
//!
//! The doc comments of the fields are the reference: the JSON Schema takes its descriptions from
//! them. Its defaults come from the `Default` of each block. A field is an `Option` if its default
//! depends on other fields, or if it matters whether it was given. If such a field has a fixed
//! default nevertheless, the schema takes it from the constant that the check uses.
//!
//! A check that fails is reported, and the others go on.

mod admin;
mod barrier;
mod body;
mod claim;
mod idempotency;
mod limits;
mod lints;
mod require_client;
mod route;
mod route_fields;
mod routes;
mod shared_keys;
mod shutdown;
mod store;
mod tls;
mod token;
mod tracing;
mod units;
mod unknown_statuses;
mod upstream;
mod values;

use schemars::JsonSchema;
use serde::Deserialize;

use self::admin::AdminFile;
use self::barrier::BarrierFile;
use self::body::BodyFile;
use self::claim::ClaimFile;
use self::limits::LimitsFile;
use self::route::{Inherited, RouteFile};
use self::shutdown::ShutdownFile;
use self::store::StoreFile;
use self::tls::TlsFile;
use self::tracing::TracingFile;
pub(super) use self::units::Hidden;
use self::units::{FileMode, OffOr};
use self::upstream::UpstreamFile;
use self::values::{entries, taken};
use super::address_range::AddressRange;
use super::addresses;
use super::settings::{
    AdminSettings, Listen, LogSettings, RouteSettings, SafeMethods, Settings, UnknownStatuses,
    Unmatched, UpstreamSettings,
};
use super::yaml::{Report, shown};
use crate::config::document::ConfigDocument;

/// The configuration of fencepost. Durations are written `250ms`, `5s`, `1m`; sizes `512KiB`,
/// `1MiB` or as plain bytes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(title = "fencepost configuration", rename = "Configuration")]
pub struct File {
    /// Address for clients: `host:port`, or `unix:/path/of.sock`.
    pub listen: String,
    /// Mode of the listener's Unix socket, in octal digits: users who may write to it may connect.
    /// The default follows the umask, which usually leaves only the owner.
    pub listen_mode: Option<FileMode>,
    /// The addresses of load balancers and proxies in front, single or with a prefix length:
    /// `10.1.0.0/16`, `::1`. The client of their requests is the rightmost address of
    /// `X-Forwarded-For` that is not one of them. It counts for limits, for log lines and for
    /// `claim.addresses`. Their `X-Forwarded-Proto` and `-Host` are passed on; those of others are
    /// overwritten. Each of these proxies must append the address of its own client. Their
    /// connections do not count for `limits.connections_per_client`. Without this list,
    /// `X-Forwarded-For` decides nothing.
    #[schemars(with = "Vec<String>")]
    pub trusted_proxies: Vec<Option<String>>,
    /// TLS for clients. Without it they speak plain HTTP.
    pub tls: Option<TlsFile>,
    /// The protected upstream. `url` is required, here or by `--upstream`.
    pub upstream: UpstreamFile,
    /// The database for the marks.
    pub store: StoreFile,
    /// The wait of newer tokens for older requests.
    pub barrier: BarrierFile,
    /// Limits of size and time for bodies.
    pub body: BodyFile,
    /// Limits of the data port.
    pub limits: LimitsFile,
    /// The end of the program on SIGTERM.
    pub shutdown: ShutdownFile,
    /// Probes, metrics, and the API for marks.
    pub admin: AdminFile,
    /// The log on standard error.
    pub log: LogSettings,
    /// Traces: `off`, or a block with the collector that spans go to. Follows a reload.
    pub tracing: OffOr<TracingFile>,
    /// Paths that no route matches. `safe-only`: safe methods pass unfenced, everything else gets a
    /// 404. `refuse`: everything gets a 404.
    pub unmatched: Unmatched,
    /// The treatment of safe methods (GET, HEAD, OPTIONS, PROPFIND, QUERY, REPORT, SEARCH), unless
    /// a route overrides it.
    pub safe_methods: SafeMethods,
    /// The status of a stale request: 412 or 409.
    #[schemars(extend("enum" = [412, 409, null]))]
    pub stale_status: u16,
    /// Refusals name the resource, the token, the mark and their difference. `false` omits
    /// all four.
    pub disclose: bool,
    /// The beginning of the `type` of an answer, in place of `urn:fencepost:problem:`: an http or
    /// https URL. The type's word is appended: `https://wiki.internal/problems.md#` makes
    /// `https://wiki.internal/problems.md#stale-token`.
    pub problem_base_url: Option<String>,
    /// The endpoint where a new holder raises the mark before it reads: `off`, or a block with its
    /// path and the clients that may claim.
    pub claim: OffOr<ClaimFile>,
    /// The routes: which requests are fenced, and by which key. The most specific route wins, in
    /// any order. Without routes, one route `/{*path}` fences POST, PUT, PATCH and DELETE, and each
    /// path is a resource of its own.
    #[schemars(with = "Vec<RouteFile>")]
    pub routes: Vec<Option<RouteFile>>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7080".to_owned(),
            listen_mode: None,
            trusted_proxies: Vec::new(),
            tls: None,
            upstream: UpstreamFile::default(),
            store: StoreFile::default(),
            barrier: BarrierFile::default(),
            body: BodyFile::default(),
            limits: LimitsFile::default(),
            shutdown: ShutdownFile::default(),
            admin: AdminFile::default(),
            log: LogSettings::default(),
            tracing: OffOr::Off,
            unmatched: Unmatched::SafeOnly,
            safe_methods: SafeMethods::Optional,
            stale_status: 412,
            disclose: true,
            problem_base_url: None,
            claim: OffOr::default(),
            routes: Vec::new(),
        }
    }
}

/// Checks the whole file. `None` if there is an error, which is then in `report`.
pub(super) fn settings(
    file: File,
    document: ConfigDocument,
    report: &mut Report,
) -> Option<Settings> {
    let listen = taken("listen", addresses::listen(&file.listen), report);
    let barrier = barrier::settings(&file.barrier, report);
    let listen_mode = listen_mode(listen.as_ref(), file.listen_mode, report);
    let trusted_proxies = trusted_proxies(file.trusted_proxies, listen.as_ref(), report);
    let client_ca = file
        .tls
        .as_ref()
        .is_some_and(|tls| tls.client_ca_file.is_some());
    let tls = match file.tls {
        Some(block) => tls::listener(&block, report).map(Some),
        None => Some(None),
    };
    let upstream_timeout = file.upstream.timeout.0;
    let upstream = upstream::settings(file.upstream, barrier.settle, report);
    let store = store::settings(file.store, report);
    let body = body::settings("body", &file.body, body::DEFAULT, report);
    let limits = limits::settings(&file.limits, report);
    if file.barrier.queue.is_some() {
        limits::check_queue(&limits, barrier.queue, report);
    }
    let shutdown = shutdown::settings(&file.shutdown, barrier.grace, report);
    let admin = admin::settings(file.admin, report);
    let problem_base_url = problem_base_url(file.problem_base_url, report);
    let tracing = tracing::settings(file.tracing, report);
    let claim = claim::settings(
        file.claim,
        has_addresses(listen.as_ref()),
        client_ca,
        report,
    );
    if !matches!(file.stale_status, 412 | 409) {
        report.error(
            "stale_status",
            format!("must be 412 or 409, found {}", file.stale_status),
            "",
        );
    }
    let inherited = Inherited {
        safe_methods: file.safe_methods,
        upstream_timeout,
        unknown: upstream
            .as_ref()
            .map_or_else(UnknownStatuses::default, |u| u.unknown.clone()),
        barrier,
        body,
        key_bytes: limits.key_bytes,
        clients_are_named: client_ca,
    };
    let routes = routes::routes(file.routes, &inherited, claim.as_ref(), report);
    unguarded(
        file.unmatched,
        routes.as_deref().unwrap_or_default(),
        report,
    );
    let bodies = routes.iter().flatten().map(|route| route.body);
    body::check_memory(body, bodies, limits.body_memory, report);
    check_addresses(listen.as_ref(), admin.as_ref(), upstream.as_ref(), report);
    Some(Settings {
        listen: listen?,
        listen_mode,
        trusted_proxies,
        tls: tls?,
        upstream: upstream?,
        store: store?,
        barrier,
        body,
        limits,
        shutdown,
        admin: admin?,
        log: file.log,
        tracing,
        unmatched: file.unmatched,
        stale_status: file.stale_status,
        disclose: file.disclose,
        problem_base_url,
        claim,
        routes: routes?,
        document,
        sources: report.sources(),
    })
}

/// Compares the addresses: the two ports never share one, and requests never come back.
fn check_addresses(
    listen: Option<&Listen>,
    admin: Option<&AdminSettings>,
    upstream: Option<&UpstreamSettings>,
    report: &mut Report,
) {
    if let (Some(listen), Some(admin_listen)) =
        (listen, admin.and_then(|admin| admin.listen.as_ref()))
        && addresses::collide(listen, admin_listen)
    {
        report.with("listen").error(
            "admin.listen",
            "this is the address of the data port",
            "the two never share one: give it a port of its own, or `off`",
        );
    }
    if let (Some(listen), Some(upstream)) = (listen, upstream)
        && addresses::loops(&upstream.url, listen)
    {
        report.with("listen").error(
            "upstream.url",
            "this is fencepost's own address",
            "give the address of the upstream",
        );
    }
}

/// Warns of paths without a route beside routes that accept certain clients only.
fn unguarded(unmatched: Unmatched, routes: &[RouteSettings], report: &mut Report) {
    let guarded = routes.iter().any(|route| !route.require_client.is_empty());
    if guarded && unmatched == Unmatched::SafeOnly {
        report.warn(
            "unmatched",
            "safe methods of every client pass on paths that no route matches, and the \
             upstream may take one (with a slash behind it, say) for a route's that has a \
             require_client",
            "unmatched: refuse",
        );
    }
}

/// Whether the clients of the port have addresses.
fn has_addresses(listen: Option<&Listen>) -> bool {
    !matches!(listen, Some(Listen::Unix(_)))
}

fn problem_base_url(given: Option<String>, report: &mut Report) -> Option<String> {
    let url = given?;
    let is_link = |rest: &str| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'"')
    };
    let rest = url.strip_prefix("https://");
    let rest = rest.or_else(|| url.strip_prefix("http://"));
    if rest.is_some_and(is_link) {
        return Some(url);
    }
    report.error(
        "problem_base_url",
        format!("{} is not an http or https URL", shown(&url)),
        "such as https://wiki.internal/fencepost/problems.md#; the type's word is put behind it",
    );
    None
}

fn trusted_proxies(
    list: Vec<Option<String>>,
    listen: Option<&Listen>,
    report: &mut Report,
) -> Vec<AddressRange> {
    let at = "trusted_proxies";
    if !list.is_empty() && !has_addresses(listen) {
        report.with("listen").error(
            at,
            "clients of a Unix socket have no address",
            "remove it, or listen on a TCP port",
        );
    }
    let ranges = entries(at, list, AddressRange::parse, report);
    if ranges.iter().any(|range| range.is_everything()) {
        report.warn(
            at,
            "every client is trusted, and can name any address as its own",
            "name the proxies in front, such as 10.1.0.0/16",
        );
    }
    ranges
}

fn listen_mode(
    listen: Option<&Listen>,
    mode: Option<FileMode>,
    report: &mut Report,
) -> Option<u32> {
    if mode.is_some() && matches!(listen, Some(Listen::Tcp(_))) {
        report.with("listen").error(
            "listen_mode",
            "a TCP port has no mode",
            "remove it, or listen on unix:/path/of.sock",
        );
    }
    mode.map(|mode| mode.0)
}
