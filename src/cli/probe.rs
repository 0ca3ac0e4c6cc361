//! `fencepost probe`: the fence drill. It shows from outside that a current token passes, that a
//! stale one is refused, and that nobody reaches the upstream without the proxy.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use reqwest::{Client, ClientBuilder, Response, Url};
use serde_json::Value;

use super::admin::{http_client, roots};
use super::usage::{field, path_and_query};
use crate::json_values::wall_clock;
use crate::printable;
use crate::proxy::headers::{OPERATION, OUTCOME, TOKEN};

#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// URL of the service that the proxy fences, as clients use it: http://orders:7080.
    #[arg(long, value_name = "URL", value_parser = base)]
    url: Url,
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
    /// Status of the upstream's answer to the current token. [default: any from 200 to 299]
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..=599))]
    expect: Option<u16>,
    /// URL by which the upstream must not be reached without the proxy: http://orders-app:8080.
    /// Every address of the name is tried. Can be repeated.
    #[arg(
        long,
        value_name = "URL",
        value_parser = base,
        required_unless_present = "no_direct",
        conflicts_with = "no_direct"
    )]
    direct: Vec<Url>,
    /// Do not try to go around the proxy. The drill then shows only that the proxy refuses.
    #[arg(long)]
    no_direct: bool,
    /// The current token; the stale one is one less. Needed where `disclose: false` hides the mark.
    /// [default: one above the mark]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    token: Option<i64>,
    /// PEM file with the CAs for https:// URLs. [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Time limit of each request, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    timeout: u64,
}

