//! Access to keys and marks: who may read them, and who may move them.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::refused;
use crate::support::network::{ADDRESS, in_a_network, is_possible};
use crate::support::proxy::ADMIN_TOKEN;
use crate::support::{Config, Proxy, Request, Store, Upstream, fenced, get, post, put};

const READS: &str = "/v1/config /v1/instances /v1/status /v1/waiting /v1/marks /v1/marks/order:7 \
    /v1/requests /v1/rejections /v1/unknown";
const READER: &str = "who may only read";

fn bearer(request: Request, token: &str) -> Request {
    request.header("Authorization", format!("Bearer {token}"))
}

fn advance(token: u64) -> Request {
    post("/v1/marks/order%3A7/advance")
        .header("Content-Type", "application/json")
        .body(json!({ "token": token.to_string() }).to_string())
}

#[test]
fn from_the_network_reads_need_a_token_and_probes_need_none() {
    if !is_possible() {
        return;
    }
    in_a_network(|| async {
        let upstream = Upstream::start().await;
        let secrets = TempDir::new().expect("a temporary directory");
        let reader = secrets.path().join("reader");
        std::fs::write(&reader, READER).expect("the directory is writable");
        let admin = json!({ "listen": "0.0.0.0:0", "read_token_file": reader });
        let config =
            Config::new(&upstream, &Store::sqlite()).with(&json!({ "admin": admin }).to_string());
        let proxy = Proxy::start(&config).await;
        proxy.forward(put("/orders/7").token(42)).await;
        let inside: SocketAddr = (Ipv4Addr::LOCALHOST, proxy.admin().port()).into();
        let outside: SocketAddr = (ADDRESS, proxy.admin().port()).into();
        let neighbour = Ipv4Addr::new(127, 0, 0, 6);
        for probe in ["/livez", "/readyz", "/metrics"] {
            assert_eq!(get(probe).send(outside).await.status(), 200, "{probe}");
        }
        for read in READS.split(' ') {
            let read = || get(read).host(Some("localhost"));
            assert_eq!(read().send(inside).await.status(), 200);
            let unasked = read().send(outside).await;
            let problem = unasked.assert_admin_problem(401, "unauthorized");
            assert!(!problem.to_string().contains("42"), "{problem}");
            for right in [READER, ADMIN_TOKEN] {
                assert_eq!(bearer(read(), right).send(outside).await.status(), 200);
            }
            // A proxy of the pod that hands on what comes from the network: by the pod's address.
            let handed_on = read().send_from(neighbour, outside).await;
            handed_on.assert_admin_problem(401, "unauthorized");
            let asked = read().send_from(neighbour, inside).await;
            assert_eq!(asked.status(), 200);
        }
        // A reader may not write.
        let written = bearer(advance(43), READER).send(outside).await;
        written.assert_admin_problem(401, "unauthorized");
        let written = bearer(advance(43), ADMIN_TOKEN).send(outside).await;
        assert_eq!(written.status(), 200, "{}", written.text());
    });
}

#[tokio::test]
async fn a_page_that_was_turned_toward_this_machine_reads_nothing() {
    let (_upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(42)).await;
    let admin = proxy.admin();
    let named = |target: &str, host| get(target).host(host);
    for read in READS.split(' ') {
        for host in [
            "evil.example",
            "127.0.0.1.evil.example:7081",
            "localhost.evil.example",
        ] {
            let answer = named(read, Some(host)).send(admin).await;
            answer.assert_admin_problem(421, "unknown-host");
            let asked = bearer(named(read, Some(host)), ADMIN_TOKEN);
            assert_eq!(asked.send(admin).await.status(), 200);
        }
        let nameless = named(read, None).send(admin).await.status();
        assert!((400..500).contains(&nameless), "{nameless}");
        let absolute = format!("http://evil.example{read}");
        let answer = named(&absolute, Some("localhost")).send(admin).await;
        answer.assert_admin_problem(421, "unknown-host");
        for host in ["127.0.0.1:7081", "localhost", "localhost.", "[::1]:7081"] {
            let answer = named(read, Some(host)).send(admin).await;
            assert_eq!(answer.status(), 200, "{host}");
        }
    }
    assert!(refused(&proxy, "unknown-host").await >= 9);
}

#[tokio::test]
async fn a_token_of_fifteen_characters_lets_nobody_in() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), "{}").await;
    for (token, status) in [("fifteen letters", 403), ("sixteen letters!", 200)] {
        std::fs::write(proxy.token_file(), token).expect("the directory is writable");
        let answer = bearer(advance(9), token).send(proxy.admin()).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
    }
    let dir = TempDir::new().expect("a temporary directory");
    let short = dir.path().join("short");
    std::fs::write(&short, "fifteen letters\n").expect("the directory is writable");
    let config = config.with(&json!({ "admin": { "read_token_file": short } }).to_string());
    let (status, said) = Proxy::run_with(&config, &["check"]).await;
    assert!(status.success(), "{said}");
    for part in ["admin.read_token_file: ", "fewer than 16 characters"] {
        assert!(said.contains(part), "{said}");
    }
}

/// Each guess comes over a connection of its own. All are counted, and some are logged.
#[tokio::test]
async fn who_guesses_from_the_same_address_keeps_no_operator_out() {
    let (_upstream, proxy) = fenced("{}").await;
    let admin = proxy.admin();
    // None at all is no guess.
    assert_eq!(advance(9).send(admin).await.status(), 401);
    assert_eq!(refused(&proxy, "wrong-token").await, 0);
    let guesses = (0..40).map(|_| {
        tokio::spawn(async move {
            loop {
                let guess = bearer(advance(9), "a guess, and a long one");
                let _ = guess.attempt(admin).await;
            }
        })
    });
    let guesses: Vec<_> = guesses.collect();
    let message = "a wrong admin token was refused";
    let throttled = |line: &Value| line["message"] == message && line["left_out"] != 0;
    proxy.logged("that more guesses came", throttled).await;
    for token in 1..=16 {
        let answer = bearer(advance(token), ADMIN_TOKEN).attempt(admin).await;
        let answer = answer.unwrap_or_else(|error| panic!("{token}: {error}"));
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    for guess in guesses {
        guess.abort();
    }
    assert!(refused(&proxy, "wrong-token").await > 40);
    let line = proxy.log_of("message", message).await;
    let client = line["client"].as_str().expect("an address");
    assert!(client.starts_with("127.0.0.1:"), "{line}");
    assert!(!line.to_string().contains("a guess"), "{line}");
}
