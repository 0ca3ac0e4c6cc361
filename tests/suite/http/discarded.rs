//! The parts of a request that end at the proxy: its trailers, with their announcement, and
//! `Expect`. A server that does not read trailers takes them for the next request.

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::bare::BareUpstream;
use crate::support::http2::{
    END_HEADERS, END_STREAM, HEADERS, Http2, Outcome, block, fenced_head, frame,
};
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::python::{program, python};
use crate::support::wait::soon;
use crate::support::{Config, Proxy, Request, Store, eventually, or_return, post, put};

/// A fenced route, one that is observed, and one that is bypassed.
const ROUTES: &str = "routes: [{ path: '/orders/{id}', resource: 'order:{id}' }, \
     { path: '/seen/{id}', resource: 'seen:{id}', mode: observe }, { path: '/open/{id}', mode: bypass }]";
const TARGETS: [&str; 3] = ["/orders/7", "/seen/7", "/open/7"];

/// Sent as the last part of a request, this is a request line to a server that reads no trailers.
const TRAILER: (&str, &str) = ("x", "/f/victim HTTP/1.1");

fn config(url: &str) -> Config {
    Config::to(url, &Store::sqlite()).with(ROUTES)
}

/// An upload with a trailer over HTTP/1.
fn upload(target: &str) -> Request {
    let (name, value) = TRAILER;
    put(target)
        .token(1)
        .header("Trailer", "X")
        .header("TE", "trailers")
        .chunks(&[b"abc"], &format!("{name}: {value}\r\n"))
}

/// The same over HTTP/2; returns the status of the answer.
async fn upload_http2(to: std::net::SocketAddr, target: &str) -> Outcome {
    let mut client = Http2::open(to).await;
    let mut fields = fenced_head(target, "1");
    fields.push(("trailer", b"x"));
    fields.push(("te", b"trailers"));
    let stream = client.head(&fields, false).await;
    client.data(stream, b"abc", false).await;
    let trailers = block(&[(TRAILER.0, TRAILER.1.as_bytes())]);
    let end = frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
    client.send(&end).await.expect("it is taken");
    client.answer(stream).await
}

/// Sends the upload over both versions, and runs `arrives` for each.
async fn both_ways<A: Future<Output = ()>>(proxy: &Proxy, target: &str, arrives: impl Fn() -> A) {
    let sent = proxy.start_request(upload(target));
    soon("the upload over HTTP/1", arrives()).await;
    sent.await.expect("no panic").assert_forwarded();
    let (answer, ()) = tokio::join!(
        upload_http2(proxy.data(), target),
        soon("the upload over HTTP/2", arrives())
    );
    assert_eq!(answer, Outcome::Status(200), "{target} over HTTP/2");
}

