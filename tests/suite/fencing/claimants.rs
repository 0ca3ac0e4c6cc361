//! Access to claims: by certificate, by address, by bearer token. A claim moves a mark, and sends
//! nothing that a service could refuse.

use std::net::Ipv4Addr;

use super::claim::by_key;
use crate::support::{Proxy, Request, Store, fenced, put};

const SECRET: &str = "0123456789abcdef-claims";

fn claim(token: u64) -> Request {
    by_key("order:7").token(token)
}

fn bearing(token: u64, authorization: &str) -> Request {
    claim(token).header("Authorization", authorization)
}

#[tokio::test]
async fn certain_addresses_only() {
    let (upstream, proxy) = fenced("claim: { addresses: ['127.0.0.2', '127.9.0.0/16'] }").await;
    for (from, status) in [
        (Ipv4Addr::LOCALHOST, 403),
        (Ipv4Addr::new(127, 0, 0, 3), 403),
        (Ipv4Addr::new(127, 10, 0, 1), 403),
        (Ipv4Addr::new(127, 0, 0, 2), 204),
        (Ipv4Addr::new(127, 9, 255, 1), 204),
    ] {
        // A client's own claim about its address does not count.
        let request = claim(1).header("X-Forwarded-For", "127.0.0.2");
        let answer = request.send_from(from, proxy.data()).await;
        assert_eq!(answer.status(), status, "{from}: {}", answer.text());
        if status == 403 {
            answer.assert_problem(403, "client-refused");
            assert_eq!(proxy.token("order:7").await, None);
        }
    }
    // The limit is on claims.
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn with_the_token_only() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("claims");
    std::fs::write(&file, format!("{SECRET}\n")).expect("it is writable");
    let limits = format!("claim: {{ addresses: [127.0.0.1], token_file: {file:?} }}");
    let (upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), &limits).await;
    for refused in [
        claim(1),
        bearing(1, ""),
        bearing(1, "Bearer"),
        bearing(1, "Bearer "),
        bearing(1, &SECRET[..SECRET.len() - 1]),
        bearing(1, &format!("Bearer {SECRET}x")),
        bearing(1, &format!("Basic {SECRET}")),
        bearing(1, &format!("Bearer {SECRET}")).header("Authorization", format!("Bearer {SECRET}")),
    ] {
        let answer = proxy.send(refused).await;
        let problem = answer.assert_problem(401, "unauthorized");
        assert_eq!(problem["retry"], "never");
        let asks = answer.header("WWW-Authenticate");
        assert_eq!(asks, Some("Bearer realm=\"fencepost claims\""));
        assert!(!answer.text().contains(SECRET));
    }
    assert_eq!(proxy.token("order:7").await, None);
    let counted = [("outcome", "unauthorized"), ("route", "claim")];
    assert_eq!(proxy.count("fencepost_requests_total", &counted).await, 8);
    let good = |token| bearing(token, &format!("bearer  {SECRET}"));
    assert_eq!(proxy.send(good(1)).await.status(), 204);
    // Each limit has to be met.
    let elsewhere = Ipv4Addr::new(127, 0, 0, 2);
    let answer = good(2).send_from(elsewhere, proxy.data()).await;
    answer.assert_problem(403, "client-refused");
    // Another one beside it, and then instead of it.
    let another = |token| bearing(token, "Bearer another-0123456789");
    let reload = |content: &str| {
        std::fs::write(&file, content).expect("it is writable");
        proxy.hang_up();
    };
    reload(&format!("{SECRET}\nanother-0123456789\n"));
    proxy.until_status(204, another(2)).await;
    assert_eq!(proxy.send(good(2)).await.status(), 204);
    reload("another-0123456789");
    proxy.until_status(401, good(3)).await;
    assert_eq!(proxy.send(another(3)).await.status(), 204);
    assert_eq!(upstream.count(), 0);
    // One that can be guessed is refused at the start.
    std::fs::write(&file, "fifteen-letters").expect("it is writable");
    let output = Proxy::refused_for(&config, &["claim.token_file", "fewer than 16"]).await;
    assert!(!output.contains("fifteen-letters"), "{output}");
}
