//! Bodies on their way out, and answers that come before their end.

use std::convert::Infallible;
use std::future::poll_fn;

use bytes::BytesMut;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;

use super::super::exchange::response_limits;
use super::*;
use crate::body::Received;
use crate::http1::content::{ContentReader, Framing};

/// A body with `part` arrived, and the client that may send more.
async fn begun(framing: &str, part: &[u8]) -> (RequestBody, DuplexStream) {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let (tx, rx) = oneshot::channel();
    let tx = std::sync::Mutex::new(Some(tx));
    tokio::spawn(async move {
        let service = service_fn(move |request: http::Request<Incoming>| {
            let tx = tx.lock().expect("not poisoned").take();
            let _ = tx.expect("one request").send(request.into_body());
            async {
                std::future::pending::<Result<http::Response<Empty<Bytes>>, Infallible>>().await
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        let _ = connection
            .serve_connection(TokioIo::new(server), service)
            .await;
    });
    let head = format!("PUT / HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("room");
    client.write_all(part).await.expect("room");
    // A body that hyper reads, whatever the version.
    let body = Received::Http2(rx.await.expect("a body"));
    (RequestBody::unlimited(body), client)
}

fn put(upload: RequestBody) -> UpstreamRequest {
    request(Method::PUT, upload)
}

/// Reads a chunked body to its end, and not beyond.
async fn read_chunked(socket: &mut TcpStream) -> (Vec<u8>, Option<http::HeaderMap>) {
    let mut reader = ContentReader::of_request(Framing::Chunked);
    let (mut buf, mut content) = (BytesMut::new(), Vec::new());
    while !reader.is_end() {
        buf.extend_from_slice(&[socket.read_u8().await.expect("more")]);
        let data = reader.take(&mut buf, &response_limits(1 << 10));
        content.extend_from_slice(&data.expect("no fault").unwrap_or_default());
    }
    (content, reader.take_trailers())
}

#[tokio::test]
async fn a_body_arrives_as_it_was_sent() {
    let long = "b".repeat(300_000);
    let sized = format!("content-length: {}", long.len());
    let chunk = format!("{:x}\r\n{long}\r\n0\r\nX-T: 1\r\n\r\n", long.len());
    for (framing, sent, chunked) in [
        (&*sized, long.as_bytes(), false),
        ("content-length: 3", b"abc", false),
        ("transfer-encoding: chunked", chunk.as_bytes(), true),
        ("transfer-encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n", true),
        ("transfer-encoding: chunked", b"0\r\n\r\n", true),
    ] {
        let bench = Bench::new().await;
        let (upload, _client) = begun(framing, sent).await;
        let served = async {
            let mut socket = bench.accept().await;
            let head = read_request(&mut socket).await.to_ascii_lowercase();
            assert!(head.contains(&format!("\r\n{framing}\r\n")), "{head}");
            let content = if chunked {
                let (content, trailers) = read_chunked(&mut socket).await;
                assert_eq!(trailers, None, "a request's trailers go nowhere");
                content
            } else {
                let mut content = vec![0; sent.len()];
                socket.read_exact(&mut content).await.expect("all of it");
                content
            };
            socket.write_all(OK).await.expect("written");
            (content, socket)
        };
        let (response, (content, _socket)) = tokio::join!(bench.send(put(upload)), served);
        assert_eq!(whole(response.expect("a head")).await, Some(b"ok".to_vec()));
        let wanted: &[u8] = match (sent.len(), chunked) {
            (300_000.., _) => long.as_bytes(),
            (5, _) => b"",
            _ => b"abc",
        };
        assert!(content == wanted, "{} bytes", content.len());
        assert_eq!(bench.pool.idle(), 1);
    }
}

#[tokio::test]
async fn a_whole_answer_ends_its_upload() {
    let bench = Bench::new().await;
    let (upload, mut client) = begun("content-length: 10", b"hello").await;
    let served = bench.serve(b"hello", OK);
    let (response, socket) = tokio::join!(bench.send(put(upload)), served);
    assert_eq!(whole(response.expect("a head")).await, Some(b"ok".to_vec()));
    let _ = client.write_all(b"world").await;
    ends(socket).await;
    assert_eq!(bench.pool.idle(), 0);
}

/// The client reads nothing before it has sent all.
#[tokio::test]
async fn an_upload_goes_on_though_nobody_reads_its_answer() {
    let bench = Bench::new().await;
    let (upload, mut client) = begun("content-length: 10", b"hello").await;
    let served = bench.serve(b"hello", &OK[..OK.len() - 1]);
    let (response, mut socket) = tokio::join!(bench.send(put(upload)), served);
    let mut response = response.expect("a head");
    client.write_all(b"world").await.expect("room");
    tokio::select! {
        error = poll_fn(|cx| response.body.poll_upload(cx)) => panic!("{error}"),
        _ = read_until(&mut socket, b"world") => {}
    }
    socket.write_all(b"k").await.expect("written");
    assert_eq!(whole(response).await, Some(b"ok".to_vec()));
    bench.until_idle(1).await;
}

#[tokio::test]
async fn an_answer_that_nobody_wants_ends_its_upload() {
    let bench = Bench::new().await;
    let (upload, _client) = begun("content-length: 10", b"hello").await;
    let served = bench.serve(b"hello", &OK[..OK.len() - 1]);
    let (response, socket) = tokio::join!(bench.send(put(upload)), served);
    drop(response.expect("a head"));
    ends(socket).await;
    assert_eq!(bench.pool.idle(), 0);
}

#[tokio::test]
async fn an_upload_that_breaks_off_breaks_its_answer() {
    for answered in [false, true] {
        let bench = Bench::new().await;
        let (upload, client) = begun("content-length: 10", b"hello").await;
        let served = async {
            let mut socket = bench.accept().await;
            read_until(&mut socket, b"hello").await;
            if answered {
                let part = &OK[..OK.len() - 1];
                socket.write_all(part).await.expect("written");
            } else {
                drop(client);
            }
            socket
        };
        let (response, socket) = tokio::join!(bench.send(put(upload)), served);
        match response {
            Ok(response) => assert_eq!(whole(response).await, None),
            Err(error) => assert!(matches!(error, SendError::Body(_)), "{error:?}"),
        }
        ends(socket).await;
    }
}

/// An upstream that refuses an upload says so and closes: its answer is passed on.
#[tokio::test]
async fn what_an_upstream_says_before_it_closes_is_heard() {
    let bench = Bench::new().await;
    let (upload, mut client) = begun("content-length: 10000000", b"hello").await;
    let answer = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
    let served = async {
        let mut socket = bench.serve(b"hello", answer).await;
        socket.shutdown().await.expect("open");
        socket
    };
    let (response, _socket) = tokio::join!(bench.send(put(upload)), served);
    let response = response.expect("a head");
    assert_eq!(response.status(), 413);
    let _ = client.write_all(b"more").await;
    assert_eq!(whole(response).await, Some(b"no".to_vec()));
    assert_eq!(bench.pool.idle(), 0);
}

/// The upstream switches protocols, and takes no more of the request: there is nothing to wait for.
#[tokio::test]
async fn a_switch_in_the_middle_of_a_request_that_is_taken_no_further_is_an_end() {
    let bench = Bench::new().await;
    // More than the kernel takes.
    let body = Received::Whole(Bytes::from(vec![b'x'; 64 << 20]));
    let mut asked = put(RequestBody::unlimited(body));
    asked.head.fields.append("upgrade", "x");
    let served = async {
        let mut socket = bench.accept().await;
        read_until(&mut socket, b"\r\n\r\n").await;
        // Both at once. The close resets, since unread bytes are left.
        let answer = b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
        assert_eq!(socket.try_write(answer).expect("room"), answer.len());
    };
    let pending = Box::new(Http1Exchange::new(Arc::clone(&bench.pool), asked));
    // In a task of its own: another one's timer would have it look again.
    let sent = tokio::spawn(pending.response());
    let (response, ()) = tokio::join!(tokio::time::timeout(LONG, sent), served);
    let response = response.expect("in time").expect("no panic");
    assert!(matches!(response, Err(SendError::Broken(_))));
}

#[tokio::test]
async fn a_body_that_is_not_as_long_as_it_says_breaks_the_request_and_the_reason_is_said() {
    let bench = Bench::new().await;
    let (upload, _client) = begun("content-length: 3", b"abc").await;
    let mut request = put(upload);
    request.head.fields.append("content-length", "5");
    let Err(SendError::Broken(why)) = bench.send(request).await else {
        panic!("it is broken off");
    };
    assert_eq!(why, "the body is not as long as its Content-Length says");
}
