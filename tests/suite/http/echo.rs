//! What arrives is what was sent, byte for byte, but for what the documentation names ([`compare`]): over a
//! matrix of exchanges ([`matrix`]), alone and with real nginx and `HAProxy` in front and behind. These change
//! things of their own, so every exchange is held against the same one without the proxy, and only what the
//! proxy does counts.

mod cases;
mod compare;
mod long;
mod matrix;
mod scribe;
mod servers;
mod streams;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use self::cases::Case;
use self::scribe::{Arrival, Scribe};
use self::servers::{Kind, Server};
use crate::support::client::Exchange;
use crate::support::wait::soon;
use crate::support::{Answer, Config, Proxy, Store};

/// The proxy in front of an address.
async fn fenced(to: SocketAddr) -> Proxy {
    let config = Config::to(&format!("http://{to}"), &Store::sqlite())
        .with("routes: [{ path: '/e/{*rest}', resource: 'e:{rest}' }]");
    Proxy::start(&config).await
}

/// Plays one case against `front`; what arrived, and what was answered.
async fn play(
    case: &Case,
    front: SocketAddr,
    scribe: &mut Scribe,
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
    let arrival = scribe.arrival().await;
    scribe.assert_no_more();
    Ok((arrival, answer))
}

/// Holds every case of the matrix, by way of `through`, against the same case by way of `plain`.
async fn hold(
    cases: &[Case],
    by: Option<Kind>,
    scribe: &mut Scribe,
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
        let (sent, told) = match play(case, plain, scribe).await {
            Ok(seen) => seen,
            Err(why) => {
                say("without the proxy", &why);
                continue;
            }
        };
        match play(case, through, scribe).await {
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
    let cases = Arc::new(matrix::all());
    let mut scribe = Scribe::start(Arc::clone(&cases)).await;
    let proxy = fenced(scribe.address).await;
    let plain = scribe.address;
    hold(&cases, None, &mut scribe, plain, proxy.data()).await;
}

/// client → server → proxy → upstream
async fn in_front(kind: Kind, test: &str) {
    let cases = Arc::new(matrix::all());
    let mut scribe = Scribe::start(Arc::clone(&cases)).await;
    let proxy = fenced(scribe.address).await;
    let Some(plain) = Server::start(kind, scribe.address, test).await else {
        return;
    };
    let Some(through) = Server::start(kind, proxy.data(), test).await else {
        return;
    };
    hold(
        &cases,
        Some(kind),
        &mut scribe,
        plain.address,
        through.address,
    )
    .await;
}

/// client → proxy → server → upstream
async fn behind(kind: Kind, test: &str) {
    let cases = Arc::new(matrix::all());
    let mut scribe = Scribe::start(Arc::clone(&cases)).await;
    let Some(server) = Server::start(kind, scribe.address, test).await else {
        return;
    };
    let proxy = fenced(server.address).await;
    hold(
        &cases,
        Some(kind),
        &mut scribe,
        server.address,
        proxy.data(),
    )
    .await;
}

#[tokio::test]
async fn behind_nginx() {
    in_front(Kind::Nginx, "echo::behind_nginx").await;
}

#[tokio::test]
async fn in_front_of_nginx() {
    behind(Kind::Nginx, "echo::in_front_of_nginx").await;
}

#[tokio::test]
async fn behind_nginx_as_installed() {
    in_front(Kind::NginxAsInstalled, "echo::behind_nginx_as_installed").await;
}

#[tokio::test]
async fn in_front_of_nginx_as_installed() {
    behind(
        Kind::NginxAsInstalled,
        "echo::in_front_of_nginx_as_installed",
    )
    .await;
}

#[tokio::test]
async fn behind_haproxy() {
    in_front(Kind::HaProxy, "echo::behind_haproxy").await;
}

#[tokio::test]
async fn in_front_of_haproxy() {
    behind(Kind::HaProxy, "echo::in_front_of_haproxy").await;
}
