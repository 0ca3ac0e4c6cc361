//! `fencepost probe`: the fence drill. It proves from outside that a stale write is refused, and
//! that nobody reaches the upstream without the proxy.

mod asking;
mod drill;
mod expected;
mod report;
mod token_text;

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri, header};
use reqwest::Url;

use super::admin::roots;
use super::arguments::{field, path_and_query};
use crate::config::{Listen, Loader, Overrides, Settings, UpstreamUrl};
use crate::printable;
use crate::proxy::explain::{self, PathVerdict};
use crate::proxy::headers::TOKEN;
use crate::routing::Token;
use asking::Asking;
use drill::Drill;
use expected::{Expected, expected};
use token_text::WrittenAs;

/// The most that a request of the drill may take.
const LONGEST: u64 = 600;

#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// URL of the service that the proxy fences, as clients use it: http://orders:7080. [default:
    /// `listen` of the configuration file, on the loopback]
    #[arg(long, value_name = "URL", value_parser = base)]
    url: Option<Url>,
    /// The path to write to. Its key should be used by the drill alone: /orders/__canary__.
    #[arg(long, value_name = "PATH", value_parser = path_and_query)]
    path: Uri,
    /// The method of the writes.
    #[arg(long, default_value = "PUT")]
    method: Method,
    /// A header field of the writes. Can be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The body of the writes.
    #[arg(short = 'd', long, value_name = "TEXT", default_value = "")]
    data: String,
    /// What the upstream answers to the current token: a status, or 2xx for all of a class.
    #[arg(long, value_name = "STATUS", default_value = "2xx", value_parser = expected)]
    expect: Expected,
    /// URL by which the upstream must not be reached without the proxy: http://orders-app:8080.
    /// Every address of the name is tried. Can be repeated. [default: `upstream.url` of the
    /// configuration file, unless it is on the loopback]
    #[arg(long, value_name = "URL", value_parser = base, conflicts_with = "no_direct")]
    direct: Vec<Url>,
    /// Do not try to go around the proxy. The drill then shows only that the proxy refuses.
    #[arg(long)]
    no_direct: bool,
    /// The current token; the stale one is one less. [default: one above the mark; with `disclose:
    /// false`, the milliseconds since 1970]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    token: Option<i64>,
    /// How the route reads tokens. [default: `token.format` of the route, else decimal]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<WrittenAs>,
    /// PEM file with the CAs for https:// URLs. [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// How long each request may take, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=LONGEST)
    )]
    timeout: u64,
    /// The configuration file of the proxy. The drill then first makes sure that the path is on a
    /// route that enforces.
    #[arg(long, value_name = "FILE", env = "FENCEPOST_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The URL of a server, without a path.
fn base(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err("begin it with http:// or https://, then the host and its port".into());
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err("write no path behind the port; the path is --path".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "a name and password in the URL are not sent; use -H 'Authorization: …'".into(),
        );
    }
    Ok(url)
}

/// Drills, prints, and tells the result; true if the fence held.
pub(super) async fn run(args: &ProbeArgs, overrides: Overrides) -> anyhow::Result<bool> {
    let settings = match &args.config {
        None => None,
        Some(file) => {
            let loader = Loader {
                file: Some(file.clone()),
                overrides,
            };
            let Some((settings, _)) = super::loaded(&loader) else {
                return Ok(false);
            };
            Some(Arc::new(settings))
        }
    };
    let drill = plan(args, settings.as_ref())?;
    let report = drill.run().await;
    let text = if args.json {
        serde_json::to_string_pretty(&report).context("it can be written as JSON")? + "\n"
    } else {
        printable::lines(&report.text()) + "\n"
    };
    write!(std::io::stdout(), "{text}")?;
    Ok(report.passed)
}

