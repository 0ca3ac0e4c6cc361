//! The commands against a real admin port, over an instance whose store is in memory.

use std::path::Path;

use clap::Parser;
use serde_json::Value;
use tokio::net::{TcpListener, UnixListener};

use super::*;
use crate::admin::serve;
use crate::admin::tests::fixture::Admin as AdminPort;
use crate::fencing::tests::{key, token};
use crate::socket::Listener;
use crate::store::InstanceId;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    marks: MarksArgs,
}

/// An admin port on a free port of the loopback, and its URL.
async fn start(admin: &AdminPort) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let state = admin.state.clone();
    tokio::spawn(serve(
        Listener::Tcp(listener),
        state,
        std::future::pending(),
    ));
    url
}

fn parse(words: &[&str]) -> Result<MarksArgs, clap::Error> {
    let words = std::iter::once("marks").chain(words.iter().copied());
    Program::try_parse_from(words).map(|program| program.marks)
}

async fn marks(admin: &str, token_file: Option<&Path>, words: &[&str]) -> anyhow::Result<String> {
    let file = token_file.map(|file| file.to_str().expect("a path of this test's").to_owned());
    let mut all = vec!["--admin", admin];
    all.extend(
        file.as_deref()
            .into_iter()
            .flat_map(|file| ["--token-file", file]),
    );
    all.extend(words);
    run(parse(&all).expect("arguments that parse")).await
}

fn message(result: anyhow::Result<String>) -> String {
    format!("{:#}", result.expect_err("an error"))
}

#[tokio::test(start_paused = true)]
async fn lists_and_shows() {
    let admin = AdminPort::new().await;
    for resource in ["a&b1", "a&b2", "a&b3", "order:42", "order:43"] {
        admin.set_mark(resource, 42);
    }
    // Beyond the numbers that a JSON number can hold exactly.
    admin.set_mark("order:43", 9_007_199_254_740_993);
    let url = start(&admin).await;
    let list = marks(&url, None, &["list", "--limit", "2", "--prefix", "a&b"])
        .await
        .unwrap();
    assert_eq!(
        list,
        "RESOURCE  MARK  SINCE                     SPENT\n\
         a&b1      42    2023-11-14T22:13:20.123Z  no\n\
         a&b2      42    2023-11-14T22:13:20.123Z  no\n\
         There are more: --after 'a&b2'\n"
    );
    let json = marks(&url, None, &["list", "--json"]).await.unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["marks"][3]["mark"], "42");
    assert_eq!(json["marks"][4]["mark"], "9007199254740993");
    let _held = admin.rig.admit("order:42", 42).await;
    drop(admin.rig.admit("order:42", 42).await.begin());
    // An instance that is dead has left an epoch behind.
    let dead = InstanceId::from_bits(7);
    admin.set_dead(dead);
    admin.set_open("order:42", dead, token(41));
    admin.rig.round().await;
    let _newer = admin.rig.spawn_admit("order:42", 43);
    while admin.rig.waiting(&key("order:42")) < 1 {
        tokio::task::yield_now().await;
    }
    let view = marks(&url, None, &["get", "order:42"]).await.unwrap();
    let own = admin.rig.instance();
    for line in [
        "mark       43".to_owned(),
        "waiting    1".to_owned(),
        format!("{own}.1 42 30.0 {own} no"),
        format!("{dead}/3 41 54.0 {dead} yes"),
    ] {
        let words = line.split_whitespace();
        let is_it = |found: &str| found.split_whitespace().eq(words.clone());
        assert!(view.lines().any(is_it), "{line:?} in\n{view}");
    }
}

#[tokio::test]
async fn every_key_arrives_as_it_was_given() {
    let admin = AdminPort::new().await;
    let url = start(&admin).await;
    for resource in [
        "a",
        "a/b",
        "/orders/42",
        "a%2Fb",
        "a/../b",
        "ä ö",
        "a?b#c",
        "x:y",
        "a+b",
        "a/advance",
        "a\\b",
        "...",
    ] {
        admin.set_mark(resource, 1);
        let view = marks(&url, None, &["get", resource, "--json"])
            .await
            .unwrap();
        let view: Value = serde_json::from_str(&view).unwrap();
        assert_eq!(view["resource"], resource);
    }
    assert!(parse(&["get", ".."]).is_err());
    assert!(parse(&["get", ""]).is_err());
}

