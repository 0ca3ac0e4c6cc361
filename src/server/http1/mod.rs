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

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http::{Method, StatusCode, Version};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout};

use self::input::{HeadOutcome, Input};
use self::output::{Asked, Output};
use super::connection_state::{ConnectionState, Signal};
use super::tls::ClientIo;
use crate::config::LimitSettings;
use crate::deadline_timer::DeadlineTimer;
use crate::http1::head::HeadLimits;
use crate::http1::request::Request;
use crate::http1::{Handover, MessageError, Response, handover};
use crate::metrics::{Limit, Metrics};
use crate::proxy::headers::takes_trailers;
use crate::proxy::{Client, ClientBody, Proxy, limit_of};

/// A client that is still sending may take this long to read its answer and close: closing before
/// would reset the connection, and the answer might be lost (RFC 9112, 9.6).
const LINGER: Duration = Duration::from_secs(2);

/// The surroundings of a connection.
pub(super) struct Site<'a> {
    pub proxy: &'a Arc<Proxy>,
    pub peer: &'a Arc<Client>,
    pub state: &'a Arc<ConnectionState>,
    pub limits: &'a LimitSettings,
    pub metrics: &'a Arc<Metrics>,
}

/// The fate of a connection behind an answer.
enum AfterAnswer {
    Next,
    Close,
    /// The answer is missing or not whole, so the client must not see a clean end.
    Drop,
    /// It leaves HTTP.
    Switch(Handover),
}

struct Http1Connection {
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
    let limits = HeadLimits {
        bytes: site.limits.header_bytes,
        fields: site.limits.header_count,
        target: site.limits.target_bytes,
    };
    let mut connection = Http1Connection {
        io,
        input: Input::new(limits, Arc::clone(site.metrics)),
        output: Output::new(),
        clock: DeadlineTimer::default(),
        active: Instant::now(),
        began: None,
    };
    let state = site.state;
    loop {
        let begun = std::future::poll_fn(|cx| connection.poll_head(site, cx)).await;
        let then = match begun {
            HeadOutcome::Request(request) => connection.exchange(request, site).await,
            HeadOutcome::Refused { error, head } => connection.refuse(error, head, site).await,
            HeadOutcome::Http2 => {
                state.set_under_way(false);
                return Some((connection.io, connection.input.take_rest()));
            }
            HeadOutcome::End => AfterAnswer::Close,
            HeadOutcome::Broken => AfterAnswer::Drop,
        };
        match then {
            AfterAnswer::Next => {
                connection.input.resume();
                connection.output.rest();
                connection.active = Instant::now();
                state.note_end(connection.active);
            }
            AfterAnswer::Close => {
                connection.close().await;
                return None;
            }
            AfterAnswer::Drop => return None,
            AfterAnswer::Switch(handover) => {
                let read = connection.input.take_rest().freeze();
                handover.give(connection.io, read);
                return None;
            }
        }
    }
}

impl Http1Connection {
    /// Waits for the head of a request, within the timeouts.
    fn poll_head(&mut self, site: &Site<'_>, cx: &mut Context<'_>) -> Poll<HeadOutcome> {
        let state = site.state;
        loop {
            let begun = match self.input.next() {
                Some(begun) => begun,
                None => match self.input.poll_read(&mut self.io, cx) {
                    Poll::Ready(Ok(true)) => {
                        self.active = Instant::now();
                        continue;
                    }
                    Poll::Ready(Ok(false)) => HeadOutcome::End,
                    Poll::Ready(Err(_)) => HeadOutcome::Broken,
                    Poll::Pending => return self.poll_head_timeout(site, cx),
                },
            };
            self.began = None;
            state.set_under_way(true);
            return Poll::Ready(begun);
        }
    }

    /// Nothing more has come: checks the timeouts and signals of the connection.
    fn poll_head_timeout(&mut self, site: &Site<'_>, cx: &mut Context<'_>) -> Poll<HeadOutcome> {
        let state = site.state;
        let in_head = self.input.is_in_head();
        state.set_under_way(in_head);
        if state.is(Signal::Leave) {
            return Poll::Ready(HeadOutcome::End);
        }
        if in_head {
            let began = *self.began.get_or_insert_with(Instant::now);
            let limit = site.limits.head_timeout;
            ready!(self.clock.poll(cx, began + limit));
            let error = MessageError::Slow(limit);
            let head = self.input.asks_for_head();
            return Poll::Ready(HeadOutcome::Refused { error, head });
        }
        ready!(self.clock.poll(cx, self.active + site.limits.idle_timeout));
        site.metrics.limit(Limit::IdleTimeout);
        tracing::debug!("a connection is closed that was idle for limits.idle_timeout");
        Poll::Ready(HeadOutcome::End)
    }

    /// One request, and its answer.
    async fn exchange(&mut self, request: Request, site: &Site<'_>) -> AfterAnswer {
        let Request {
            mut head, keeps, ..
        } = request;
        let asked = Asked {
            head: head.method == Method::HEAD,
            version: head.version,
            trailers: takes_trailers(&head.fields),
            keeps,
        };
        let mut switch = None;
        if request.upgrade {
            let (ours, theirs) = handover();
            switch = Some(ours);
            head.upgrade = Some(theirs);
        }
        let body = self.input.begin_body(request.framing, request.expects);
        let response = {
            let mut service = pin!(site.proxy.handle(head, body, site.peer));
            std::future::poll_fn(|cx| self.poll_service(service.as_mut(), cx)).await
        };
        let Some(response) = response else {
            return AfterAnswer::Drop;
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return self.answer(response, asked, site).await;
        }
        self.output.begin(response, asked, false);
        match switch {
            Some(switch) if self.is_answered().await => AfterAnswer::Switch(switch),
            _ => AfterAnswer::Drop,
        }
    }

    /// Polls the handler, and reads what it asks for. `None`: the client has left.
    fn poll_service(
        &mut self,
        mut service: Pin<&mut impl Future<Output = Response<ClientBody>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Response<ClientBody>>> {
        loop {
            if let Poll::Ready(response) = service.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
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
    async fn answer(
        &mut self,
        response: Response<ClientBody>,
        asked: Asked,
        site: &Site<'_>,
    ) -> AfterAnswer {
        self.input.begin_answer(&mut self.io);
        let last = !asked.keeps || !self.input.is_whole() || site.state.is(Signal::Announced);
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
        std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(whole) = self.output.poll_answer(&mut self.io, cx) {
                    return Poll::Ready(whole);
                }
                if !ready!(self.input.poll_feed(&mut self.io, &mut self.output, cx)) {
                    return Poll::Ready(false);
                }
            }
        })
        .await
    }

    /// Answers a refused head. Nothing behind it is read.
    async fn refuse(&mut self, error: MessageError, head: bool, site: &Site<'_>) -> AfterAnswer {
        if let Some(limit) = limit_of(error) {
            site.metrics.limit(limit);
        }
        self.input.close();
        let asked = Asked {
            // No content may answer a HEAD, not even a refusal's (RFC 9110, 9.3.2).
            head,
            version: Version::HTTP_11,
            trailers: false,
            keeps: false,
        };
        let response = site.proxy.refuse(error, site.peer);
        self.answer(response, asked, site).await
    }

    /// Ends the sending side. Where the client may still be sending, it then reads on for a moment.
    async fn close(&mut self) {
        if self.io.shutdown().await.is_ok() && self.input.is_unread() {
            let _ = timeout(LINGER, self.input.discard(&mut self.io)).await;
        }
    }
}
