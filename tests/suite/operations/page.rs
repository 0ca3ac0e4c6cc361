//! The page for people at `/` of the admin port.

use crate::support::python::{program, python};
use crate::support::run::run;
use crate::support::store::tool;
use crate::support::{Config, Proxy, Store, Upstream, or_return, post, put};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/seen/{id}', resource: 's:{id}', mode: observe }\n\
    upstream: { timeout: 300s }\n";

/// A key that a stranger chose, to be run where somebody looks at it.
const HOSTILE: &str = "%3Cscript%3Ealert%281%29%3C!--%E2%80%AE";

async fn with_traffic(upstream: &Upstream, store: &Store) -> Proxy {
    let proxy = Proxy::start(&Config::new(upstream, store).with(ROUTES)).await;
    for token in [5, 9] {
        proxy.forward(put("/orders/7").token(token)).await;
    }
    proxy.stale(put("/orders/7").token(8)).await;
    proxy
}

/// The page's files have no data in them, and let a browser load and frame nothing else.
#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_only_reads() {
    let upstream = Upstream::start().await;
    let proxy = with_traffic(&upstream, &Store::sqlite()).await;
    let html = "text/html; charset=utf-8";
    for (path, kind) in [
        ("/", html),
        ("/resource?key=order%3A7", html),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
    ] {
        let page = proxy.ask(path).await;
        assert_eq!(page.status(), 200, "{path}");
        assert!(!page.text().contains("order:7"), "{}", page.text());
        for (name, value) in [
            ("content-type", Some(kind)),
            ("x-content-type-options", Some("nosniff")),
            ("cache-control", Some("no-store")),
            ("access-control-allow-origin", None),
        ] {
            assert_eq!(page.header(name), value, "{path}: {name}");
        }
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        let written = post(path).host(Some("127.0.0.1"));
        assert_eq!(written.send(proxy.admin()).await.status(), 405, "{path}");
    }
}

/// In a browser: its words, light, dark and narrow, and with a token where the name is unknown.
/// Keys, paths, clients and user agents are strangers' texts.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_well_in_a_browser() {
    let python = or_return!(python());
    let chromium = or_return!(tool("chromium"));
    let upstream = Upstream::start().await;
    let proxy = with_traffic(&upstream, &Store::sqlite()).await;
    // What is long is not cut off at the side.
    for id in [&"long-".repeat(60), HOSTILE] {
        let path = format!("/orders/{id}");
        proxy.forward(put(&path).token(5)).await;
        proxy.stale(put(&path).token(4)).await;
    }
    // One is at the upstream all the while.
    let (_held, _gate) = proxy.held(&upstream, put("/orders/5").token(3)).await;
    let folder = tempfile::tempdir().expect("a directory");
    let mut command = program(python, "page/look.py");
    command
        .arg(chromium)
        .arg(format!("http://{}", proxy.admin()))
        .arg(format!("http://{}", proxy.data()))
        .arg(folder.path())
        .arg(proxy.token_file());
    let looked = run(command).await;
    assert_eq!(looked.code, Some(0), "{}", looked.text());
    let said = looked.out;
    let well = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(well, 11, "{said}");
}
