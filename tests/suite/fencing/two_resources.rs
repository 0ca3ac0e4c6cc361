//! One request, one resource: what a request names beside its target has the target's key, or the
//! request is refused, whatever route it comes by (guarantees G1 and G6).

use crate::support::{Request, fenced, post, request};

const ROUTES: &str = "{ routes: [
    { path: '/files/{name}/{*rest}', resource: 'file:{name}', methods: [PUT, DELETE, COPY, MOVE] },
    { path: '/copies/{name}', resource: 'file:{name}' },
    { path: '/hex/{name}', resource: 'file:{name}', token: { format: hex } },
    { path: '/once/{name}', resource: 'file:{name}', reuse: once },
    { path: '/odd/{name}', resource: 'file:{name}', allow: [semicolon] },
    { path: '/by/query', resource: 'file:{query.name}', methods: [MOVE] },
    { path: '/plain/{name}', resource: 'plain:{name}' },
    { path: '/seen/{name}', resource: 'seen:{name}', mode: observe },
    { path: '/open/{*rest}', mode: bypass },
] }";

pub fn to(destination: &str, method: &str, target: &str) -> Request {
    request(method, target).header("Destination", destination)
}

#[tokio::test]
async fn a_destination_with_the_same_key_is_written() {
    let (upstream, proxy) = fenced(ROUTES).await;
    let destinations = "/files/a /files/a/whole /files/a/whole/ /files/%61/whole \
        http://app.test/files/a/whole HTTPS://App.Test/files/a/whole";
    for destination in destinations.split(' ') {
        for method in ["COPY", "MOVE"] {
            let request = to(destination, method, "/files/a/part").token(7);
            proxy.forward(request).await;
            let last = upstream.last();
            assert_eq!(last.head.get("destination"), Some(destination));
            assert_eq!(last.resource(), Some("file:a"));
        }
    }
    // The host is compared with the request's own, port included.
    let elsewhere = to("http://app.test:81/files/a", "MOVE", "/files/a/part");
    let elsewhere = elsewhere.host(Some("app.test:81"));
    proxy.forward(elsewhere.token(7)).await;
}

#[tokio::test]
async fn any_other_destination_is_refused() {
    let (upstream, proxy) = fenced(ROUTES).await;
    for destinations in [
        "/files/b | /files/%62 | http://app.test/files/b/x",
        // Fenced by another key, not fenced, or by no route.
        "/plain/a | /open/a | /seen/a | /elsewhere",
        // Another route reads tokens or its key in another way, or may.
        "/copies/a | /hex/a | /once/a",
        // A query is in no Destination.
        "/by/query | /files/a?x=1 | /files/a? | /files/a#x",
        // Not on this host, or not sure to be.
        "http://other.test/files/a | http://app.test:80/files/a",
        "http://user@app.test/files/a | //app.test/files/a",
        // More than one reading.
        "/files/b/../a | /files/a//x | /files/a;x | /odd/a%2Fb | /files%2Fa | /files/a%",
        "/files/\u{e9} | /files/a:80/files/a | /files/a%3a80/files/a",
        // Neither URI nor path.
        " | * | files/a | http://app.test | http:/files/a | ftp://app.test/files/a",
        "</files/a> | /files/a, /files/a | /files/a x",
    ] {
        for destination in destinations.split(" | ") {
            for method in ["COPY", "MOVE"] {
                let moved = to(destination, method, "/files/a").token(7);
                let problem = proxy.refuse(moved, 400, "ambiguous-request").await;
                let detail = problem["detail"].as_str().expect("a detail");
                assert!(detail.contains("Destination"), "{destination}: {detail}");
            }
        }
    }
    for request in [
        request("MOVE", "/files/a"),
        to("/files/a", "MOVE", "/files/a").header("Destination", "/files/a"),
        to("/files/a", "MOVE", "/files/a").header("Destination", "/files/b"),
        to("/files/a", "MOVE", "/files/a").header("Connection", "destination"),
        to("/files/a", "MOVE", "/by/query?name=a"),
    ] {
        let request = request.token(7);
        proxy.refuse(request, 400, "ambiguous-request").await;
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.token("file:a").await, None, "nothing raised a mark");
}

#[tokio::test]
async fn what_is_fenced_is_not_written_by_another_route() {
    let (upstream, proxy) = fenced(ROUTES).await;
    for route in ["/open/x", "/seen/x"] {
        for destination in [
            "/files/a",
            "http://app.test/files/a",
            // What no route takes may hold what is fenced, or be it to the upstream.
            "/plain/",
            // CouchDB and Swift read a path below a folder, others at the root, and nginx takes from it
            // what it takes from the target.
            "files/a",
            "/open/b",
            "http://app.test/open/b",
        ] {
            for method in ["COPY", "MOVE", "move", "Copy"] {
                let moved = to(destination, method, route).token(7);
                proxy.refuse(moved, 400, "ambiguous-request").await;
            }
        }
    }
    assert_eq!(upstream.count(), 0);
    // Fields of this name mean nothing to other methods.
    let request = post("/open/a").header("Destination", "/files/a");
    proxy.forward(request).await;
    let elsewhere = to("/open/a", "MOVE", "/elsewhere").token(1);
    proxy.refuse(elsewhere, 404, "no-route").await;
}

