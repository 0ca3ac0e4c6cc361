//! From the [file](super::file)'s fields to [`Settings`]: defaults, the checks of the small blocks,
//! and of blocks against each other. The longer blocks are checked in files of their names. A check
//! that fails is reported, and the others go on.

use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::addresses;
use super::admin;
use super::body;
use super::checks::{count, listen, seconds, time};
use super::claim;
use super::file::{BarrierFile, File, LogFile, ShutdownFile};
use super::limits;
use super::problems::{Report, shown};
use super::route::Inherited;
use super::routes;
use super::settings::{
    AdminSettings, BarrierSettings, Listen, LogFormat, LogSettings, RouteSettings, SafeMethods,
    Settings, ShutdownSettings, UnknownStatuses, Unmatched, UpstreamSettings, UpstreamUrl,
};
use super::store;
use super::tls;
use super::units::FileMode;
use super::upstream;

/// Where the data port is if nobody says.
const LISTEN: &str = "127.0.0.1:7080";

/// Checks everything. `None` if there is an error, which is then in `report`.
pub(super) fn settings(file: File, report: &mut Report) -> Option<Settings> {
    let listen = listen("listen", file.listen.as_deref(), LISTEN, report);
    let barrier_file = file.barrier.unwrap_or_default();
    let barrier = barrier(&barrier_file, report);
    let listen_mode = listen_mode(listen.as_ref(), file.listen_mode, report);
    let client_ca = file
        .tls
        .as_ref()
        .is_some_and(|tls| tls.client_ca_file.is_some());
    let tls = match file.tls {
        Some(block) => tls::listener(&block, report).map(Some),
        None => Some(None),
    };
    let upstream = upstream::settings(file.upstream.unwrap_or_default(), barrier.settle, report);
    let store = store::settings(file.store.unwrap_or_default(), report);
    let body = body::settings(
        "body",
        &file.body.unwrap_or_default(),
        body::defaults(),
        report,
    );
    let limits = limits::settings(&file.limits.unwrap_or_default(), report);
    let queue = barrier_file.queue.map(|_| barrier.queue);
    limits::queue(&limits, queue, report);
    let shutdown = shutdown(&file.shutdown.unwrap_or_default(), barrier.grace, report);
    let admin = admin::settings(file.admin.unwrap_or_default(), report);
    let log = log(file.log.unwrap_or_default(), report);
    let claim = claim::settings(file.claim, listen.as_ref(), client_ca, report);
    let stale_status = file.stale_status.unwrap_or(412);
    if !matches!(stale_status, 412 | 409) {
        report.error(
            "stale_status",
            format!("{stale_status} is not offered"),
            "412 or 409",
        );
    }
    let inherited = Inherited {
        safe_methods: file.safe_methods.unwrap_or(SafeMethods::Optional),
        upstream_timeout: upstream
            .as_ref()
            .map_or(Duration::from_secs(30), |u| u.timeout),
        unknown: upstream
            .as_ref()
            .map_or_else(UnknownStatuses::default, |u| u.unknown.clone()),
        barrier,
        body,
        key_bytes: limits.key_bytes,
        peers_are_named: client_ca,
    };
    let routes = file.routes.unwrap_or_default();
    let routes = routes::routes(routes, &inherited, claim.as_ref(), report);
    let unmatched = file.unmatched.unwrap_or(Unmatched::SafeOnly);
    unguarded(unmatched, routes.as_deref().unwrap_or_default(), report);
    if let (Some(routes), Some(upstream)) = (&routes, &upstream)
        && (matches!(upstream.url, UpstreamUrl::H2c(_)) || upstream.http2)
    {
        routes::no_upgrades(routes, report);
    }
    let bodies = routes.iter().flatten().map(|route| route.body);
    body::rooms(body, bodies, limits.body_memory, report);
    own_addresses(listen.as_ref(), admin.as_ref(), upstream.as_ref(), report);
    Some(Settings {
        listen: listen?,
        listen_mode,
        tls: tls?,
        upstream: upstream?,
        store: store?,
        barrier,
        body,
        limits,
        shutdown,
        admin: admin?,
        log: log?,
        unmatched,
        stale_status,
        disclose: file.disclose.unwrap_or(true),
        claim,
        routes: routes?,
        sources: report.sources(),
    })
}

