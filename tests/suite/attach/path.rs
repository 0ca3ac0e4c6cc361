//! The loopback port: what it adds, keeps, refuses, sends again and passes piece by piece.

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Sidecar, attach, fenced, get, held, post, put, run, url};
use crate::http::addresses::{ADDRESSES, ALIVE, silent};
use crate::support::client::{Exchange, Request};
use crate::support::network::{NAME, is_possible, resolving};
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::store::disk_dir;
use crate::support::tls::{Ca, Files};
use crate::support::{
    Config, Gate, Must as _, Proxy, Step, Store, Upstream, all_forwarded, eventually, forwarded,
    request, return_unless, soon,
};

#[tokio::test]
async fn the_operation_is_added_where_the_client_names_none() {
    let (upstream, proxy) = fenced().await;
    let sidecar = Sidecar::start(&url(&proxy), &["--token", "41", "--operation", "refund"]).await;
    let write = || post("/orders/7").body("x");
    let named = |name| write().header("X-Fencing-Operation", name);
    for request in [write(), named("refund"), named("other")] {
        request.send(sidecar.at).await.assert_forwarded();
    }
    let all = upstream.arrivals();
    let key = |at: usize| all[at].head.get("idempotency-key").expect("a key");
    assert_eq!(key(0), key(1), "the operation of the command line");
    assert_ne!(key(0), key(2), "the client's own");
}

#[tokio::test]
async fn another_token_of_the_client_is_refused() {
    let (upstream, _proxy, sidecar) = held().await;
    for (name, says) in [
        ("X-Fencing-Token", "X-Fencing-Token of its own"),
        ("x_fencing_token", "send x-fencing-token only"),
    ] {
        let answer = put("/orders/7").header(name, "42").send(sidecar.at).await;
        let problem = answer.assert_problem(400, "ambiguous-request");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains(says), "{detail}");
    }
    assert_eq!(upstream.count(), 0);
    let same = put("/orders/7").token(41);
    same.send(sidecar.at).await.assert_forwarded();
    assert_eq!(upstream.only().token(), Some(41));
}

