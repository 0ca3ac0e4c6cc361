//! Tunnels on fenced routes: judged at their opening, in flight while they live, closed at once
//! when a newer token is known (guarantee G2).

use std::time::{Duration, Instant};

use crate::support::client::Exchange;
use crate::support::{
    Config, Gate, Pair, Proxy, Request, Step, Store, Upstream, eventually, forwarded, get,
    or_return, over_both_stores, post, put, soon,
};

const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const ROUTE: &str = "upgrade: allow";
/// Nothing drains or settles within a test.
const NEVER: &str = "barrier: { wait: 1s, grace: 300s, settle: 300s }";

async fn fenced(more: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start(&config.with(more).route(ROUTE)).await;
    (upstream, proxy)
}

fn opening(path: &str) -> Request {
    get(path)
        .header("Connection", "keep-alive, Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// Opens a tunnel with this token; the upstream's script begins with its 101.
async fn open(proxy: &Proxy, token: u64) -> Exchange {
    let mut tunnel = proxy.begin(&opening("/orders/7").token(token), b"").await;
    let head = tunnel.any_head().await;
    assert_eq!(
        (head.word(1), head.get("upgrade"), head.get("connection")),
        ("101", Some("websocket"), Some("upgrade"))
    );
    tunnel
}

/// Sends bytes through a tunnel whose other end sends them back.
async fn echoed(tunnel: &mut Exchange, bytes: &[u8]) {
    tunnel.wire.send(bytes).await.expect("taken");
    let mut back = Vec::new();
    while back.len() < bytes.len() {
        let more = soon("the echo", tunnel.wire.some()).await.expect("open");
        assert!(!more.is_empty(), "the tunnel stays open");
        back.extend(more);
    }
    assert_eq!(back, bytes);
}

/// Waits until the tunnel is closed towards the client; returns what came before.
async fn closed(tunnel: &mut Exchange) -> Vec<u8> {
    let mut last = Vec::new();
    while let Ok(more) = soon("the end of the tunnel", tunnel.wire.some()).await
        && !more.is_empty()
    {
        last.extend(more);
    }
    last
}

over_both_stores! {
    async fn a_newer_token_closes_the_tunnel_and_waits_until_it_has_settled(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store)
            .with("barrier: { wait: 25s, grace: 300s, settle: 2s }")
            .route(ROUTE);
        let proxy = Proxy::start(&config).await;
        upstream.on_token(41, [Step::raw(SWITCHED), Step::Echo]);
        let mut zombie = open(&proxy, 41).await;
        echoed(&mut zombie, b"\x81\x05hello").await;
        // An equal token passes beside it.
        proxy.send(put("/orders/7").token(41)).await.assert_forwarded();
        let asked = Instant::now();
        let newer = proxy.start_request(put("/orders/7").token(42));
        assert_eq!(closed(&mut zombie).await, b"");
        forwarded(newer).await;
        upstream.until("the tunnel's end", |all| all[0].left).await;
        let all = upstream.arrivals();
        assert_eq!(all[0].body, b"\x81\x05hello");
        // Since before the tunnel was closed: the upstream may see that some time after it was
        // done.
        let waited = all[2].began - asked;
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
        upstream.assert_no_overtaking();
        proxy.stale(opening("/orders/7").token(41)).await;
    }

    async fn a_claim_closes_the_tunnel(store: Store) {
        let upstream = Upstream::start().await;
        let proxy = Proxy::start(&Config::new(&upstream, &store).with(NEVER).route(ROUTE)).await;
        upstream.next([Step::raw(SWITCHED), Step::Echo]);
        let mut zombie = open(&proxy, 41).await;
        echoed(&mut zombie, b"one").await;
        let claim = post("/.well-known/fencing/claim").token(42).header("X-Fencing-Resource", "order:7");
        proxy.refuse(claim, 503, "older-in-flight").await;
        assert_eq!(closed(&mut zombie).await, b"");
        upstream.until("the tunnel's end", |all| all[0].left).await;
    }

    async fn what_the_upstream_ends_by_itself_has_settled(store: Store) {
        let upstream = Upstream::start().await;
        let proxy = Proxy::start(&Config::new(&upstream, &store).with(NEVER).route(ROUTE)).await;
        let gate = Gate::shut();
        upstream.next([
            Step::raw(SWITCHED),
            Step::Wait(gate.clone()),
            Step::raw("the end"),
            Step::Close,
        ]);
        let mut tunnel = open(&proxy, 41).await;
        let labels = [("route", "/orders/{id}")];
        proxy.until_metric("fencepost_upstream_in_flight", &labels, |count| (count - 1.0).abs() < 0.1).await;
        gate.open();
        assert_eq!(closed(&mut tunnel).await, b"the end");
        drop(tunnel);
        proxy.until_metric("fencepost_upstream_in_flight", &labels, |count| count < 0.1).await;
        let mark = proxy.mark("order:7").await.expect("a mark");
        assert_eq!((&mark["in_flight"], mark["unknown"].as_array().map(Vec::len)), (&0.into(), Some(0)));
        proxy.forward(put("/orders/7").token(42)).await;
    }

    async fn what_its_client_ends_is_unknown(store: Store) {
        let upstream = Upstream::start().await;
        let proxy = Proxy::start(&Config::new(&upstream, &store).with(NEVER).route(ROUTE)).await;
        upstream.next([Step::raw(SWITCHED), Step::Echo]);
        let mut tunnel = open(&proxy, 41).await;
        echoed(&mut tunnel, b"pay 7").await;
        drop(tunnel);
        proxy.until_metric("fencepost_unknown_outcomes", &[], |count| (count - 1.0).abs() < 0.1).await;
        upstream.until("the tunnel's end", |all| all[0].left).await;
        proxy.forward(put("/orders/7").token(41)).await;
        proxy.refuse(put("/orders/7").token(42), 503, "older-in-flight").await;
        assert_eq!(upstream.count(), 2);
    }

    async fn a_stop_closes_tunnels_and_leaves_them_recorded(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with(NEVER).route(ROUTE);
        let mut proxy = Proxy::start(&config).await;
        upstream.next([Step::raw(SWITCHED), Step::Echo]);
        let mut tunnel = open(&proxy, 41).await;
        echoed(&mut tunnel, b"one").await;
        proxy.stop().await;
        assert_eq!(closed(&mut tunnel).await, b"");
        upstream.until("the tunnel's end", |all| all[0].left).await;
        let again = Proxy::start(&config).await;
        again.refuse(put("/orders/7").token(42), 503, "older-in-flight").await;
        again.stale(put("/orders/7").token(41)).await;
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn an_opening_is_judged_like_a_write() {
    let more = "{ safe_methods: ignored, routes: [\
         { path: '/orders/{id}', resource: 'order:{id}', upgrade: allow, reuse: once, methods: [PUT] },\
         { path: '/closed/{id}', resource: 'closed:{id}' }] }";
    let (upstream, proxy) = Proxy::before(&Store::sqlite(), more).await;
    for (request, status, kind) in [
        (opening("/orders/7"), 428, "token-required"),
        (opening("/orders/7").token("x"), 400, "malformed-token"),
        (opening("/closed/7").token(1), 400, "upgrade-refused"),
        (
            get("/orders/7").token(1).header("Upgrade", "websocket"),
            400,
            "ambiguous-request",
        ),
    ] {
        proxy.refuse(request, status, kind).await;
    }
    assert_eq!(upstream.count(), 0);

    upstream.next([Step::raw(SWITCHED), Step::Echo]);
    let mut tunnel = open(&proxy, 5).await;
    let seen = upstream.only();
    assert_eq!(
        (seen.token(), seen.resource(), seen.method()),
        (Some(5), Some("order:7"), "GET")
    );
    for (name, value) in [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ] {
        assert_eq!(seen.head.get(name), Some(value), "{name}");
    }
    echoed(&mut tunnel, b"\0\xff\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
    // `reuse: once`: a tunnel writes, whatever the method that opens it.
    proxy
        .send(opening("/orders/7").token(5))
        .await
        .assert_problem(412, "stale-token");
    proxy.stale(opening("/orders/7").token(4)).await;
}

#[tokio::test]
async fn what_the_upstream_answers_otherwise_is_an_ordinary_response() {
    let (upstream, proxy) = fenced(NEVER).await;
    upstream.next([Step::answer("426 Upgrade Required", "", "no")]);
    let answer = proxy.send(opening("/orders/7").token(1)).await;
    assert_eq!((answer.status(), &*answer.text()), (426, "no"));
    // HTTP in a tunnel is not asked for: what is left is a read with a token.
    let h2c = get("/orders/7")
        .token(2)
        .header("Connection", "Upgrade, HTTP2-Settings")
        .header("Upgrade", "h2c")
        .header("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA");
    proxy.forward(h2c).await;
    let seen = upstream.last();
    for name in ["upgrade", "connection", "http2-settings"] {
        assert_eq!(seen.head.get(name), None, "{name}");
    }
    eventually("the connection to be used again", || async {
        let made = upstream.connections();
        proxy.forward(put("/orders/7").token(3)).await;
        (upstream.connections() == made).then_some(())
    })
    .await;
}

/// In a tunnel it would carry requests that nobody has judged.
#[tokio::test]
async fn no_draft_of_http_is_ever_asked_for() {
    let (upstream, proxy) = fenced("{}").await;
    for (asked, passed) in [
        ("h2c-14", None),
        ("H2C-17", None),
        ("h2-16", None),
        ("h3-29", None),
        ("spdy/3.1", None),
        ("HTTP/3", None),
        ("PTTH/1.0", None),
        ("h2c-14, websocket", Some("websocket")),
    ] {
        // An opening needs a token here; a read that asks for nothing needs none.
        let without = passed.is_none().then_some(false);
        for fenced in [true].into_iter().chain(without) {
            let mut request = get("/orders/7")
                .header("Connection", "Upgrade, HTTP2-Settings")
                .header("Upgrade", asked)
                .header("HTTP2-Settings", "AAMAAABkAAQAAP__");
            if fenced {
                request = request.token(1);
            }
            proxy.forward(request).await;
            let head = upstream.last().head;
            assert_eq!(head.get("upgrade"), passed, "{asked}");
            assert_eq!(head.get("http2-settings"), None, "{asked}");
        }
    }
}

#[tokio::test]
async fn a_switch_to_what_was_not_asked_for_is_none() {
    let (upstream, proxy) = fenced(NEVER).await;
    let to = |protocol: &str| {
        Step::raw(&format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{protocol}\r\n"
        ))
    };
    for (order, (request, answer)) in [
        (opening("/orders/1"), to("Upgrade: h2c\r\n")),
        (opening("/orders/2"), to("Upgrade: websocket, h2c\r\n")),
        (opening("/orders/3"), to("")),
        (put("/orders/4"), to("Upgrade: websocket\r\n")),
        (
            put("/orders/5")
                .header("Connection", "upgrade")
                .header("Upgrade", "h2c"),
            to("Upgrade: h2c\r\n"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.next([answer, Step::Echo]);
        let answer = proxy.send(request.token(1)).await;
        answer.assert_problem(502, "outcome-unknown");
        upstream
            .until("the connection's end", |all| {
                all.len() == order + 1 && all[order].left
            })
            .await;
        assert!(upstream.last().body.is_empty(), "nothing more goes over");
        let path = format!("/orders/{}", order + 1);
        proxy
            .refuse(put(&path).token(2), 503, "older-in-flight")
            .await;
    }
    assert_eq!(upstream.count(), 5);
}

#[tokio::test]
async fn a_newer_token_at_one_proxy_closes_the_tunnel_of_the_other() {
    let pair = or_return!(upgrading_pair("barrier: { wait: 25s, grace: 300s, settle: 2s }").await);
    pair.upstream
        .on_token(41, [Step::raw(SWITCHED), Step::Echo]);
    let mut zombie = open(&pair.a, 41).await;
    echoed(&mut zombie, b"hello").await;
    let newer = pair.b.start_request(put("/orders/7").token(42));
    assert_eq!(closed(&mut zombie).await, b"");
    forwarded(newer).await;
    pair.upstream
        .until("the tunnel's end", |all| all[0].left)
        .await;
    pair.upstream.assert_no_overtaking();
}

#[tokio::test]
async fn not_a_byte_goes_through_a_tunnel_under_a_lapsed_lease() {
    let pair = or_return!(
        upgrading_pair("store: { lease: 4s }, barrier: { wait: 1s, settle: 300s }").await
    );
    pair.upstream.next([Step::raw(SWITCHED), Step::Echo]);
    let mut zombie = open(&pair.a, 41).await;
    echoed(&mut zombie, b"in time").await;
    pair.way_of_a.refuse(true);
    pair.way_of_a.cut_all();
    pair.a
        .until_metric("fencepost_lease_remaining_seconds", &[], |left| left <= 0.0)
        .await;
    zombie.wire.send(b"too late").await.expect("taken");
    assert_eq!(closed(&mut zombie).await, b"");
    pair.upstream
        .until("the tunnel's end", |all| all[0].left)
        .await;
    assert_eq!(pair.upstream.only().text(), "in time");
}

/// Two proxies whose route opens tunnels. `more`: blocks of the configuration, without braces
/// around them.
async fn upgrading_pair(more: &str) -> Option<Pair> {
    let routes = "routes: [{ path: '/orders/{id}', resource: 'order:{id}', upgrade: allow }]";
    Pair::start(&format!("{{ {more}, {routes} }}")).await
}