/// The URL of a server, without a path.
fn base(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
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

/// The lines of a drill's checks, and whether all have passed.
struct Report {
    passed: bool,
    text: String,
}

impl Report {
    fn add(&mut self, check: &str, expected: &str, got: Result<String, String>) {
        self.passed &= got.is_ok();
        let line = match got {
            Ok(got) => format!("  ok      {check:<13}  {got}\n"),
            Err(got) => format!("  FAILED  {check:<13}  {got} (expected: {expected})\n"),
        };
        self.text += &line;
    }
}

/// Drills. Returns true if the fence held, and the text to print.
pub(super) async fn run(args: &ProbeArgs) -> anyhow::Result<(bool, String)> {
    let client = args.client()?.build();
    let client = client.context("cannot set up the HTTP client")?;
    let mut report = Report {
        passed: true,
        text: format!("{} {} at {}\n", args.method, args.path, args.url),
    };
    args.through_the_proxy(&client, &mut report).await;
    for url in &args.direct {
        args.around_the_proxy(url, &mut report).await?;
    }
    report.text += if report.passed {
        "The fence held."
    } else {
        "The fence did not hold, or could not be tried."
    };
    if args.no_direct {
        report.text += " No way around it was tried.";
    }
    report.text.push('\n');
    Ok((report.passed, printable::lines(&report.text)))
}

/// An answer to a write.
struct Answer {
    /// The token, the status and the outcome of a refusal.
    words: String,
    status: u16,
    /// The reason, if it is the proxy's own answer and not the upstream's.
    outcome: Option<String>,
    /// The mark, where a refusal names it.
    mark: Option<i64>,
}

impl Answer {
    fn is_stale(&self) -> bool {
        self.outcome.as_deref() == Some("stale-token")
    }
}

impl ProbeArgs {
    /// Keeps no connection: each request shows what one new client sees.
    fn client(&self) -> anyhow::Result<ClientBuilder> {
        let client = http_client(Duration::from_secs(self.timeout)).pool_max_idle_per_host(0);
        Ok(match &self.ca {
            Some(file) => client.tls_certs_only(roots("--ca", file)?),
            None => client,
        })
    }

    /// A current token passes, and a stale one is refused.
    async fn through_the_proxy(&self, client: &Client, report: &mut Report) {
        let current = self.current(client).await;
        let stale = match &current {
            Ok((token, _)) => self.stale(client, token - 1).await,
            Err(_) => Err("not tried, since the current token did not pass".to_owned()),
        };
        let status = self.expect.map(|status| status.to_string());
        let expected = format!("{} from the upstream", status.as_deref().unwrap_or("2xx"));
        report.add("current-token", &expected, current.map(|(_, got)| got));
        report.add("stale-token", "412 (or 409) stale-token", stale);
    }

    /// Writes with the current token. Returns it, and the answer in words.
    ///
    /// The first try without `--token` is 0: its refusal names the mark.
    async fn current(&self, client: &Client) -> Result<(i64, String), String> {
        let first = self.token.unwrap_or(0);
        let answer = self.write(client, first).await?;
        let passed = self.passed(&answer);
        let (token, above) = match answer.mark {
            Some(mark) => (mark.saturating_add(1), format!(", above the mark {mark}")),
            None if first == 0 && passed => (1, String::new()),
            None if passed => return Ok((first, answer.words)),
            None if answer.is_stale() => return Err(answer.words + ", and no mark: use --token"),
            None => return Err(answer.words),
        };
        let answer = self.write(client, token).await?;
        let passed = self.passed(&answer);
        let words = answer.words + &above;
        if passed {
            Ok((token, words))
        } else {
            Err(words)
        }
    }

    /// True if it is the upstream's answer, with the expected status.
    fn passed(&self, answer: &Answer) -> bool {
        let is_success = (200..300).contains(&answer.status);
        let expected = self.expect.map(|status| answer.status == status);
        answer.outcome.is_none() && expected.unwrap_or(is_success)
    }

    /// A zombie's write through the proxy; good if it is refused as stale.
    async fn stale(&self, client: &Client, token: i64) -> Result<String, String> {
        let answer = self.write(client, token).await?;
        if answer.is_stale() && matches!(answer.status, 409 | 412) {
            Ok(answer.words)
        } else if answer.outcome.is_none() {
            Err(answer.words + ": THE UPSTREAM TOOK A STALE WRITE")
        } else {
            Err(answer.words)
        }
    }

    async fn write(&self, client: &Client, token: i64) -> Result<Answer, String> {
        let failed = |error| self.failure(error);
        let response = self.send(client, &self.url, token).await.map_err(failed)?;
        let status = response.status().as_u16();
        let outcome = response.headers().get(OUTCOME);
        let outcome = outcome.map(|word| String::from_utf8_lossy(word.as_bytes()).into_owned());
        let body = response.bytes().await.map_err(failed)?;
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mark = problem["mark"].as_str().and_then(|mark| mark.parse().ok());
        let why = problem["detail"].as_str().unwrap_or_default();
        let word = outcome.as_ref().map(|word| match &**word {
            "stale-token" => " stale-token".to_owned(),
            word if why.is_empty() => format!(" {word}"),
            word => format!(" {word}: {why}"),
        });
        Ok(Answer {
            words: format!("token {token}: {status}{}", word.unwrap_or_default()),
            status,
            mark: mark.filter(|_| outcome.is_some()),
            outcome,
        })
    }

    /// Tries each address of the URL's host: a headless Service has one for each pod.
    async fn around_the_proxy(&self, url: &Url, report: &mut Report) -> anyhow::Result<()> {
        let mut add = |got| report.add("direct", "no answer", got);
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(80);
        let bare = host.trim_matches(['[', ']']);
        let addresses = match tokio::net::lookup_host((bare, port)).await {
            Ok(addresses) => addresses,
            Err(error) => {
                let why = "the name has no address, so nothing was tried";
                add(Err(format!("{url}: {why}: {error}")));
                return Ok(());
            }
        };
        for address in addresses {
            // A certificate that only this client does not trust would protect nothing.
            let client = self.client()?.tls_danger_accept_invalid_certs(true);
            let got = self.direct(url, client.resolve(host, address)).await;
            let name = |why| format!("{url} at {address}: {why}");
            add(got.map(name).map_err(name));
        }
        Ok(())
    }

    /// A zombie's write to the upstream itself; good if nothing answers.
    async fn direct(&self, url: &Url, client: ClientBuilder) -> Result<String, String> {
        let client = client.build().map_err(|error| self.failure(error))?;
        match self.send(&client, url, 1).await {
            Ok(response) => {
                let says = if response.headers().contains_key(OUTCOME) {
                    "fencepost answers there; --direct names the upstream itself"
                } else {
                    "THE UPSTREAM ANSWERS WITHOUT THE PROXY"
                };
                Err(format!("{}: {says}", response.status().as_u16()))
            }
            Err(error) => {
                let is_answer = is_answer(&error);
                let why = self.failure(error);
                if is_answer {
                    Err(format!("something answers: {why}"))
                } else {
                    Ok(why)
                }
            }
        }
    }

    async fn send(&self, client: &Client, url: &Url, token: i64) -> reqwest::Result<Response> {
        let mut headers: HeaderMap = self.headers.iter().cloned().collect();
        headers.insert(TOKEN, token.into());
        // Where outcomes are remembered, a repetition of an operation goes nowhere.
        let now = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
        let operation = u64::try_from(now.as_micros()).unwrap_or_default();
        headers.entry(OPERATION).or_insert_with(|| operation.into());
        let url = format!("{}{}", url.as_str().trim_end_matches('/'), self.path);
        client
            .request(self.method.clone(), url)
            .headers(headers)
            .body(self.data.clone())
            .send()
            .await
    }

    /// The first cause, without the URL.
    fn failure(&self, error: reqwest::Error) -> String {
        if error.is_timeout() {
            return format!("no answer in {} s", self.timeout);
        }
        anyhow::Error::new(error).root_cause().to_string()
    }
}

/// True if bytes came that are no HTTP/1.1: an HTTP/2 server, for one.
fn is_answer(error: &reqwest::Error) -> bool {
    let first: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    std::iter::successors(first, |cause| cause.source()).any(|cause| {
        let hyper = cause.downcast_ref::<hyper::Error>();
        hyper.is_some_and(hyper::Error::is_parse)
    })
}