/// The operator vouches for them.
#[tokio::test]
async fn a_route_may_leave_its_destinations_unchecked() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: '/open/{*rest}', mode: bypass, allow: [any-destination] },\
         { path: '/db/{name}/{*rest}', resource: 'db:{name}', methods: [PUT, COPY],\
           allow: [any-destination] },\
         { path: '/files/{name}', resource: 'file:{name}', methods: [PUT, COPY] }]",
    )
    .await;
    for destination in ["user:7", "/files/a", "b?rev=1-967a"] {
        proxy.forward(to(destination, "COPY", "/open/a")).await;
        let fenced = to(destination, "COPY", "/db/x/a").token(7);
        proxy.forward(fenced).await;
    }
    let put = to("/files/b", "PUT", "/files/b").token(9);
    proxy.forward(put).await;
    assert_eq!(upstream.count(), 7);
    for refused in [
        to("/files/b", "COPY", "/files/a").token(7),
        request("COPY", "/open/a"),
        to("b", "COPY", "/open/a").header("Destination", "c"),
        to("b", "COPY", "/open/a").header("Connection", "destination"),
        to("/files/a", "COPY", "/files/a")
            .token(7)
            .header("Destination-Account", "other"),
    ] {
        proxy.refuse(refused, 400, "ambiguous-request").await;
    }
    let bind = request("BIND", "/open/a");
    proxy.refuse(bind, 405, "method-not-allowed").await;
}

/// A server that reads such a field does what it names.
#[tokio::test]
async fn a_method_in_a_header_names_a_second_resource_too() {
    let (upstream, proxy) = fenced(ROUTES).await;
    for name in ["X-HTTP-Method-Override", "X_HTTP_METHOD", "x-method"] {
        for value in ["MOVE", "move", "COPY, PUT", "PUT;MOVE"] {
            let of = |target: &str, destination: &str| {
                let post = post(target).header(name, value).token(7);
                post.header("Destination", destination)
            };
            for refused in [of("/open/x", "/files/a"), of("/seen/x", "/files/a")] {
                proxy.refuse(refused, 400, "ambiguous-request").await;
            }
            let refused = of("/plain/a", "/files/a");
            proxy.refuse(refused, 405, "method-not-allowed").await;
        }
        let put = to("/files/b", "PUT", "/files/a").header(name, "MOVE");
        proxy.refuse(put.token(7), 400, "ambiguous-request").await;
        assert_eq!(upstream.count(), 0);
    }
    for forwarded in [
        to("/files/a/b", "PUT", "/files/a").header("X-Method", "MOVE"),
        post("/plain/a").header("X-HTTP-Method-Override", "PUT"),
        post("/open/x").header("X-Method", "payment-link"),
    ] {
        proxy.forward(forwarded.token(7)).await;
    }
}

#[tokio::test]
async fn what_names_others_in_its_body_is_refused_on_every_route() {
    let (upstream, proxy) = fenced(ROUTES).await;
    for method in ["BIND", "REBIND", "UNBIND", "LINK", "UNLINK", "unbind"] {
        for target in ["/files/a", "/plain/a", "/open/a", "/seen/a"] {
            let plain = request(method, target);
            let hidden = post(target).header("X-HTTP-Method-Override", method);
            for refused in [plain.token(7), hidden.token(7)] {
                proxy.refuse(refused, 405, "method-not-allowed").await;
            }
        }
    }
    assert_eq!(upstream.count(), 0);

    let (upstream, proxy) = fenced("routes: [{ path: '/{*all}', mode: bypass }]").await;
    proxy.forward(request("BIND", "/a")).await;
    let away = to("http://other.test/x", "MOVE", "/a");
    proxy.forward(away).await;
    assert_eq!(upstream.count(), 2, "nothing enforces, so all passes");
}

#[tokio::test]
async fn observe_counts_what_it_would_refuse() {
    let (upstream, proxy) = fenced(
        "routes: [{ path: '/o/{id}/{*rest}', resource: 'o:{id}', mode: observe, methods: [PUT, MOVE] }]",
    )
    .await;
    for request in [
        to("/o/2", "MOVE", "/o/1"),
        to("/elsewhere", "MOVE", "/o/1"),
        request("MOVE", "/o/1"),
        to("/o/1/x", "MOVE", "/o/1"),
        to("/o/1", "COPY", "/o/1"),
        request("BIND", "/o/1"),
    ] {
        proxy.forward(request.token(7)).await;
    }
    for (outcome, count) in [
        ("observed-ambiguous-request", 3),
        ("advanced", 1),
        ("observed-method-not-allowed", 2),
    ] {
        proxy.until_outcome(outcome, count).await;
    }
    assert_eq!(upstream.count(), 6);
}

/// Two copies of one thing are two operations.
#[tokio::test]
async fn an_idempotency_key_tells_destinations_apart() {
    let (upstream, proxy) = fenced(ROUTES).await;
    for destination in ["/files/a/1", "/files/a/2", "/files/a/1"] {
        let copy = to(destination, "COPY", "/files/a").token(7);
        proxy.forward(copy).await;
    }
    for method in ["COPY", "MOVE"] {
        let put = to("/files/a/1", "PUT", "/files/a").header("X-Method", method);
        proxy.forward(put.token(7)).await;
    }
    let arrivals = upstream.arrivals();
    let key = |at: usize| arrivals[at].head.get("idempotency-key").expect("a key");
    assert_ne!(key(0), key(1));
    assert_eq!(key(0), key(2));
    assert_ne!(key(3), key(4));
}
