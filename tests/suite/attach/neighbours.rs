//! Others who reach the port of `fencepost attach`: web pages in a browser of this machine, and its
//! other users.

use super::{Sidecar, fenced, get, held, post, run_script};
use crate::support::client::Request;

async fn refused(sidecar: &Sidecar, request: &Request) {
    let answer = request.send(sidecar.at).await;
    answer.assert_problem(400, "ambiguous-request");
}

fn with(mut request: Request, fields: &[(&str, &str)]) -> Request {
    for (name, value) in fields {
        request = request.header(name, value);
    }
    request
}

#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_token() {
    let (upstream, _proxy, sidecar) = held().await;
    for fields in [
        &[
            ("Sec-Fetch-Site", "cross-site"),
            ("Origin", "https://evil.example"),
        ][..],
        // A page of another port, or of another name of this machine.
        &[
            ("Sec-Fetch-Site", "same-site"),
            ("Origin", "http://localhost:3000"),
        ],
        &[("Sec-Fetch-Site", "cross-site")],
        // Browsers that send no Sec-Fetch-Site.
        &[("Origin", "https://evil.example")],
        &[("Origin", "http://localhost:3000")],
        &[("Origin", "https://localhost")],
        &[("Origin", "null")],
    ] {
        refused(&sidecar, &with(post("/orders/7").body("x"), fields)).await;
        refused(&sidecar, &with(get("/orders/7"), fields)).await;
    }
    assert_eq!(upstream.count(), 0);
    for fields in [
        &[][..],
        &[("Sec-Fetch-Site", "none")],
        &[
            ("Sec-Fetch-Site", "same-origin"),
            ("Origin", "http://localhost"),
        ],
        &[("Origin", "http://localhost")],
    ] {
        let request = with(post("/orders/7").body("x"), fields);
        request.send(sidecar.at).await.assert_forwarded();
    }
    assert_eq!(upstream.tokens("order:7"), [41; 4]);
}

/// DNS rebinding: the owner of a name turns it toward this machine, and a page under that name
/// sends requests of its own site.
#[tokio::test]
async fn a_name_that_was_turned_toward_this_machine_is_refused() {
    let (upstream, _proxy, sidecar) = held().await;
    let port = sidecar.at.port();
    let from = |host: &str| {
        let request = post("/orders/7").host(Some(host)).body("x");
        request.header("Sec-Fetch-Site", "same-origin")
    };
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        &format!("localhost.evil.example:{port}"),
        &format!("127.0.0.1.evil.example:{port}"),
    ] {
        refused(&sidecar, &from(host)).await;
        let absolute = post(&format!("http://{host}/orders/7")).host(Some(host));
        refused(&sidecar, &absolute).await;
    }
    assert_eq!(upstream.count(), 0);
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        let request = from(&format!("{host}:{port}"));
        request.send(sidecar.at).await.assert_forwarded();
    }
}

#[tokio::test]
async fn a_socket_is_this_users_alone() {
    let (_upstream, proxy) = fenced().await;
    let dir = tempfile::TempDir::new().expect("a directory");
    let listen = format!("unix:{}", dir.path().join("attach.sock").display());
    let arguments = ["--token", "41", "--listen", &listen];
    let mode = "stat -c mode=%a $FENCEPOST_SOCKET";
    run_script(&proxy, &arguments, mode)
        .await
        .assert(0, "mode=600");
}
