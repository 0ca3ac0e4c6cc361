//! Requests and responses pass byte for byte, except as the documentation says ([`compare`]): over
//! a matrix of exchanges ([`matrix`]), alone and with real nginx and `HAProxy` in front and behind.
//! These change things themselves. So each exchange is compared with the same one without the
//! proxy, and only the proxy's changes count.

mod cases;
mod compare;
mod matrix;
mod servers;
mod streams;

use std::fmt::Write as _;
use std::iter;
use std::net::SocketAddr;

use self::cases::EchoCase;
use self::servers::{RealServer, ServerKind};
use crate::support::client::Exchange;
use crate::support::upstream::Arrival;
use crate::support::wait::soon;
use crate::support::{Answer, Config, Proxy, Step, Store, Upstream, or_return};

/// The proxy in front of an address.
async fn fenced(to: SocketAddr) -> Proxy {
    let config = Config::to(&format!("http://{to}"), &Store::sqlite()).with(
        "routes: [{ path: '/e/{*rest}', resource: 'e:{rest}', methods: [POST, PUT, PATCH, DELETE, \
             PURGE, M-SEARCH, LABEL, X_OWN, GETS, XPUT, 'X!#$%&''*+.^`|~0'] }]",
    );
    Proxy::start(&config).await
}

/// An upstream that answers with the bytes of the case.
async fn scripted() -> (Upstream, Vec<EchoCase>) {
    let cases = matrix::all();
    let known = cases.clone();
    let upstream = Upstream::start().await;
    upstream.otherwise(move |head| {
        let Some(case) = EchoCase::of(&known, head.word(1)) else {
            return vec![Step::Close];
        };
        let end = case.closes.then_some(Step::Close);
        iter::once(Step::Send(case.answer.clone()))
            .chain(end)
            .collect()
    });
    (upstream, cases)
}

/// Plays one case against `front`; what arrived, and what was answered.
async fn play(
    case: &EchoCase,
    front: SocketAddr,
    upstream: &Upstream,
) -> Result<(Arrival, Answer), String> {
    let exchanged = async {
        let mut exchange = Exchange::open(front, &case.method).await?;
        exchange.wire.send(&case.head_bytes()).await?;
        let mut interim = Vec::new();
        if case.expects() {
            interim.push(exchange.any_head().await);
        }
        exchange.wire.send(&case.body_bytes()).await?;
        let mut answer = exchange.answer().await?;
        answer.interim.splice(0..0, interim);
        Ok::<_, std::io::Error>(answer)
    };
    let answer = soon(&case.name, exchanged).await;
    let answer = answer.map_err(|error| format!("no answer: {error}"))?;
    if answer.status() != case.status() {
        return Err(format!(
            "another answer: {} {}",
            answer.head.start,
            answer.text()
        ));
    }
    let arrival = upstream.take().await;
    assert_eq!(upstream.count(), 0, "one arrival too many");
    Ok((arrival, answer))
}

/// Holds every case of the matrix, by way of `through`, against the same case by way of `plain`.
async fn hold(
    cases: &[EchoCase],
    by: Option<ServerKind>,
    upstream: &Upstream,
    plain: SocketAddr,
    through: SocketAddr,
) {
    let mut wrong = String::new();
    let mut held = 0;
    for case in cases {
        if by.is_some_and(|kind| case.is_not_by(kind)) {
            continue;
        }
        let mut say = |side: &str, why: &str| {
            writeln!(wrong, "{}: {side}: {why}", case.name).expect("a String takes all");
        };
        let (sent, told) = match play(case, plain, upstream).await {
            Ok(seen) => seen,
            Err(why) => {
                say("without the proxy", &why);
                continue;
            }
        };
        match play(case, through, upstream).await {
            Ok((arrived, answered)) => {
                let request = compare::arrivals(case, by, &sent, &arrived);
                request.unwrap_or_else(|why| say("request", &why));
                let answer = compare::answers(case, by, &told, &answered);
                answer.unwrap_or_else(|why| say("answer", &why));
            }
            Err(why) => say("through the proxy", &why),
        }
        held += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(held > 150, "only {held} cases were held against each other");
}

#[tokio::test]
async fn alone() {
    let (upstream, cases) = scripted().await;
    let proxy = fenced(upstream.address()).await;
    let plain = upstream.address();
    hold(&cases, None, &upstream, plain, proxy.data()).await;
}

/// client → server → proxy → upstream
async fn in_front(kind: ServerKind) {
    let (upstream, cases) = scripted().await;
    let proxy = fenced(upstream.address()).await;
    let plain = or_return!(RealServer::start(kind, upstream.address()).await);
    let through = or_return!(RealServer::start(kind, proxy.data()).await);
    hold(
        &cases,
        Some(kind),
        &upstream,
        plain.address,
        through.address,
    )
    .await;
}

/// client → proxy → server → upstream
async fn behind(kind: ServerKind) {
    let (upstream, cases) = scripted().await;
    let server = or_return!(RealServer::start(kind, upstream.address()).await);
    let proxy = fenced(server.address).await;
    hold(&cases, Some(kind), &upstream, server.address, proxy.data()).await;
}

#[tokio::test]
async fn behind_nginx() {
    in_front(ServerKind::Nginx).await;
}

#[tokio::test]
async fn in_front_of_nginx() {
    behind(ServerKind::Nginx).await;
}

#[tokio::test]
async fn behind_nginx_as_installed() {
    in_front(ServerKind::NginxAsInstalled).await;
}

#[tokio::test]
async fn in_front_of_nginx_as_installed() {
    behind(ServerKind::NginxAsInstalled).await;
}

#[tokio::test]
async fn behind_haproxy() {
    in_front(ServerKind::HaProxy).await;
}

#[tokio::test]
async fn in_front_of_haproxy() {
    behind(ServerKind::HaProxy).await;
}
