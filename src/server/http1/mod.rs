//! HTTP/1 on the data port, read and written by the connection's one task.
//!
//! - One request at a time: [`crate::http1::request`] reads its head. Later bytes wait in the buffer,
//!   or in the kernel.
//! - The connection's task polls the handler's future and the answer's body, and reads the socket
//!   between two polls. So there is no task, channel or timer for a request.
//! - The body is read piece by piece when the handler asks for it
//!   ([`Received`](crate::body::Received)). `100 Continue` is sent when it asks first.
//! - While the handler does not read the body and nothing else has come, the end of the stream
//!   means that the client has left. Then the handler's future is dropped.
//! - An answer that does not wait for the body is the connection's last one (RFC 9112, 9.6). A
//!   client that may still be sending has [`LINGER`] to read it, since a close would reset the
//!   connection.
//! - A refused head gets its answer in its turn, and nothing is read behind it.
//! - One timer serves heads and idleness. It is armed again only when it fires.

mod input;
mod output;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http::{Method, StatusCode};
use tokio::io::{AsyncWriteExt as _, copy, sink};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use self::input::{Input, Reading};
use self::output::{Asked, Output};
use super::connection_state::{ClientIo, Signal, Site};
use crate::deadline_timer::DeadlineTimer;
use crate::http1::request::{NextHead, Request};
use crate::http1::{ClientSocket, MessageError, Response};
use crate::metrics::Limit;
use crate::proxy::ClientBody;
use crate::proxy::headers::takes_trailers;
use crate::socket::rewound;

/// A client that is still sending may take this long to read its answer and close: closing before
/// would reset the connection, and the answer might be lost (RFC 9112, 9.6).
const LINGER: Duration = Duration::from_secs(2);

/// The most memory that the output of an idle connection keeps.
const MAX_KEPT: usize = 2 << 10;

/// The fate of a connection behind an answer.
enum AfterAnswer {
    Next,
    Close,
    /// The answer is missing or not whole, so the client must not see a clean end.
    Drop,
    /// It leaves HTTP.
    Switch(oneshot::Sender<ClientSocket>),
}

struct Http1Connection<'a> {
    site: &'a Site<'a>,
    io: ClientIo,
    input: Input,
    output: Output,
    clock: DeadlineTimer,
    /// The moment at which the latest byte came or went.
    active: Instant,
    /// The moment at which the current head began to come.
    began: Option<Instant>,
}

/// Serves a connection until it ends. One that speaks HTTP/2 is returned with its first bytes.
pub(super) async fn serve(io: ClientIo, site: &Site<'_>) -> Option<(ClientIo, BytesMut)> {
    let mut connection = Http1Connection {
        site,
        io,
        input: Input::new(site.proxy.limits.head(), Arc::clone(&site.proxy.metrics)),
        output: Output::default(),
        clock: DeadlineTimer::default(),
        active: Instant::now(),
        began: None,
    };
    loop {
        let next = poll_fn(|cx| connection.poll_head(cx)).await;
        let then = match next {
            Ok(NextHead::Request(request)) => connection.exchange(request).await,
            Ok(NextHead::None) => AfterAnswer::Close,
            Err(error) => connection.refuse(error).await,
            Ok(NextHead::Http2) => return Some((connection.io, connection.input.buf)),
        };
        match then {
            AfterAnswer::Next => {
                connection.input.resume();
                connection.output.queue.shrink(MAX_KEPT);
                connection.active = Instant::now();
            }
            AfterAnswer::Close => {
                connection.close().await;
                return None;
            }
            AfterAnswer::Drop => return None,
            AfterAnswer::Switch(switch) => {
                let socket = rewound(connection.io, connection.input.buf);
                // If the receiver is gone, the socket is closed.
                let _ = switch.send(Box::new(socket));
                return None;
            }
        }
    }
}