#[tokio::test]
async fn writes_carry_the_token_and_who_and_why() {
    let admin = AdminPort::new().await;
    admin.set_mark("a", 43);
    let url = start(&admin).await;
    let file = Some(admin.token_file());
    let file = file.as_deref();
    let done = marks(&url, file, &["advance", "a/b", "44", "--actor", "ann"])
        .await
        .unwrap();
    assert_eq!(done, "a/b: the mark is 44 now\n");
    let words = [
        "override", "a", "7", "--reason", "restored", "--actor", "ann",
    ];
    let done = marks(&url, file, &words).await.unwrap();
    assert_eq!(done, "a: the mark was 43 and is 7 now, in era 1\n");
    drop(admin.rig.admit("a", 8).await.begin());
    let id = format!("{}.1", admin.rig.instance());
    let words = ["resolve", "a", &id, "--reason", "seen", "--actor", "ann"];
    let done = marks(&url, file, &words).await.unwrap();
    assert_eq!(done, format!("a: {id} no longer counts as in flight\n"));
    assert_eq!(admin.rig.in_flight(&key("a")), (0, 0));
    let audit = admin.audit();
    assert_eq!(audit.len(), 3);
    for (row, start) in audit.iter().zip([
        r#"advance a/b - 44 "" "ann (admin API, 127.0.0.1:"#,
        r#"override a 43 7 "restored" "ann (admin"#,
        r#"resolve a 8 8 "seen" "ann (admin"#,
    ]) {
        assert!(row.starts_with(start), "{row}");
    }
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let admin = AdminPort::new().await;
    admin.set_mark("a", 43);
    let url = start(&admin).await;
    let file = Some(admin.token_file());
    let file = file.as_deref();
    let no_file = message(marks(&url, None, &["advance", "a", "44"]).await);
    assert!(no_file.contains("--token-file"), "{no_file}");
    let stale = message(marks(&url, file, &["advance", "a", "41"]).await);
    assert_eq!(
        stale,
        "The token is stale (412, stale-token): The mark is 43, above 41. Only an override lowers it."
    );
    let wrong = admin.dir.path().join("wrong");
    std::fs::write(&wrong, "not it").unwrap();
    let wrong = message(marks(&url, Some(&wrong), &["advance", "a", "44"]).await);
    assert!(wrong.contains("401, unauthorized"), "{wrong}");
    let missing = message(marks(&url, Some(Path::new("/nowhere")), &["advance", "a", "44"]).await);
    assert!(missing.contains("/nowhere"), "{missing}");
    let scheme = message(marks("127.0.0.1:7081", None, &["list"]).await);
    assert!(scheme.contains("begin it with http://"), "{scheme}");
    assert!(parse(&["advance", "a", "-1"]).is_err());
    assert!(parse(&["override", "a", "1"]).is_err());
    assert!(parse(&["list", "--limit", "0"]).is_err());
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let refused = message(marks(&url, None, &["list"]).await);
    assert!(
        refused.contains("Is fencepost running") && refused.contains(&url),
        "{refused}"
    );
}

#[tokio::test]
async fn another_server_is_not_taken_for_fencepost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other =
        axum::Router::new().fallback(|| async { (axum::http::StatusCode::FOUND, "elsewhere") });
    tokio::spawn(async move { axum::serve(listener, other).await });
    let error = message(marks(&url, None, &["list"]).await);
    assert!(error.contains("is not fencepost's admin port"), "{error}");
}

#[tokio::test]
async fn speaks_over_a_unix_socket() {
    let admin = AdminPort::new().await;
    admin.set_mark("a", 43);
    let path = admin.dir.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(serve(
        Listener::Unix(listener),
        admin.state.clone(),
        std::future::pending(),
    ));
    let url = format!("unix:{}", path.display());
    let done = marks(&url, Some(&admin.token_file()), &["advance", "a", "43"])
        .await
        .unwrap();
    assert_eq!(done, "a: the mark was 43 already\n");
}
