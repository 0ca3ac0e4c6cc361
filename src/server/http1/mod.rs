//! HTTP/1 on the data port, read and written by the connection's one task.
//!
//! - A request at a time: its head is read to the letter ([`crate::wire::follow`]), and its parts are
//!   made of the lines that were read. What comes behind it waits in the buffer, or in the kernel.
//! - The handler's future and the answer's body are polled here, and between two polls of them the
//!   socket is looked at. So there is no task, channel or timer for a request.
//! - The body is read when the handler asks for it ([`Received`](crate::proxy::Received)), a piece at a
//!   time; `100 Continue` goes out when it does so first.
//! - While nothing of the body is wanted, and nothing else has come, the end of the stream says that
//!   the client has left. Then the handler's future is dropped.
//! - An answer that does not wait for the body is the connection's last one (RFC 9112, 9.6). A client
//!   that may still be sending has [`LINGER`] to read it, since a close would reset the connection.
//! - A head that is refused gets its answer in its turn, and nothing is read behind it.
//! - One timer, for heads and for idleness; it is armed again only when it fires.

mod answer;
mod date;
mod exchange;
mod head;
mod input;
mod output;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Instant;

use self::input::{Input, Next};
use self::output::Output;
use super::activity::Signal;
use super::clock::Clock;
use super::idle::Presence;
use super::tls::TlsIo;
use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};
use crate::proxy::{Handover, Peer, Proxy};
use crate::wire::head::HeadLimits;
use crate::wire::request::{RequestError, RequestHead};

/// How long a client that is still sending may take to read its answer and close: closing before would
/// reset the connection, and the answer might be lost (RFC 9112, 9.6).
const LINGER: Duration = Duration::from_secs(2);

/// What a connection is served with.
pub(super) struct Site<'a> {
    pub proxy: &'a Proxy,
    pub peer: &'a Peer,
    pub presence: &'a Presence,
    pub limits: &'a LimitSettings,
    pub metrics: &'a Arc<Metrics>,
    /// The client may speak HTTP/1 here.
    pub spoken: bool,
}

/// How waiting for a head has ended.
enum BegunAnswer {
    Request(RequestHead),
    Refused(RequestError),
    Http2,
    /// There will be none.
    End,
    /// The socket is broken.
    Broken,
}

/// What becomes of a connection behind an answer.
enum Then {
    Next,
    Close,
    /// The answer is not whole, or there is none: the client is not to see a clean end.
    Drop,
    /// It leaves HTTP.
    Switch(Handover),
}

struct Http1Connection<S> {
    io: S,
    input: Input,
    output: Output,
    clock: Clock,
    /// When the latest byte came or went.
    active: Instant,
    /// Since when there is something of the head at hand.
    began: Option<Instant>,
    /// Until when the client may go on sending, since our side has ended.
    lingers: Option<Instant>,
}

/// Serves a connection until it ends; or, where its client speaks HTTP/2, returns it with its first bytes.
pub(super) async fn serve<S: TlsIo + 'static>(io: S, site: &Site<'_>) -> Option<(S, BytesMut)> {
    let limits = HeadLimits {
        bytes: site.limits.header_bytes,
        fields: site.limits.header_count,
        target: site.limits.target_bytes,
    };
    let mut connection = Http1Connection {
        io,
        input: Input::new(limits, Arc::clone(site.metrics)),
        output: Output::new(),
        clock: Clock::default(),
        active: Instant::now(),
        began: None,
        lingers: None,
    };
    let activity = &site.presence.activity;
    loop {
        let begun = std::future::poll_fn(|cx| connection.poll_head(site, cx)).await;
        let then = match begun {
            BegunAnswer::Request(head) => connection.exchange(head, site).await,
            BegunAnswer::Refused(error) => connection.refuse(error, site).await,
            BegunAnswer::Http2 => {
                activity.set_under_way(false);
                return Some((connection.io, connection.input.take_rest()));
            }
            BegunAnswer::End => Then::Close,
            BegunAnswer::Broken => Then::Drop,
        };
        match then {
            Then::Next => {
                connection.input.resume();
                connection.output.rest();
                connection.active = Instant::now();
                activity.note_end(connection.active);
                if activity.is(Signal::MakeRoom) {
                    // It was told when the request had begun already.
                    site.presence.stays();
                }
            }
            Then::Close => {
                std::future::poll_fn(|cx| connection.poll_close(cx)).await;
                return None;
            }
            Then::Drop => return None,
            Then::Switch(handover) => {
                let read = connection.input.take_rest().freeze();
                handover.give(Box::new(connection.io), read);
                return None;
            }
        }
    }
}

impl<S: TlsIo + 'static> Http1Connection<S> {
    /// Waits for the head of a request, for as long as its client may take.
    fn poll_head(&mut self, site: &Site<'_>, cx: &mut Context<'_>) -> Poll<BegunAnswer> {
        let activity = &site.presence.activity;
        loop {
            let begun = match self.input.next() {
                Next::Head(head) => BegunAnswer::Request(head),
                Next::Refused(error) => BegunAnswer::Refused(error),
                Next::Http2 => BegunAnswer::Http2,
                Next::More => match self.input.poll_read(&mut self.io, cx) {
                    Poll::Ready(Ok(true)) => {
                        self.active = Instant::now();
                        continue;
                    }
                    Poll::Ready(Ok(false)) => BegunAnswer::End,
                    Poll::Ready(Err(_)) => BegunAnswer::Broken,
                    Poll::Pending => return self.poll_patience(site, cx),
                },
            };
            self.began = None;
            activity.set_under_way(true);
            return Poll::Ready(begun);
        }
    }

    /// Nothing more has come: whether the client may take its time.
    fn poll_patience(&mut self, site: &Site<'_>, cx: &mut Context<'_>) -> Poll<BegunAnswer> {
        let presence = site.presence;
        let in_head = self.input.is_in_head();
        if in_head {
            let began = *self.began.get_or_insert_with(Instant::now);
            presence.activity.set_in_head(began);
        } else {
            presence.activity.set_under_way(false);
        }
        if presence.activity.is(Signal::Leave) {
            return Poll::Ready(BegunAnswer::End);
        }
        if presence.activity.is(Signal::MakeRoom) && presence.is_busy(Instant::now()) {
            presence.stays();
        }
        if presence.activity.is(Signal::MakeRoom) {
            site.metrics.limit(Limit::IdleClosed);
            tracing::debug!("an idle connection is closed to make room for a new one");
            // A head that nobody answers is not waited for.
            drop(self.input.take_rest());
            return Poll::Ready(BegunAnswer::End);
        }
        if let Some(began) = self.began.filter(|_| in_head) {
            let limit = site.limits.head_timeout;
            ready!(self.clock.poll(cx, began + limit));
            return Poll::Ready(BegunAnswer::Refused(RequestError::Slow(limit)));
        }
        ready!(self.clock.poll(cx, self.active + site.limits.idle_timeout));
        site.metrics.limit(Limit::IdleTimeout);
        tracing::debug!("a connection is closed that was idle for limits.idle_timeout");
        Poll::Ready(BegunAnswer::End)
    }

    /// Ends the sending side; then, where the client may still be sending, reads on for a moment.
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