/// What will be asked of whom.
fn plan(args: &ProbeArgs, settings: Option<&Arc<Settings>>) -> anyhow::Result<Drill> {
    let url = match (&args.url, settings) {
        (Some(url), _) => url.clone(),
        (None, Some(settings)) => on_loopback(settings)?,
        (None, None) => bail!("say where the proxy listens, with --url or --config"),
    };
    let direct = direct(args, settings.map(|settings| &**settings))?;
    let configured = settings
        .map(|settings| fenced(args, settings))
        .transpose()?;
    let written_as = args.format.or(configured).unwrap_or_default();
    let ca = args.ca.as_deref();
    let ca = ca.map(|file| roots("--ca", file)).transpose()?;
    let asking = Asking {
        timeout: Duration::from_secs(args.timeout),
        roots: ca,
    };
    Ok(Drill {
        url,
        target: args.path.clone(),
        method: args.method.clone(),
        headers: args.headers.clone(),
        body: args.data.clone(),
        expect: args.expect.clone(),
        direct,
        token: args.token,
        written_as,
        stale_status: settings.map(|settings| settings.stale_status),
        asking,
    })
}

/// Where a proxy on this machine listens.
fn on_loopback(settings: &Settings) -> anyhow::Result<Url> {
    let scheme = if settings.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let Listen::Tcp(address) = &settings.listen else {
        bail!("the proxy listens on a Unix socket, which the drill does not use: give --url");
    };
    let address = match address.rsplit_once(':') {
        Some(("0.0.0.0", port)) => format!("127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("[::1]:{port}"),
        _ => address.clone(),
    };
    Url::parse(&format!("{scheme}://{address}")).context("`listen` is not part of a URL")
}

/// The ways around the proxy to try.
fn direct(args: &ProbeArgs, settings: Option<&Settings>) -> anyhow::Result<Vec<Url>> {
    if args.no_direct || !args.direct.is_empty() {
        return Ok(args.direct.clone());
    }
    let url = match settings.map(|settings| &settings.upstream.url) {
        Some(UpstreamUrl::Http(host) | UpstreamUrl::H2c(host)) => Some(format!("http://{host}")),
        Some(UpstreamUrl::Https(host)) => Some(format!("https://{host}")),
        Some(UpstreamUrl::Unix(_)) | None => None,
    };
    let url = url
        .map(|url| Url::parse(&url).context("`upstream.url` is not a URL"))
        .transpose()?;
    match url.filter(|url| !is_loopback(url)) {
        Some(url) => Ok(vec![url]),
        None => bail!(
            "say by which URL the upstream must not be reached without the proxy, with --direct; \
             or leave that out with --no-direct"
        ),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let ip: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    ip.map_or(host == "localhost", |ip| ip.is_loopback())
}

/// Makes sure that the write is fenced. Returns how its route reads tokens.
fn fenced(args: &ProbeArgs, settings: &Arc<Settings>) -> anyhow::Result<WrittenAs> {
    let mut request = Request::new(());
    *request.method_mut() = args.method.clone();
    *request.uri_mut() = args.path.clone();
    let headers = request.headers_mut();
    headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    headers.extend(args.headers.iter().cloned());
    let (mut head, ()) = request.into_parts();
    let explained = |head: &Parts| {
        explain::explain(
            Arc::clone(settings),
            head.clone(),
            Some(args.data.as_bytes()),
        )
        .map_err(|conflicts| anyhow::anyhow!("routes conflict: {}", conflicts[0]))
    };
    // Which route it is does not depend on the token.
    let route = explained(&head)?.verdict.route;
    let route = settings
        .routes
        .iter()
        .find(|one| Some(&one.path) == route.as_ref());
    let written_as = route.map_or(WrittenAs::default(), |route| route.token_format.into());
    let some = Token::new(1).context("1 is a token")?;
    head.headers.insert(TOKEN, written_as.write(some)?);
    let verdict = explained(&head)?.verdict;
    if verdict.kind != PathVerdict::Fenced {
        bail!(
            "{} {} is not fenced by this configuration: {}",
            args.method,
            args.path,
            verdict.reason
        );
    }
    Ok(written_as)
}