/// The addresses against each other: the two ports never share one, and requests never come back.
fn own_addresses(
    listen: Option<&Listen>,
    admin: Option<&AdminSettings>,
    upstream: Option<&UpstreamSettings>,
    report: &mut Report,
) {
    if let (Some(listen), Some(admin_listen)) =
        (listen, admin.and_then(|admin| admin.listen.as_ref()))
        && addresses::collide(listen, admin_listen)
    {
        report.error(
            "admin.listen",
            "this is the address of the data port",
            "the two never share one: give it a port of its own, or `off`",
        );
    }
    if let (Some(listen), Some(upstream)) = (listen, upstream)
        && addresses::loops(&upstream.url, listen)
    {
        report.error(
            "upstream.url",
            "this is fencepost's own address",
            "give the address of the upstream",
        );
    }
}

/// Warns of paths without a route beside routes that let certain peers in only.
fn unguarded(unmatched: Unmatched, routes: &[RouteSettings], report: &mut Report) {
    let guarded = routes.iter().any(|route| !route.require_client.is_empty());
    if guarded && unmatched == Unmatched::SafeOnly {
        report.warn(
            "unmatched",
            "GET, HEAD and OPTIONS of every client pass on paths that no route matches, and the upstream may take \
             one (with a slash behind it, say) for a route's that has a require_client",
            "unmatched: refuse",
        );
    }
}

fn listen_mode(
    listen: Option<&Listen>,
    mode: Option<FileMode>,
    report: &mut Report,
) -> Option<u32> {
    if mode.is_some() && matches!(listen, Some(Listen::Tcp(_))) {
        report.error(
            "listen_mode",
            "a TCP port has no mode",
            "remove it, or listen on unix:/path/of.sock",
        );
    }
    mode.map(|mode| mode.0)
}

fn barrier(file: &BarrierFile, report: &mut Report) -> BarrierSettings {
    let wait = file.wait.map_or(seconds(10), |time| time.0);
    if wait.is_zero() {
        report.warn(
            "barrier.wait",
            "requests never wait: a new holder gets a 503 while an older request is in flight",
            "",
        );
    }
    BarrierSettings {
        wait,
        grace: time("barrier.grace", file.grace, seconds(10), report),
        settle: time("barrier.settle", file.settle, seconds(30), report),
        queue: count("barrier.queue", file.queue, 1024, report),
    }
}

fn shutdown(file: &ShutdownFile, grace: Duration, report: &mut Report) -> ShutdownSettings {
    let deadline = time("shutdown.deadline", file.deadline, seconds(25), report);
    if deadline < grace {
        report.warn(
            "shutdown.deadline",
            "shorter than `barrier.grace`: exchanges are cut that could have ended, and their \
             resources wait for `barrier.settle`",
            "at least barrier.grace",
        );
    }
    ShutdownSettings {
        delay: file.delay.map_or(Duration::ZERO, |time| time.0),
        deadline,
    }
}

fn log(file: LogFile, report: &mut Report) -> Option<LogSettings> {
    let level = file.level.unwrap_or_else(|| "info".to_owned());
    if level.trim().is_empty() || EnvFilter::builder().parse(&level).is_err() {
        report.error(
            "log.level",
            format!("{} is no level", shown(&level)),
            "error, warn, info, debug or trace; also by module: info,fencepost::store=debug",
        );
        return None;
    }
    Some(LogSettings {
        format: file.format.unwrap_or(LogFormat::Json),
        level,
    })
}