#[tokio::test]
async fn what_waits_for_an_older_request_is_sent_again() {
    let (upstream, proxy) = fenced().await;
    let (older, gate) = proxy.held(&upstream, put("/orders/7").token(40)).await;
    let sidecar = Sidecar::start(&url(&proxy), &["--token", "41"]).await;
    let newer = put("/orders/7").body("paid").start(sidecar.at);
    proxy.until_outcome("older-in-flight", 1).await;
    let brief = Sidecar::start(&url(&proxy), &["--token", "41", "--retry-for", "0s"]).await;
    let answer = put("/orders/7").send(brief.at).await;
    let told = answer.assert_problem(503, "older-in-flight");
    assert_eq!(told["retry"], "same-token");
    gate.open();
    all_forwarded([older, newer]).await;
    let last = upstream.last();
    assert_eq!((last.token(), last.text().as_str()), (Some(41), "paid"));
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn what_may_have_taken_effect_is_not_sent_again() {
    let (upstream, proxy) = fenced().await;
    upstream.next([Step::Close]);
    let sidecar = Sidecar::start(&url(&proxy), &["--token", "41"]).await;
    let answer = put("/orders/7").send(sidecar.at).await;
    answer.assert_problem(502, "outcome-unknown");
    assert_eq!(answer.header("x-fencing-retry"), Some("check-first"));
    assert_eq!(upstream.count(), 1);
    // Nor is the service's own 503, whatever it says.
    let busy = "X-Fencing-Retry: same-token\r\nRetry-After: 0\r\n";
    upstream.next([Step::answer("503 Service Unavailable", busy, "busy")]);
    let answer = put("/orders/7").send(sidecar.at).await;
    let told = (answer.status(), answer.header("x-fencing-retry"));
    assert_eq!(told, (503, None));
    assert_eq!(upstream.count(), 2);
}

/// With a connection that is kept, and without one.
#[tokio::test]
async fn a_connection_that_breaks_repeats_no_request() {
    let upstream = Upstream::start().await;
    let sidecar = Sidecar::start(upstream.url(), &["--token", "41"]).await;
    for request in [put("/orders/7").body("x"), get("/orders/7")] {
        for kept in [false, true] {
            if kept {
                assert_eq!(request.send(sidecar.at).await.status(), 200);
            }
            let before = upstream.count();
            upstream.next([Step::Close]);
            let answer = request.send(sidecar.at).await;
            answer.assert_problem(502, "outcome-unknown");
            assert_eq!(answer.header("x-fencing-retry"), Some("check-first"));
            assert_eq!(upstream.count(), before + 1);
        }
    }
}

/// A fencepost must judge the path that the client has sent.
#[tokio::test]
async fn a_path_passes_unchanged_or_not_at_all() {
    let (upstream, _proxy, sidecar) = held().await;
    let targets = "/orders/7/../8 /orders/7/%2e%2e/8 /orders/{7} /orders\\7 *";
    for target in targets.split(' ') {
        let answer = put(target).send(sidecar.at).await;
        answer.assert_problem(400, "ambiguous-request");
    }
    assert_eq!(upstream.count(), 0);
    for (sent, arrives) in [
        ("/orders/7'8?x=%20a//../b", "/orders/7'8?x=%20a//../b"),
        ("/orders/7?x='8'", "/orders/7?x=%278%27"),
    ] {
        put(sent).send(sidecar.at).await.assert_forwarded();
        assert_eq!(upstream.last().target(), arrives);
    }
}

#[tokio::test]
async fn an_upgrade_is_a_plain_request_behind_attach() {
    let (upstream, _proxy, sidecar) = held().await;
    let asks = get("/orders/7").header("Connection", "Upgrade, X-Own");
    let asks = asks.header("Upgrade", "websocket").header("X-Own", "1");
    assert_eq!(asks.send(sidecar.at).await.status(), 200);
    let got = upstream.only();
    for name in ["upgrade", "x-own"] {
        assert_eq!(got.head.get(name), None, "{name}");
    }
}

#[tokio::test]
async fn a_fencepost_that_comes_back_gets_the_request_then() {
    let (upstream, mut proxy) = fenced().await;
    let sidecar = Sidecar::start(&url(&proxy), &["--token", "41"]).await;
    proxy.stop().await;
    let write = put("/orders/7").body("paid").start(sidecar.at);
    let (file, listen) = (proxy.file(), proxy.data().to_string());
    let mut serve = fencepost();
    serve.args(["serve", "--listen", &listen]).arg(file);
    let _again = Process::start(&mut serve);
    forwarded(write).await;
    assert_eq!(upstream.only().text(), "paid");
}

#[tokio::test]
async fn pieces_pass_as_they_come() {
    let (upstream, _proxy, sidecar) = held().await;
    let gate = Gate::shut();
    upstream.next([
        Step::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"),
        Step::Wait(gate.clone()),
        Step::raw("4\r\nlast\r\n0\r\n\r\n"),
    ]);
    let mut events = Exchange::begin(sidecar.at, &get("/events"), b"").await;
    let head = events.any_head().await;
    assert_eq!(head.word(1), "200");
    let first = soon("the first piece", events.wire.some()).must().await;
    assert!(String::from_utf8_lossy(&first).contains("first"));
    gate.open();

    // A body that is longer than what is kept goes through, and is not sent twice.
    let long = vec![b'x'; 3 << 20];
    let answer = put("/orders/7").body(&long).send(sidecar.at).await;
    answer.assert_forwarded();
    assert_eq!(upstream.last().text().len(), long.len());
}

#[tokio::test]
async fn the_fencepost_may_want_tls_and_a_certificate() {
    let (ca, files) = (Ca::new("ours"), Files::new());
    files.put("ca.crt", ca.pem());
    files.put_pair("server", &ca.server(&["localhost"]));
    files.put_pair("client", &ca.client(&["nightly.example"]));
    let at = |name: &str| files.path(name).display().to_string();
    let (ca, cert, key) = (at("ca.crt"), at("server.crt"), at("server.key"));
    let tls = format!("cert_file: '{cert}', key_file: '{key}', client_ca_file: '{ca}'");
    let (upstream, proxy) = crate::support::fenced(&format!("tls: {{ {tls} }}")).await;
    let to = format!("https://localhost:{}", proxy.data().port());
    let (cert, key) = (at("client.crt"), at("client.key"));
    let trusting = ["--token", "41", "--ca-file", &ca, "--retry-for", "0s"];
    let showing = [&trusting[..], &["--cert-file", &cert, "--key-file", &key]].concat();
    for (arguments, status) in [(&trusting[..], 502), (&showing, 200)] {
        let sidecar = Sidecar::start(&to, arguments).await;
        let answer = put("/orders/7").send(sidecar.at).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
    }
    assert_eq!(upstream.only().token(), Some(41));
}

#[tokio::test]
async fn both_sides_may_be_unix_sockets() {
    let dir = disk_dir();
    let at = |kind: &str, name: &str| format!("{kind}:{}", dir.path().join(name).display());
    let (fence, here) = (at("unix", "fence.sock"), at("unix", "attach.sock"));
    let upstream = Upstream::start().await;
    let marks = at("sqlite", "marks.db");
    let mut serve = fencepost();
    serve.args(["serve", "--upstream", upstream.url(), "--listen", &fence]);
    serve.args(["--admin-listen", "off", "--store", &marks]);
    let mut serve = Process::start(&mut serve);
    eventually("the fencepost to listen", || async {
        dir.path().join("fence.sock").exists().then_some(())
    })
    .await;
    let script = "curl -sS --unix-socket $FENCEPOST_SOCKET -X PUT -d x $FENCEPOST_URL/orders/7";
    let arguments = ["--token", "41", "--listen", &here, "--", "sh", "-c", script];
    let ran = run(&mut attach(&fence, &arguments)).await;
    ran.assert(0, "");
    assert_eq!(upstream.only().token(), Some(41), "{}", ran.said);
    serve.signal(Signal::TERM);
    serve.exit().await;
}

/// The first address of the name, and the last, answer nothing.
#[tokio::test]
async fn the_fencepost_is_reached_at_the_address_that_answers() {
    return_unless!(is_possible());
    let upstream = Upstream::start().await;
    let listen = format!("listen: '{ALIVE}:0'");
    let config = Config::new(&upstream, &Store::sqlite()).with(&listen);
    let (proxy, _silent) = loop {
        let proxy = Proxy::start(&config).await;
        if let Some(silent) = silent(proxy.data().port()).await {
            break (proxy, silent);
        }
    };
    let dir = TempDir::new().expect("a temporary directory");
    let to = format!("http://{NAME}:{}", proxy.data().port());
    let command = attach(&to, &["--listen", "127.0.0.1:0", "--token", "41"]);
    let mut runner = resolving(&ADDRESSES, dir.path());
    runner.arg(command.get_program()).args(command.get_args());
    let sidecar = Sidecar::run(&mut runner).await;
    put("/orders/7").send(sidecar.at).await.assert_forwarded();
    assert_eq!(upstream.only().token(), Some(41));
}

/// The client knows the service by the port, or by the name that `http_proxy` leads here.
#[tokio::test]
async fn a_destination_on_the_host_of_the_request_stays_on_its_host() {
    let routes = "routes: [{ path: '/dav/{*path}', resource: dav, methods: [PUT, MOVE] },
        { path: '/kits/{*path}', resource: kits, methods: [PUT, MOVE] }]";
    let (upstream, proxy) = crate::support::fenced(routes).await;
    let names = ["--token", "41", "--http-proxy=dav.test:80"];
    let sidecar = Sidecar::start(&url(&proxy), &names).await;
    let (at, there) = (sidecar.at.to_string(), url(&proxy));
    let here = format!("http://{at}");
    let mv = |target: &str, host: &str, destinations: &str| {
        let request = request("MOVE", target).host(Some(host));
        let add = |all: Request, one: &str| all.header("Destination", one);
        destinations.split_whitespace().fold(request, add)
    };
    let proxied = "http://dav.test/dav/a";
    for (target, host, destination) in [
        ("/dav/a", &*at, &*format!("{here}/dav/b%20c")),
        ("/dav/a", &at, "/dav/b%20c"),
        (proxied, "dav.test", "HTTP://Dav.test/dav/b%20c"),
        ("/dav/a", "dav.test", "HTTP://Dav.test/dav/b%20c"),
    ] {
        let answer = mv(target, host, destination).send(sidecar.at).await;
        answer.assert_forwarded();
        let last = upstream.last();
        let arrived = last.head.get("destination").expect("one");
        let path = arrived.strip_prefix(&there).unwrap_or(arrived);
        assert_eq!(path, "/dav/b%20c", "{arrived}");
        assert_eq!(last.head.get("host"), there.strip_prefix("http://"));
    }
    // Another host, another resource, two of them.
    let count = upstream.count();
    for destinations in [
        "http://elsewhere.test/dav/b",
        "HERE.test/dav/b",
        "http://user@AT/dav/b",
        "https://AT/dav/b",
        "HERE/kits/b",
        "HERE/dav/../kits/b",
        "HERE/dav/b?c",
        "HERE",
        "HERE/dav/b HERE/dav/c",
        "",
    ] {
        let destinations = destinations.replace("HERE", &here).replace("AT", &at);
        let answer = mv("/dav/a", &at, &destinations).send(sidecar.at).await;
        answer.assert_problem(400, "ambiguous-request");
    }
    assert_eq!(upstream.count(), count);
}

/// As nginx's `proxy_redirect`: the client would go on past attach, without a token.
#[tokio::test]
async fn a_location_on_the_host_of_the_fencepost_is_on_the_clients() {
    let (upstream, proxy, sidecar) = held().await;
    let (here, there) = (format!("http://{}", sidecar.at), url(&proxy));
    let other = format!("{there}.test/orders/8");
    for (location, seen) in [
        (&*format!("{there}/orders/8"), &*format!("{here}/orders/8")),
        (&other, &other),
        ("http://elsewhere.test/a", "http://elsewhere.test/a"),
        ("/orders/8", "/orders/8"),
    ] {
        let fields = format!("Location: {location}\r\nContent-Location: {location}\r\n");
        upstream.next([Step::answer("201 Created", &fields, "made")]);
        let request = post("/orders/7").host(Some(&sidecar.at.to_string()));
        let answer = request.send(sidecar.at).await;
        for name in ["location", "content-location"] {
            assert_eq!(answer.header(name), Some(seen));
        }
    }
}