impl Http1Connection<'_> {
    /// Waits for the head of a request, within the timeouts. None: no more requests come.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<NextHead, MessageError>> {
        let next = loop {
            match self.input.next() {
                Ok(NextHead::None) => {}
                next => break next,
            }
            match self.input.poll_read(&mut self.io, cx) {
                Poll::Ready(Ok(true)) => self.active = Instant::now(),
                Poll::Ready(_) => break Ok(NextHead::None),
                Poll::Pending => return self.poll_head_timeout(cx),
            }
        };
        self.began = None;
        Poll::Ready(next)
    }

    /// Nothing more has come: checks the timeouts and signals of the connection.
    fn poll_head_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Result<NextHead, MessageError>> {
        let Site { proxy, state, .. } = self.site;
        if state.is(Signal::Leave) {
            return Poll::Ready(Ok(NextHead::None));
        }
        if self.input.is_in_head() {
            let began = *self.began.get_or_insert_with(Instant::now);
            let limit = proxy.limits.head_timeout.0;
            ready!(self.clock.poll(cx, began + limit));
            return Poll::Ready(Err(MessageError::Slow(limit)));
        }
        let idle = self.active + proxy.limits.idle_timeout.0;
        ready!(self.clock.poll(cx, idle));
        proxy.metrics.limit(Limit::IdleTimeout);
        tracing::debug!("a connection is closed that was idle for limits.idle_timeout");
        Poll::Ready(Ok(NextHead::None))
    }

    /// One request, and its answer.
    async fn exchange(&mut self, request: Request) -> AfterAnswer {
        let Request {
            mut head, keeps, ..
        } = request;
        let asked = Asked {
            head: head.method == Method::HEAD,
            version: head.version,
            trailers: takes_trailers(&head.fields),
            keeps,
        };
        let (switch, switched) = request.upgrade.then(oneshot::channel).unzip();
        head.upgrade = switched;
        let body = self.input.begin_body(request.framing, request.expects);
        let response = {
            let Site { proxy, peer, .. } = self.site;
            let mut service = pin!(proxy.handle(head, body, peer));
            poll_fn(|cx| self.poll_beside(cx, |_, cx| service.as_mut().poll(cx))).await
        };
        let Some(response) = response else {
            return AfterAnswer::Drop;
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return self.answer(response, asked).await;
        }
        self.output.begin(response, asked, false);
        match switch {
            Some(switch) if self.is_answered().await => AfterAnswer::Switch(switch),
            _ => AfterAnswer::Drop,
        }
    }

    /// Polls the handler or the answer, and reads what it asks for. `None`: the client has left.
    fn poll_beside<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Self, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<Option<T>> {
        loop {
            if let Poll::Ready(done) = poll(self, cx) {
                return Poll::Ready(Some(done));
            }
            let fed = self.input.poll_feed(&mut self.io, &mut self.output, cx);
            // `100 Continue`.
            if let Poll::Ready(Err(_)) = self.output.poll_write(&mut self.io, cx) {
                return Poll::Ready(None);
            }
            if !ready!(fed) {
                return Poll::Ready(None);
            }
        }
    }

    /// An answer that does not wait for the whole request is the connection's last one.
    async fn answer(&mut self, response: Response<ClientBody>, asked: Asked) -> AfterAnswer {
        self.input.begin_answer(&mut self.io);
        let leaves = self.site.state.is(Signal::Announced);
        let last = leaves || !asked.keeps || !self.input.is_whole();
        let last = self.output.begin(response, asked, last);
        match self.is_answered().await {
            false => AfterAnswer::Drop,
            true if last => AfterAnswer::Close,
            true => AfterAnswer::Next,
        }
    }

    /// Writes the answer, and goes on reading what its exchange asks for. `false`: it has broken
    /// off, or the client has left.
    async fn is_answered(&mut self) -> bool {
        let answered =
            poll_fn(|cx| self.poll_beside(cx, |one, cx| one.output.poll_answer(&mut one.io, cx)));
        answered.await.unwrap_or(false)
    }

    /// Answers a refused head. Nothing behind it is read.
    async fn refuse(&mut self, error: MessageError) -> AfterAnswer {
        let Site { proxy, peer, .. } = self.site;
        self.input.reading = Reading::Nothing;
        let asked = Asked {
            // No content may answer a HEAD, not even a refusal's (RFC 9110, 9.3.2).
            head: self.input.buf.starts_with(b"HEAD "),
            ..Asked::default()
        };
        self.answer(proxy.refuse(error, peer), asked).await
    }

    /// Ends the sending side. Where the client may still be sending, it then reads on for a moment.
    async fn close(&mut self) {
        let unread = !self.input.is_whole() || !self.input.buf.is_empty();
        if self.io.shutdown().await.is_ok() && unread {
            let _ = timeout(LINGER, copy(&mut self.io, &mut sink())).await;
        }
    }
}