/// Reads a request that is chunked to the end of what has come, and answers it.
async fn chunked_arrival(mut stream: TcpStream) {
    let mut arrived = Vec::new();
    loop {
        stream.read_buf(&mut arrived).await.expect("it is open");
        let last = arrived.windows(5).any(|bytes| bytes == b"\r\n0\r\n");
        if last && arrived.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(answer).await.expect("it is open");
    let text = String::from_utf8_lossy(&arrived).to_lowercase();
    assert!(text.ends_with("\r\n3\r\nabc\r\n0\r\n\r\n"), "{text}");
    for name in ["\r\ntrailer:", "\r\nte:", "victim"] {
        assert!(!text.contains(name), "{name:?} in {text}");
    }
}

#[tokio::test]
async fn no_byte_of_a_requests_trailers_arrives_over_http1() {
    let upstream = BareUpstream::start().await;
    let proxy = Proxy::start(&config(&upstream.url())).await;
    for target in TARGETS {
        both_ways(&proxy, target, || async {
            chunked_arrival(upstream.accept().await).await;
        })
        .await;
    }
}

/// Serves one request over HTTP/2.
async fn http2_arrival(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.expect("a preface");
    let accepted = connection.accept().await.expect("a request");
    let (request, mut respond) = accepted.expect("a request");
    let served = tokio::spawn(async move {
        let (head, mut body) = request.into_parts();
        let mut content = Vec::new();
        while let Some(data) = body.data().await {
            content.extend_from_slice(&data.expect("data"));
        }
        assert_eq!(content, b"abc");
        let trailers = body.trailers().await.expect("a whole request");
        let answer = http::Response::new(());
        let mut answered = respond.send_response(answer, false).expect("it is open");
        answered.send_data(Bytes::new(), true).expect("it is open");
        assert_eq!(trailers, None);
        assert!(!head.headers.contains_key("trailer"), "{:?}", head.headers);
        // It is about the response's trailers (RFC 9110, 10.1.4): gRPC needs it.
        assert_eq!(head.headers["te"], "trailers");
    });
    // Until the client has left, or another exchange could come.
    let driven = tokio::spawn(async move { while connection.accept().await.is_some() {} });
    served.await.expect("the request is as it should be");
    driven.abort();
}

#[tokio::test]
async fn no_byte_of_a_requests_trailers_arrives_over_http2() {
    let upstream = BareUpstream::start().await;
    for target in TARGETS {
        // A proxy each: the connection of the one before ends with its test.
        for http2 in [false, true] {
            let proxy = Proxy::start(&config(&upstream.h2c())).await;
            let serving = async { http2_arrival(upstream.accept().await).await };
            if http2 {
                let (answer, ()) = tokio::join!(upload_http2(proxy.data(), target), serving);
                assert_eq!(answer, Outcome::Status(200), "{target}");
            } else {
                let sent = proxy.start_request(upload(target));
                serving.await;
                sent.await.expect("no panic").assert_forwarded();
            }
        }
    }
}

#[tokio::test]
async fn no_byte_of_a_requests_trailers_passes_attach() {
    let upstream = BareUpstream::start().await;
    let mut command = fencepost();
    let to = upstream.url();
    command.args([
        "attach",
        "--to",
        &to,
        "--listen",
        "127.0.0.1:0",
        "--token",
        "1",
    ]);
    let process = Process::start(&mut command);
    let at: std::net::SocketAddr = eventually("attach to listen", || async {
        let lines = process.lines();
        let mut lines = lines.iter().flat_map(|line| serde_json::from_str(line));
        lines.find_map(|line: serde_json::Value| line["listen"].as_str()?.parse().ok())
    })
    .await;
    let (name, value) = TRAILER;
    let sent = put("/orders/7")
        .host(Some(&at.to_string()))
        .header("Trailer", "X")
        .chunks(&[b"abc"], &format!("{name}: {value}\r\n"))
        .start(at);
    chunked_arrival(upstream.accept().await).await;
    assert_eq!(sent.await.expect("no panic").status(), 200);
}

/// A server of WSGI that prints each request that it executes; `None` if Python has not what it
/// needs.
async fn python_server(name: &str) -> Option<(Process, String)> {
    let python = python()?;
    let port = free_port();
    let mut command = program(python, "suite/http/discarded/server.py");
    let mut process = Process::start(command.args([name, &port.to_string()]));
    process.listens_on(port).await;
    Some((process, format!("http://127.0.0.1:{port}")))
}

/// The requests that it has executed, up to the one of `last`.
async fn executed(process: &Process, last: &str) -> Vec<String> {
    eventually(&format!("{last} to be executed"), || async {
        let lines = process.lines().into_iter();
        let lines: Vec<String> = lines.filter(|line| line.starts_with("did ")).collect();
        lines
            .iter()
            .any(|line| line.contains(last))
            .then_some(lines)
    })
    .await
}

/// cheroot leaves the trailers of a chunked body in its buffer, and goes on with the next request
/// there.
#[tokio::test]
async fn a_server_that_reads_no_trailers_executes_none() {
    let (process, url) = or_return!(python_server("cheroot").await);
    let proxy = Proxy::start(&config(&url)).await;
    for target in TARGETS {
        proxy.send(upload(target)).await;
        assert_eq!(
            upload_http2(proxy.data(), target).await,
            Outcome::Status(200)
        );
    }
    let last = post("/open/last").body("x");
    proxy.forward(last).await;
    let done = executed(&process, "/open/last").await;
    let mut wanted: Vec<String> = TARGETS
        .iter()
        .flat_map(|target| [format!("did PUT {target}"), format!("did PUT {target}")])
        .collect();
    wanted.push("did POST /open/last".to_owned());
    assert_eq!(done, wanted);
}

#[tokio::test]
async fn an_expectation_ends_at_the_proxy() {
    let upstream = BareUpstream::start().await;
    let proxy = Proxy::start(&config(&upstream.url())).await;
    for target in TARGETS {
        for http2 in [false, true] {
            let request = put(target)
                .token(1)
                .header("Expect", "100-continue")
                .body("abc");
            let to = proxy.data();
            let sent = tokio::spawn(async move {
                if http2 {
                    request.send_http2(to).await
                } else {
                    request.send(to).await
                }
            });
            let mut wire = upstream.wire().await;
            let head = soon("a head", wire.head()).await;
            let head = head.expect("a request").expect("a head");
            assert_eq!(head.all("expect"), [""; 0], "{target}");
            let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = soon("the body", wire.body(head.request_framing(), |_| {})).await;
            wire.send(answer.as_bytes()).await.expect("it is open");
            assert_eq!(sent.await.expect("no panic").status(), 200, "{target}");
        }
    }
}

/// waitress never executes a request without content that expects `100 Continue`.
#[tokio::test]
async fn a_server_that_answers_expectations_itself_serves_the_request() {
    let (process, url) = or_return!(python_server("waitress").await);
    let proxy = Proxy::start(&config(&url).with("upstream: { timeout: 5s }")).await;
    for target in TARGETS {
        for content in ["", "abc"] {
            let request = put(target).token(1).header("Expect", "100-continue");
            proxy.forward(request.body(content)).await;
        }
        let both = vec![format!("did PUT {target}"); 2];
        eventually("both to be executed", || async {
            let done = executed(&process, target).await;
            done.ends_with(&both).then_some(())
        })
        .await;
    }
}
