//! `fencepost demo --serve`: a server by which a client's handling of every answer can be tested, in
//! any language. A client is pointed at `/{scenario}/{run}` and does its usual work below it.
//! [`scenarios`] says what is answered, [`exchange`] answers, and [`judge`] says whether the client
//! did right.

mod exchange;
mod judge;
mod runs;
mod scenarios;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::exchange::{ConnectionEnd, exchange};
use self::runs::ConformanceRuns;
use self::scenarios::Scenario;
use crate::proxy::{ClientBody, full};

/// The most connections at a time; others wait.
const MOST_CONNECTIONS: usize = 512;
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of a head.
const MOST_HEAD: usize = 16 << 10;
/// The most letters of a run's name.
const MOST_NAME: usize = 64;

/// The bound server.
pub(super) struct ConformanceServer {
    listener: TcpListener,
    addr: SocketAddr,
    desk: Arc<Desk>,
}

/// The state that all connections share.
struct Desk {
    scenarios: Vec<Scenario>,
    runs: ConformanceRuns,
}

impl ConformanceServer {
    /// # Errors
    /// The address cannot be bound.
    pub(super) async fn bind(listen: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}"))?;
        let addr = listener.local_addr();
        Ok(Self {
            addr: addr.context("a bound port has no address")?,
            listener,
            desk: Arc::new(Desk {
                scenarios: scenarios::all(),
                runs: ConformanceRuns::new(),
            }),
        })
    }

    /// The URL, how to use it, and the scenarios.
    pub(super) fn overview(&self) -> String {
        self.desk.overview(&format!("http://{}", self.addr))
    }

    /// Serves for good. Dropping the future ends every connection.
    pub(super) async fn serve(&self) {
        let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            // It is never closed.
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let desk = Arc::clone(&self.desk);
                    connections.spawn(async move {
                        serve_connection(stream, &desk).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn serve_connection(stream: TcpStream, desk: &Desk) {
    let service = service_fn(|request| desk.answer(request));
    // An error is the end that a scenario plans, or a client that has left.
    let _ = http1::Builder::new()
        .max_buf_size(MOST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Desk {
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ClientBody>, ConnectionEnd> {
        let path = request.uri().path().to_owned();
        let path = path.strip_prefix('/').unwrap_or(&path);
        let mut parts = path.splitn(3, '/');
        let [first, second, third] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let get = request.method() == Method::GET;
        match (first, second, third) {
            ("", ..) if get => Ok(self.list(&request)),
            ("verdict", scenario, run) if get && is_name(run) => Ok(self.verdict(scenario, run)),
            (scenario, run, rest) if is_name(run) => match self.scenario(scenario) {
                Some(scenario) => {
                    let mut target = format!("/{rest}");
                    if let Some(query) = request.uri().query() {
                        let _ = write!(target, "?{query}");
                    }
                    exchange(scenario, run, &target, request, &self.runs).await
                }
                None => Ok(missing()),
            },
            _ => Ok(missing()),
        }
    }

    fn scenario(&self, name: &str) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.name == name)
    }

    fn verdict(&self, scenario: &str, run: &str) -> Response<ClientBody> {
        let Some(scenario) = self.scenario(scenario) else {
            return missing();
        };
        // Plain data can always be written.
        let verdict = serde_json::to_string(&self.runs.verdict(scenario, run)).unwrap_or_default();
        reply(StatusCode::OK, "application/json", format!("{verdict}\n"))
    }

    fn list(&self, request: &Request<Incoming>) -> Response<ClientBody> {
        let accept = request.headers().get(ACCEPT);
        let wants_json = accept
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.contains("application/json"));
        if wants_json {
            let rows = self.scenarios.iter().map(|scenario| {
                json!({
                    "name": scenario.name,
                    "answers": scenario.answers(),
                    "expected": scenario.expected(),
                })
            });
            let rows = rows.collect::<Vec<_>>();
            return reply(
                StatusCode::OK,
                "application/json",
                format!("{}\n", json!(rows)),
            );
        }
        let host = request.headers().get(http::header::HOST);
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or("HOST");
        let text = self.overview(&format!("http://{host}"));
        reply(StatusCode::OK, "text/plain; charset=utf-8", text)
    }

    fn overview(&self, url: &str) -> String {
        let mut text = format!(
            "fencepost's conformance server: {url}\n\n  \
             your client's base URL  {url}/SCENARIO/RUN  (RUN: any new word)\n  \
             then ask                {url}/verdict/SCENARIO/RUN\n\n\
             Unless a scenario says otherwise, claims and reads pass. A correct client sends one token.\n"
        );
        for scenario in &self.scenarios {
            let (name, answers, expected) =
                (scenario.name, scenario.answers(), scenario.expected());
            let _ = write!(
                text,
                "\n{name}\n  {answers}\n  a correct client {expected}\n"
            );
        }
        text
    }
}

/// Whether this can name a run.
fn is_name(run: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
    !run.is_empty() && run.len() <= MOST_NAME && run.chars().all(plain)
}

fn missing() -> Response<ClientBody> {
    let text = format!(
        "There is nothing here. The base URL of a client is /SCENARIO/RUN, where RUN has up to \
         {MOST_NAME} letters, digits and -_.~ and GET / lists the scenarios.\n"
    );
    reply(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text)
}

fn reply(status: StatusCode, kind: &'static str, text: String) -> Response<ClientBody> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
