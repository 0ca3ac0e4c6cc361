//! The page for people at `/` of the admin port.

use std::path::Path;
use std::process::Command;

use crate::support::python::python;
use crate::support::store::tool;
use crate::support::{
    Answer, Config, Proxy, Store, Upstream, get, or_return, over_both_stores, post, put,
};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/seen/{id}', resource: 's:{id}', mode: observe }\n";

/// What a stranger writes, to be run where somebody looks at it.
const HOSTILE: &str = "%3Cscript%3Ealert%281%29%3C!--";

async fn with_traffic(upstream: &Upstream, store: &Store) -> Proxy {
    let proxy = Proxy::start(&Config::new(upstream, store).with(ROUTES)).await;
    for token in [5, 9] {
        proxy.forward(put("/orders/7").token(token)).await;
    }
    proxy.stale(put("/orders/7").token(8)).await;
    proxy
}

/// The text of a page without its tags.
fn words(page: &Answer) -> String {
    let mut text = String::new();
    let mut in_tag = false;
    for letter in page.text().chars() {
        match letter {
            '<' => in_tag = true,
            '>' => {
                in_tag = false;
                text.push(' ');
            }
            _ if !in_tag => text.push(letter),
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

over_both_stores! {
    async fn the_page_says_what_passes_and_what_is_refused(store: Store) {
        let upstream = Upstream::start().await;
        let proxy = with_traffic(&upstream, &store).await;
        let page = proxy.ask("/").await;
        assert_eq!((page.status(), page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        let said = words(&page);
        for part in [
            "Enforcing on 1 of 2 routes. Not on: /seen/{id} (observe).",
            "The store answers.",
            "stale-token refused 1",
            "advanced passed 2",
            "Nothing waits.",
            "stale-token 412 order:7 8 9 127.0.0.1 PUT /orders/7",
            "/orders/{id} enforce order:{id}",
            "id state silent for settles in",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let resource = proxy.ask("/resource?key=order%3A7").await;
        let said = words(&resource);
        for part in ["mark 9", "stale-token 412 8 9 127.0.0.1 PUT /orders/7", "Operator actions None."] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let (status, none) = (404, proxy.ask("/resource?key=order%3A8").await);
        assert_eq!(none.status(), status);
        assert!(words(&none).contains("No token has been accepted for this key"), "{}", words(&none));
        for wrong in ["/resource", "/resource?key=", "/resource?key=%00", "/resource?kee=a"] {
            let answer = proxy.ask(wrong).await;
            assert_eq!(answer.status(), 400, "{wrong}");
            assert!(words(&answer).contains("Not a resource key"), "{wrong}: {}", words(&answer));
        }
    }
}

/// Keys, paths, clients and user agents are strangers' texts.
#[tokio::test]
async fn no_stranger_writes_on_the_page() {
    let upstream = Upstream::start().await;
    let proxy = with_traffic(&upstream, &Store::sqlite()).await;
    let path = format!("/orders/{HOSTILE}%E2%80%AE");
    proxy.forward(put(&path).token(5)).await;
    proxy.stale(put(&path).token(4)).await;
    let key = format!("/resource?key=order%3A{HOSTILE}%E2%80%AE");
    for page in ["/", &key] {
        let page = proxy.ask(page).await;
        assert_eq!(page.status(), 200, "{}", page.text());
        let text = page.text();
        assert!(
            text.contains("order:&lt;script&gt;alert(1)&lt;!--"),
            "{text}"
        );
        assert!(!text.contains("<script>"), "{text}");
        assert!(!text.contains('\u{202e}'), "{text}");
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("cache-control"), Some("no-store"));
        assert_eq!(page.header("access-control-allow-origin"), None);
    }
}

/// It only reads, and not for a web page whose name was turned toward this machine.
#[tokio::test]
async fn the_page_only_reads_and_knows_its_host() {
    let upstream = Upstream::start().await;
    let proxy = with_traffic(&upstream, &Store::sqlite()).await;
    for path in ["/", "/resource?key=a", "/page.css", "/page.js"] {
        assert_eq!(
            post(path)
                .host(Some("127.0.0.1"))
                .send(proxy.admin())
                .await
                .status(),
            405,
            "{path}"
        );
        let turned = get(path)
            .host(Some("evil.example"))
            .send(proxy.admin())
            .await;
        assert_eq!(turned.status(), 421, "{path}");
        assert_eq!(turned.json()["type"], "urn:fencepost:problem:unknown-host");
    }
    // With the token, whatever the name is: as the password that a browser asks for.
    let token = std::fs::read_to_string(proxy.token_file()).expect("the token");
    let basic = |password: &str| {
        use base64::Engine as _;
        base64::prelude::BASE64_STANDARD.encode(format!("anybody:{password}"))
    };
    let named = |password: &str| {
        let credentials = format!("Basic {}", basic(password));
        get("/")
            .host(Some("ops.example"))
            .header("Authorization", &credentials)
    };
    assert_eq!(named(token.trim()).send(proxy.admin()).await.status(), 200);
    let wrong = named("a wrong token of some length")
        .send(proxy.admin())
        .await;
    assert_eq!(wrong.status(), 401, "{}", wrong.text());
    let challenge = wrong.header("www-authenticate").expect("a challenge");
    assert!(challenge.starts_with("Basic "), "{challenge}");
    // A browser sends such credentials along with what other sites ask of it: they write nothing.
    let write = post("/v1/marks/order%3A7/advance")
        .header("Content-Type", "application/json")
        .header("Authorization", format!("Basic {}", basic(token.trim())))
        .body("{\"token\":\"99\"}");
    assert_eq!(write.send(proxy.admin()).await.status(), 401);
    assert_eq!(proxy.token("order:7").await, Some(9));
}

/// In a browser: light, dark and narrow, with scripts and without.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_well_in_a_browser() {
    let python = or_return!(python());
    let chromium = or_return!(tool("chromium"));
    let upstream = Upstream::start().await;
    let proxy = with_traffic(&upstream, &Store::sqlite()).await;
    // What is long is not cut off at the side.
    let long = format!("/orders/{}", "long-".repeat(60));
    proxy.forward(put(&long).token(5)).await;
    proxy.stale(put(&long).token(4)).await;
    let folder = std::env::var_os("FENCEPOST_SCREENSHOTS").map(std::path::PathBuf::from);
    let own = tempfile::tempdir().expect("a directory");
    let folder = folder.as_deref().unwrap_or_else(|| own.path());
    let mut command = Command::new(python);
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/look.py"))
        .arg(chromium)
        .arg(format!("http://{}", proxy.admin()))
        .arg(format!("http://{}", proxy.data()))
        .arg(folder)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("no panic").expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let well = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(well, 9, "{said}");
}
