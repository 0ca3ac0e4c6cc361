//! From the [file](super::file)'s fields to [`Settings`]: defaults, and every check but those of the
//! [routes](super::routes). A check that fails is reported, and the others go on.

use std::path::Path;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::addresses;
use super::body;
use super::checks::{count, seconds, taken, time};
use super::claim;
use super::file::{AdminFile, BarrierFile, File, LogFile, ShutdownFile, UpstreamFile};
use super::limits;
use super::parts;
use super::problems::{Report, shown};
use super::routes::{self, Inherited};
use super::settings::{
    AdminSettings, BarrierSettings, HostPolicy, Listen, LogFormat, LogSettings, MIN_ADMIN_TOKEN,
    RouteSettings, SafeMethods, Settings, ShutdownSettings, UnknownStatuses, Unmatched,
    UpstreamSettings, UpstreamUrl,
};
use super::store;
use super::tls;
use super::tls_settings::UpstreamTlsSettings;
use super::units::{FileMode, Time};

/// Where the data port is if nobody says.
const LISTEN: &str = "127.0.0.1:7080";
/// Where the admin port is if nobody says.
const ADMIN_LISTEN: &str = "127.0.0.1:7081";

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
    let upstream = upstream(file.upstream.unwrap_or_default(), barrier.settle, report);
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
    let admin = admin(file.admin.unwrap_or_default(), report);
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
    if let (Some(listen), Some(Some(admin_listen))) = (&listen, admin.as_ref().map(|a| &a.listen))
        && addresses::collide(listen, admin_listen)
    {
        report.error(
            "admin.listen",
            "this is the address of the data port",
            "the two never share one: give it a port of its own, or `off`",
        );
    }
    if let (Some(listen), Some(upstream)) = (&listen, &upstream)
        && addresses::loops(&upstream.url, listen)
    {
        report.error(
            "upstream.url",
            "this is fencepost's own address",
            "give the address of the upstream",
        );
    }
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

fn listen(at: &str, given: Option<&str>, default: &str, report: &mut Report) -> Option<Listen> {
    taken(at, addresses::listen(given.unwrap_or(default)), report)
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

fn upstream(file: UpstreamFile, settle: Duration, report: &mut Report) -> Option<UpstreamSettings> {
    if file.url.is_none() {
        report.error(
            "upstream.url",
            "no upstream is given",
            "such as http://127.0.0.1:3000, in the file or by --upstream",
        );
    }
    let url = file.url.as_deref();
    let url = url.and_then(|url| taken("upstream.url", addresses::upstream(url), report));
    let host = match file.host.as_deref() {
        Some(host) => taken("upstream.host", addresses::host(host), report),
        None => Some(HostPolicy::Preserve),
    };
    let timeout = time("upstream.timeout", file.timeout, seconds(30), report);
    if timeout > settle && !settle.is_zero() {
        routes::longer_than_settle("upstream.timeout".to_owned(), report);
    }
    let connect_timeout = time(
        "upstream.connect_timeout",
        file.connect_timeout,
        seconds(2),
        report,
    );
    let idle_timeout = time(
        "upstream.idle_timeout",
        file.idle_timeout,
        seconds(4),
        report,
    );
    let undelivered = undelivered(file.undelivered, report);
    let unknown = parts::unknown_statuses(
        "upstream",
        (file.unknown_statuses, file.unknown_grpc_statuses),
        &UnknownStatuses::default(),
        report,
    );
    let http2 = file.http2.unwrap_or(false);
    if http2
        && url
            .as_ref()
            .is_some_and(|url| !matches!(url, UpstreamUrl::Https(_)))
    {
        report.error(
            "upstream.http2",
            "without TLS there is no ALPN to agree on HTTP/2 by",
            "h2c:// in upstream.url speaks it without TLS; for https:// leave this in",
        );
    }
    let http2_connections = http2_connections(file.http2_connections, report);
    let tls = match file.tls {
        Some(block) => tls::upstream(block, url.as_ref(), report),
        None => Some(UpstreamTlsSettings::default()),
    };
    Some(UpstreamSettings {
        url: url?,
        host: host?,
        connect_timeout,
        timeout,
        idle_timeout,
        undelivered,
        unknown,
        http2,
        http2_connections,
        tls: tls?,
    })
}

/// A kernel that gives up sooner than a retransmission breaks healthy connections. After a death,
/// the others wait for this long.
fn undelivered(given: Option<Time>, report: &mut Report) -> Duration {
    let at = "upstream.undelivered";
    let undelivered = time(at, given, seconds(10), report);
    let bounds = Duration::from_millis(100)..=Duration::from_mins(10);
    if !undelivered.is_zero() && !bounds.contains(&undelivered) {
        report.error(
            at,
            "out of range",
            "100ms to 10m; several seconds leave room for lost packets and a busy upstream",
        );
    }
    undelivered
}

/// Each is a descriptor, and those of one upstream share its address and port.
const MAX_HTTP2_CONNECTIONS: usize = 10_000;

fn http2_connections(given: Option<u64>, report: &mut Report) -> usize {
    let at = "upstream.http2_connections";
    let connections = count(at, given, 64, report);
    if connections > MAX_HTTP2_CONNECTIONS {
        report.error(
            at,
            "more connections than one address has ports to spare for",
            "1 to 10000; 64 carry 6,400 requests at once where the upstream allows 100 streams each",
        );
    }
    connections
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

fn admin(file: AdminFile, report: &mut Report) -> Option<AdminSettings> {
    let listen = match file.listen.as_deref() {
        Some("off") => Some(None),
        given => listen("admin.listen", given, ADMIN_LISTEN, report).map(Some),
    };
    for (at, path) in [
        ("admin.token_file", &file.token_file),
        ("admin.read_token_file", &file.read_token_file),
    ] {
        if let Some(path) = path {
            admin_token(at, path, report);
        }
    }
    let tls = match &file.tls {
        Some(block) => tls::admin(block, report).map(Some),
        None => Some(None),
    };
    let is_remote = |listen: &Option<Listen>| {
        let listen = listen.as_ref();
        listen.is_some_and(|listen| !addresses::is_local(listen))
    };
    if file.tls.is_some() && matches!(listen, Some(Some(Listen::Unix(_)))) {
        report.error(
            "admin.tls",
            "the admin port is a Unix socket: no network needs protection",
            "remove this block, or listen on host:port",
        );
    }
    let has_token = file.token_file.is_some() || file.read_token_file.is_some();
    if has_token && file.tls.is_none() && listen.as_ref().is_some_and(is_remote) {
        report.warn(
            "admin.listen",
            "tokens sent to this address over a network can be read on their way",
            "give admin.tls, send tokens over the loopback only, or listen on 127.0.0.1",
        );
    }
    Some(AdminSettings {
        listen: listen?,
        token_file: file.token_file,
        read_token_file: file.read_token_file,
        tls: tls?,
        ready_follows_store: file.ready_follows_store.unwrap_or(false),
    })
}

/// Warns of a token that will let nobody in. A file that is not there yet may come: it is read at each use.
fn admin_token(at: &str, path: &Path, report: &mut Report) {
    if path.as_os_str().is_empty() {
        report.error(at, "the path is empty", "");
    } else if std::fs::read(path).is_ok_and(|token| token.trim_ascii().len() < MIN_ADMIN_TOKEN) {
        report.warn(
            at,
            format!("the token has less than {MIN_ADMIN_TOKEN} characters: it lets nobody in"),
            "openssl rand -hex 32 makes a good one; it is read without a restart",
        );
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
