//! HTTP/1 on the data port, read and written by the connection's one task.
//!
//! - One request at a time: [`crate::http1::client_framing`] reads its head, and the request is made
//!   of the lines that were read. Later bytes wait in the buffer, or in the kernel.
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

mod exchange;
mod input;
mod output;
mod request_head;
mod response_head;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWrite as _;
use tokio::time::Instant;

use self::input::{Input, Next};
use self::output::Output;
use super::connection_state::{ConnectionState, Signal};
use super::tls::ClientIo;
use crate::config::LimitSettings;
use crate::deadline_timer::DeadlineTimer;
use crate::http1::Handover;
use crate::http1::head::HeadLimits;
use crate::http1::request::{RequestError, WholeHead};
use crate::metrics::{Limit, Metrics};
use crate::proxy::{Client, Proxy};

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
    /// True if HTTP/1 is allowed on this connection.
    pub spoken: bool,
}

/// The end of the wait for a head.
enum HeadOutcome {
    Request(WholeHead),
    Refused(RequestError),
    Http2,
    /// No more requests come.
    End,
    /// The socket is broken.
    Broken,
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
    /// Until when the client may go on sending after our side has ended.
    lingers: Option<Instant>,
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
        lingers: None,
    };
    let state = site.state;
    loop {
        let begun = std::future::poll_fn(|cx| connection.poll_head(site, cx)).await;
        let then = match begun {
            HeadOutcome::Request(head) => connection.exchange(head, site).await,
            HeadOutcome::Refused(error) => connection.refuse(error, site).await,
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
                std::future::poll_fn(|cx| connection.poll_close(cx)).await;
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
                Next::Head(head) => HeadOutcome::Request(head),
                Next::Refused(error) => HeadOutcome::Refused(error),
                Next::Http2 => HeadOutcome::Http2,
                Next::More => match self.input.poll_read(&mut self.io, cx) {
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
        if state.is(Signal::Leave) || state.is(Signal::MakeRoom) && !in_head {
            return Poll::Ready(HeadOutcome::End);
        }
        if in_head {
            let began = *self.began.get_or_insert_with(Instant::now);
            let limit = site.limits.head_timeout;
            ready!(self.clock.poll(cx, began + limit));
            return Poll::Ready(HeadOutcome::Refused(RequestError::Slow(limit)));
        }
        ready!(self.clock.poll(cx, self.active + site.limits.idle_timeout));
        site.metrics.limit(Limit::IdleTimeout);
        tracing::debug!("a connection is closed that was idle for limits.idle_timeout");
        Poll::Ready(HeadOutcome::End)
    }

    /// Ends the sending side. Where the client may still be sending, it then reads on for a moment.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = if let Some(until) = self.lingers {
            until
        } else {
            let shut = ready!(Pin::new(&mut self.io).poll_shutdown(cx));
            if shut.is_err() || !self.input.is_unread() {
                return Poll::Ready(());
            }
            *self.lingers.insert(Instant::now() + LINGER)
        };
        loop {
            match self.input.poll_discard(&mut self.io, cx) {
                Poll::Ready(true) if Instant::now() < until => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.clock.poll(cx, until),
            }
        }
    }
}
