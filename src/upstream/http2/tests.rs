//! What the library has of a request when its answer is whole.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, Version};
use http_body::Body as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::body::RequestBody;
use crate::body::streamed;
use crate::body::{UploadProgress, UpstreamRequest};
use crate::http1::Fields;
use crate::http1::{RequestHead, Target};
use crate::upstream::tests::connecting;

const LONG: Duration = Duration::from_secs(20);
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
/// The window of each stream is as wide as 0.
const NO_WINDOW: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";
/// `:status: 200`, and the end of stream 1.
const OK: &[u8] = b"\0\0\x01\x01\x05\0\0\0\x01\x88";

/// The body's end comes from the client at the same moment as SETTINGS that let it no longer pass.
#[tokio::test]
async fn a_connection_with_a_part_of_its_request_in_the_library_carries_no_other() {
    for narrowed in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let pool = Http2Pool::new(connecting(port, LONG));
        let accepted = async {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            socket.write_all(SETTINGS).await.expect("written");
            socket
        };
        let (connection, mut socket) = tokio::join!(pool.open(), accepted);
        let (feed, body) = streamed(Some(10));
        let mut cx = Context::from_waker(Waker::noop());
        feed.give(Some(Bytes::from_static(b"hello")), false, &cx);
        let progress = Arc::new(UploadProgress::default());
        let target = Target::new(PathAndQuery::from_static("/"), None);
        let fields = Fields::default();
        let request = UpstreamRequest {
            head: RequestHead::new(Method::PUT, target, Version::HTTP_2, fields),
            body: RequestBody::unlimited(body).send(Arc::clone(&progress), true),
        };
        let own = connection.expect("opened");
        let uri = Some("http://x/".parse().expect("a target"));
        let mut sent = Box::pin(exchange(own, Arc::clone(&pool), uri, request));
        let hello = async {
            let mut seen = Vec::new();
            while !seen.ends_with(b"hello") {
                seen.push(socket.read_u8().await.expect("more"));
            }
        };
        tokio::select! {
            _ = &mut sent => unreachable!("there is no answer yet"),
            () = hello => {}
        }
        // Nothing polls the exchange until both have come.
        let answer = [if narrowed { NO_WINDOW } else { SETTINGS }, OK].concat();
        socket.write_all(&answer).await.expect("written");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        feed.give(Some(Bytes::from_static(b"world")), true, &cx);
        let response = tokio::time::timeout(LONG, sent).await.expect("in time");
        let mut body = response.expect("a head").body;
        assert!(body.is_end_stream());
        assert!(!progress.is_uploading(), "the library has all of it");
        assert!(body.poll_upload(&mut cx).is_pending());
        assert_eq!(body.taken(), std::task::Poll::Ready(true));
        assert_eq!(pool.idle(), usize::from(!narrowed));
    }
}
