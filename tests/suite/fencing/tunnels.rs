//! Tunnels: only routes that do not fence open one, and none carries HTTP.

use crate::support::{Request, Step, fenced, get, put};

const MORE: &str = "{ barrier: { wait: 1s, settle: 300s }, routes: [\
     { path: '/orders/{id}', resource: 'order:{id}' }, { path: /chat, mode: bypass },\
     { path: '/ignored/{id}', resource: 'i:{id}', safe_methods: ignored }] }";

fn asking(request: Request) -> Request {
    request
        .header("Connection", "keep-alive, Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

#[tokio::test]
async fn a_fenced_route_opens_none() {
    let (upstream, proxy) = fenced(MORE).await;
    for request in [
        asking(get("/orders/7")),
        asking(get("/orders/7").token(1)),
        asking(put("/orders/7").token(1)),
        asking(get("/ignored/7")),
        // Some servers need no `Connection`.
        get("/orders/7").token(1).header("Upgrade", "websocket"),
        get("/orders/7").header("Upgrade", "h2c, websocket"),
    ] {
        proxy.refuse(request, 400, "upgrade-refused").await;
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.token("order:7").await, None, "nothing raised a mark");
}

/// In a tunnel it would carry requests that nobody has judged.
#[tokio::test]
async fn no_draft_of_http_is_ever_asked_for() {
    let (upstream, proxy) = fenced(MORE).await;
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
        // On a fenced route too, a read that asks for nothing is an ordinary one.
        let fenced = passed.is_none().then_some("/orders/7");
        for path in ["/chat"].into_iter().chain(fenced) {
            let request = get(path)
                .header("Connection", "Upgrade, HTTP2-Settings")
                .header("Upgrade", asked)
                .header("HTTP2-Settings", "AAMAAABkAAQAAP__");
            proxy.send(request).await.assert_forwarded();
            let head = upstream.last().head;
            assert_eq!(head.get("upgrade"), passed, "{asked}");
            assert_eq!(head.get("http2-settings"), None, "{asked}");
        }
    }
}

/// Nobody has asked for it.
#[tokio::test]
async fn a_switch_to_what_was_not_asked_for_is_none() {
    let (upstream, proxy) = fenced(MORE).await;
    let to = |protocol: &str| {
        Step::raw(&format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{protocol}\r\n"
        ))
    };
    let h2c = put("/orders/2")
        .header("Connection", "upgrade")
        .header("Upgrade", "h2c");
    for (arrived, (request, answer)) in (1..).zip([
        (asking(get("/chat")), to("Upgrade: h2c\r\n")),
        (asking(get("/chat")), to("Upgrade: websocket, h2c\r\n")),
        (asking(get("/chat")), to("")),
        (h2c.token(1), to("Upgrade: h2c\r\n")),
    ]) {
        upstream.next([answer, Step::Echo]);
        proxy.refuse(request, 502, "outcome-unknown").await;
        upstream
            .until("the connection's end", |all| {
                all.len() == arrived && all[arrived - 1].left
            })
            .await;
        assert!(upstream.last().body.is_empty(), "nothing more goes over");
    }
    let newer = put("/orders/2").token(2);
    proxy.refuse(newer, 503, "older-in-flight").await;
    assert_eq!(upstream.count(), 4);
}
