//! [`Drill`]: the requests of a fence drill, and what their answers prove.

use std::error::Error;
use std::net::SocketAddr;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Method, Uri};
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;

use super::asking::Asking;
use super::expected::Expected;
use super::report::{DrillCheck, DrillReport, DrillStep};
use super::token_text::WrittenAs;
use crate::proxy::headers::TOKEN;
use crate::routing::Token;

/// What answers carry that fencepost gives itself.
const OUTCOME: &str = "x-fencing-outcome";

/// The most of a problem that is read.
const PROBLEM_BYTES: usize = 64 << 10;

/// What is asked, of whom, and what should come back.
pub(super) struct Drill {
    pub(super) url: Url,
    pub(super) target: Uri,
    pub(super) method: Method,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: String,
    pub(super) expect: Expected,
    pub(super) direct: Vec<Url>,
    /// `None`: one above the mark.
    pub(super) token: Option<i64>,
    pub(super) written_as: WrittenAs,
    /// `None`: 412, or 409 where the proxy is set to it.
    pub(super) stale_status: Option<u16>,
    pub(super) asking: Asking,
}

/// An answer to a write.
struct Answer {
    status: StatusCode,
    /// The word of a refusal.
    outcome: Option<String>,
    /// The mark, where a refusal names it.
    mark: Option<i64>,
}

impl Answer {
    fn text(&self) -> String {
        match &self.outcome {
            Some(outcome) => format!("{} {outcome}", self.status.as_u16()),
            None => self.status.as_u16().to_string(),
        }
    }

    fn is_stale(&self) -> bool {
        self.outcome.as_deref() == Some("stale-token")
    }
}

impl Drill {
    pub(super) async fn run(&self) -> DrillReport {
        let mut steps = Vec::new();
        match self.asking.client() {
            Ok(client) => self.through_the_proxy(&client, &mut steps).await,
            Err(error) => {
                steps.push(DrillStep::new(
                    DrillCheck::CurrentToken,
                    "an HTTP client",
                    Err(causes(&error)),
                ));
            }
        }
        for url in &self.direct {
            self.around_the_proxy(url, &mut steps).await;
        }
        DrillReport {
            passed: steps.iter().all(|step| step.passed),
            url: self.url.to_string(),
            method: self.method.to_string(),
            path: self.target.to_string(),
            steps,
        }
    }

    /// The current token passes, the stale one is refused.
    async fn through_the_proxy(&self, client: &reqwest::Client, steps: &mut Vec<DrillStep>) {
        let expected = format!("{} from the upstream", self.expect);
        let (current, got) = self.current(client).await;
        let passed = got.is_ok();
        let check = DrillCheck::CurrentToken;
        steps.push(DrillStep::new(check, &expected, got));
        let check = DrillCheck::StaleToken;
        let expected = match self.stale_status {
            Some(status) => format!("{status} stale-token"),
            None => "412 (or 409) stale-token".to_owned(),
        };
        let got = match Token::new(current - 1) {
            Some(stale) if passed => match self.write(client, &self.url, stale).await {
                Ok(answer) => {
                    let status = answer.status.as_u16();
                    let right = match self.stale_status {
                        Some(wanted) => status == wanted,
                        None => matches!(status, 409 | 412),
                    };
                    let said = format!("token {stale}: {}", answer.text());
                    if answer.is_stale() && right {
                        Ok(said)
                    } else if answer.outcome.is_none() {
                        Err(format!("{said}: THE UPSTREAM TOOK A STALE WRITE"))
                    } else {
                        Err(said)
                    }
                }
                Err(error) => Err(error),
            },
            _ => Err("not tried, since the current token did not pass".to_owned()),
        };
        steps.push(DrillStep::new(check, &expected, got));
    }

    /// Writes with the current token. Returns it, and what came back.
    ///
    /// The first try without `--token` is 0: its refusal names the mark. A number from the clock
    /// would leap past a route's `token.max_jump`, which is counted and raises an alert.
    async fn current(&self, client: &reqwest::Client) -> (i64, Result<String, String>) {
        let mut number = self.token.unwrap_or(0);
        let mut above = String::new();
        for attempt in 0..2 {
            let Some(token) = Token::new(number) else {
                break;
            };
            let answer = match self.write(client, &self.url, token).await {
                Ok(answer) => answer,
                Err(error) => return (number, Err(error)),
            };
            let said = format!("token {token}: {}{above}", answer.text());
            let passed = answer.outcome.is_none() && self.expect.has(answer.status);
            number = match answer.mark {
                Some(mark) if attempt == 0 => {
                    above = format!(", above the mark {mark}");
                    mark.saturating_add(1)
                }
                None if number == 0 && passed => 1,
                // With `disclose: false` refusals do not name the mark.
                None if number == 0 && answer.is_stale() => by_the_clock(),
                _ => return (number, if passed { Ok(said) } else { Err(said) }),
            };
        }
        (number, Err(format!("no token is above {number}")))
    }

    /// Tries each address of the URL's host.
    async fn around_the_proxy(&self, url: &Url, steps: &mut Vec<DrillStep>) {
        let expected = "no answer";
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(80);
        let bare = host.trim_matches(['[', ']']);
        let addresses: Vec<SocketAddr> = match tokio::net::lookup_host((bare, port)).await {
            Ok(addresses) => addresses.collect(),
            Err(error) => {
                let why = format!("{url}: the name has no address, so nothing was tried: {error}");
                steps.push(DrillStep::new(DrillCheck::Direct, expected, Err(why)));
                return;
            }
        };
        for address in addresses {
            let got = self.direct(url, host, address).await;
            let name = |why: String| format!("{url} at {address}: {why}");
            let got = got.map(name).map_err(name);
            steps.push(DrillStep::new(DrillCheck::Direct, expected, got));
        }
    }

    /// A zombie's write to the upstream itself; good if nothing answers.
    async fn direct(&self, url: &Url, host: &str, address: SocketAddr) -> Result<String, String> {
        // A certificate that only this client does not trust would protect nothing.
        let client = self
            .asking
            .plain()
            .tls_danger_accept_invalid_certs(true)
            .resolve(host, address)
            .build()
            .map_err(|error| causes(&error))?;
        let stale = Token::new(1).ok_or("no token")?;
        match self.send(&client, url, stale).await {
            Ok(response) if response.headers().contains_key(OUTCOME) => Err(format!(
                "{}: fencepost answers there; --direct names the upstream itself",
                response.status().as_u16()
            )),
            Ok(response) => Err(format!(
                "{}: THE UPSTREAM ANSWERS WITHOUT THE PROXY",
                response.status().as_u16()
            )),
            Err(error) if is_an_answer(&error) => {
                Err(format!("something answers: {}", causes(&error)))
            }
            Err(error) if error.is_timeout() => {
                Ok(format!("no answer in {} s", self.asking.timeout.as_secs()))
            }
            Err(error) => Ok(causes(&error)),
        }
    }

    async fn write(
        &self,
        client: &reqwest::Client,
        url: &Url,
        token: Token,
    ) -> Result<Answer, String> {
        let failed = |error: reqwest::Error| {
            if error.is_timeout() {
                format!("no answer in {} s", self.asking.timeout.as_secs())
            } else {
                causes(&error)
            }
        };
        let mut response = self.send(client, url, token).await.map_err(failed)?;
        let status = response.status();
        let outcome = response.headers().get(OUTCOME);
        let outcome = outcome.map(|word| String::from_utf8_lossy(word.as_bytes()).into_owned());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() < PROBLEM_BYTES {
                body.extend_from_slice(&chunk);
            }
        }
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mark = problem["mark"].as_str().and_then(|mark| mark.parse().ok());
        Ok(Answer {
            status,
            mark: mark.filter(|_| outcome.is_some()),
            outcome,
        })
    }

    async fn send(
        &self,
        client: &reqwest::Client,
        url: &Url,
        token: Token,
    ) -> reqwest::Result<Response> {
        let mut headers: HeaderMap = self.headers.iter().cloned().collect();
        if let Ok(token) = self.written_as.write(token) {
            headers.insert(TOKEN, token);
        }
        let target = self.target.to_string();
        let url = format!("{}{target}", url.as_str().trim_end_matches('/'));
        client
            .request(self.method.clone(), url)
            .headers(headers)
            .body(self.body.clone())
            .send()
            .await
    }
}

/// The milliseconds since 1970: they grow from drill to drill, whoever runs it.
fn by_the_clock() -> i64 {
    i64::try_from(super::report::since_1970().as_millis()).unwrap_or(i64::MAX)
}

/// True if bytes came that are no HTTP/1.1: an HTTP/2 server, for one.
fn is_an_answer(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(hyper) = inner.downcast_ref::<hyper::Error>() {
            return hyper.is_parse();
        }
        cause = inner.source();
    }
    false
}

/// The error with its causes, without the URL.
fn causes(error: &reqwest::Error) -> String {
    let mut cause: Option<&dyn Error> = error.source();
    let mut last = None;
    while let Some(inner) = cause {
        last = Some(inner.to_string());
        cause = inner.source();
    }
    last.unwrap_or_else(|| error.to_string())
}
