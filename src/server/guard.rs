//! The look at what a client sends before hyper has it.
//!
//! hyper takes what RFC 9112 forbids: bare LF, a second Host, `gzip, chunked`. So every byte of an HTTP/1
//! connection goes through [`Follow`] first, and hyper gets no byte of a head that has not passed whole. In
//! place of a head that is refused it gets [`STAND_IN`], and nothing after it; the service, which knows by
//! [`Talk`] which request that is, answers for the client's own. In this way the answer comes behind
//! those to earlier requests, and is written by one writer.
//!
//! What passes is not copied: it stays in the buffer that hyper reads into, unless a head comes in
//! pieces. Whatever a connection becomes by an upgrade passes untouched; of HTTP/2, trailers are looked
//! at ([`FrameFilter`]).

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::http2;
use super::talk::Talk;
use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};
use crate::proxy::frames::FrameFilter;
use crate::proxy::limit_of;
use crate::wire::chunked::BodyError;
use crate::wire::follow::{Follow, Violation};
use crate::wire::head::{HeadError, HeadLimits};
use crate::wire::request::RequestError;

/// What hyper gets in place of a refused head. The service knows that it is one; if it did not, asterisk-form
/// would be refused all the same.
const STAND_IN: &[u8] = b"OPTIONS * HTTP/1.1\r\nHost: invalid\r\nConnection: close\r\n\r\n";
/// As [`STAND_IN`], for a HEAD: no content may answer it, not even a refusal's (RFC 9110, 9.3.2).
const STAND_IN_FOR_HEAD: &[u8] = b"HEAD * HTTP/1.1\r\nHost: invalid\r\nConnection: close\r\n\r\n";
/// How long a client that is still sending may take to read its answer and close: closing before would
/// reset the connection, and the answer might be lost (RFC 9112, 9.6).
const LINGER: Duration = Duration::from_secs(2);
/// The least room in hyper's buffer for which a head is read into it directly.
const DIRECT: usize = 1024;
/// How much is read at once where hyper's buffer is not used.
const PIECE: usize = 4096;

/// Why nothing more of a connection is read for hyper.
#[derive(Clone, Copy, Debug)]
enum End {
    /// A head was refused; what is left to hand on of its stand-in.
    Refused(&'static [u8]),
    /// A body was.
    Broken(BodyError),
    Idle,
}

/// A client's connection, of which nothing badly framed is read.
pub(super) struct Guarded<S> {
    io: S,
    follow: Follow,
    /// `None`: it has not begun as HTTP/2.
    http2: Option<Box<FrameFilter>>,
    /// What HTTP/2 is told that a header list may have.
    header_list: usize,
    /// What was read and not handed on: first so many bytes that may be, then the beginning of a head, or what
    /// came behind a request to leave HTTP.
    held: BytesMut,
    released: usize,
    end: Option<End>,
    /// The client has sent its last byte.
    eof: bool,
    /// When a byte last went either way.
    active: Instant,
    /// The head at hand by number, and since when there is something of it.
    began: Option<(u64, Instant)>,
    clock: Clock,
    shut: bool,
    talk: Arc<Talk>,
    head_timeout: Duration,
    idle_timeout: Duration,
    metrics: Arc<Metrics>,
}

impl<S> Guarded<S> {
    pub(super) fn new(
        io: S,
        limits: &LimitSettings,
        talk: Arc<Talk>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            io,
            follow: Follow::new(HeadLimits {
                bytes: limits.header_bytes,
                fields: limits.header_count,
                target: limits.target_bytes,
            }),
            http2: None,
            header_list: http2::header_list(limits),
            held: BytesMut::new(),
            released: 0,
            end: None,
            eof: false,
            active: Instant::now(),
            began: None,
            clock: Clock::default(),
            shut: false,
            talk,
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            metrics,
        }
    }

    /// Puts what is held to the test.
    fn judge(&mut self) {
        let (released, verdict) = self.follow.feed(&self.held);
        self.released = released;
        if self.follow.is_http2() {
            let begun = std::mem::take(&mut self.held);
            self.begin_http2(begun);
        }
        self.tell();
        self.take(verdict);
    }

    /// The client speaks HTTP/2: these are its first bytes.
    fn begin_http2(&mut self, begun: BytesMut) {
        self.released = 0;
        self.http2 = Some(Box::new(FrameFilter::of_client(begun, self.header_list)));
    }

    fn tell(&self) {
        let in_body = u64::from(self.follow.is_in_body());
        self.talk.whole(self.follow.heads() - in_body);
    }

    fn take(&mut self, verdict: Result<(), Violation>) {
        let Err(violation) = verdict else { return };
        let stand_in = stand_in(&self.held[self.released..]);
        self.held.truncate(self.released);
        match violation {
            Violation::Head(number, error) => {
                if let Some(limit) = limit_of(error) {
                    self.metrics.limit(limit);
                }
                self.talk.refuse(number, error);
                self.end = Some(End::Refused(stand_in));
            }
            Violation::Body(error) => {
                tracing::debug!(%error, "the body of a request is malformed");
                match error {
                    BodyError::Trailer(HeadError::Bytes(_)) => {
                        self.metrics.limit(Limit::HeaderBytes);
                    }
                    BodyError::Trailer(HeadError::Fields(_)) => {
                        self.metrics.limit(Limit::HeaderCount);
                    }
                    _ => {}
                }
                self.end = Some(End::Broken(error));
            }
        }
    }

    /// Hands on what may be; `false`: there is nothing.
    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let count = self.released.min(buf.remaining());
        buf.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.released -= count;
        if self.held.is_empty() {
            // An idle connection holds no memory here.
            self.held = BytesMut::new();
        }
        count > 0
    }

    /// What a write has come to.
    fn written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.talk.writing(written.is_pending());
        let count = ready!(written)?;
        self.active = Instant::now();
        Poll::Ready(Ok(count))
    }

    /// Nothing can be read at the moment: whether the client may take its time. `Ready`: it may not, and
    /// [`Self::end`] is set.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let number = self.follow.heads();
        let in_head = self.follow.is_in_head(&self.held);
        let in_body = self.follow.is_in_body() || self.follow.is_held();
        if !in_head {
            self.talk.reading(in_body, None);
        }
        if in_head {
            let began = match self.began {
                Some((of, began)) if of == number => began,
                _ => {
                    let now = Instant::now();
                    self.began = Some((number, now));
                    now
                }
            };
            self.talk.reading(true, Some(began));
            ready!(self.clock.poll(cx, began + self.head_timeout));
            let slow = RequestError::Slow(self.head_timeout);
            let violation = self.follow.give_up(slow);
            self.take(Err(violation));
            return Poll::Ready(());
        }
        if self.follow.is_through() {
            return Poll::Pending;
        }
        ready!(self.clock.poll(cx, self.active + self.idle_timeout));
        if in_body || self.talk.ended() < number {
            // hyper does not ask again when the response is over: it waits for the client. So the clock runs
            // all the time, and finds out.
            ready!(self.clock.poll(cx, Instant::now() + self.idle_timeout));
        }
        self.metrics.limit(Limit::IdleTimeout);
        tracing::debug!("a connection is closed that was idle for limits.idle_timeout");
        self.end = Some(End::Idle);
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Guarded<S> {
    /// Reads into `held`; `false` at the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut piece = [MaybeUninit::uninit(); PIECE];
        let mut piece = ReadBuf::uninit(&mut piece);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut piece))?;
        self.held.extend_from_slice(piece.filled());
        let some = !piece.filled().is_empty();
        self.read(some);
        Poll::Ready(Ok(some))
    }

    /// Reads into hyper's buffer and leaves there what passes; `false` at the end of the stream.
    fn poll_direct(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let fresh = &buf.filled()[before..];
        let some = !fresh.is_empty();
        let (passed, verdict) = self.follow.feed(fresh);
        if self.follow.is_http2() {
            let begun = BytesMut::from(fresh);
            self.begin_http2(begun);
            buf.set_filled(before);
            return Poll::Ready(Ok(some));
        }
        self.held.extend_from_slice(&fresh[passed..]);
        buf.set_filled(before + passed);
        self.read(some);
        self.tell();
        self.take(verdict);
        Poll::Ready(Ok(some))
    }

    fn read(&mut self, some: bool) {
        if some {
            self.active = Instant::now();
        } else {
            self.eof = true;
        }
    }

    /// Behind a request to leave HTTP: waits for its answer, and for the client to leave meanwhile.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match self.talk.verdict(self.follow.heads(), cx.waker()) {
            Some(true) => {
                self.follow.pass_through();
                self.released = self.held.len();
            }
            Some(false) => {
                self.follow.resume();
                self.judge();
            }
            None if self.held.is_empty() => {
                if !ready!(self.poll_fill(cx))? {
                    return Poll::Ready(Ok(false));
                }
                return Poll::Pending;
            }
            None => return Poll::Pending,
        }
        Poll::Ready(Ok(true))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.hand_on(buf) || buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            match &mut this.end {
                // What follows is nobody's business. Not the end of the stream: hyper would drop the answer.
                Some(End::Refused([])) => return Poll::Pending,
                Some(End::Refused(left)) => {
                    let (now, later) = left.split_at(left.len().min(buf.remaining()));
                    buf.put_slice(now);
                    *left = later;
                    return Poll::Ready(Ok(()));
                }
                Some(End::Broken(error)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, *error)));
                }
                Some(End::Idle) => return Poll::Ready(Ok(())),
                None => {}
            }
            if let Some(frames) = &mut this.http2 {
                return frames.poll_read(&mut this.io, cx, buf);
            }
            if this.follow.is_through() {
                return Pin::new(&mut this.io).poll_read(cx, buf);
            }
            let room = this.follow.is_in_body() || buf.remaining() >= DIRECT;
            let some = if this.follow.is_held() {
                this.poll_held(cx)?
            } else if this.held.is_empty() && room {
                this.poll_direct(cx, buf)?
            } else {
                this.poll_fill(cx)?.map(|some| {
                    this.judge();
                    some
                })
            };
            match some {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(Ok(())),
                Poll::Pending => ready!(this.wait(cx)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Ends the sending side; then, where the client may still be sending, reads on for a moment.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.shut {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            this.shut = true;
            this.active = Instant::now();
        }
        let refused = matches!(this.end, Some(End::Refused(_) | End::Broken(_)));
        if this.eof || !(refused || this.follow.is_in_body() || !this.held.is_empty()) {
            return Poll::Ready(Ok(()));
        }
        let mut piece = [MaybeUninit::uninit(); PIECE];
        loop {
            let mut piece = ReadBuf::uninit(&mut piece);
            match Pin::new(&mut this.io).poll_read(cx, &mut piece) {
                Poll::Ready(Ok(())) if !piece.filled().is_empty() => {
                    if this.active.elapsed() > LINGER {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(this.clock.poll(cx, this.active + LINGER));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// One timer for all deadlines of a connection. It is armed anew only for an earlier one: mostly
/// deadlines move on before they are reached, and then it wakes once and finds a later one.
#[derive(Default)]
struct Clock(Option<(Pin<Box<Sleep>>, Instant)>);

impl Clock {
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let (sleep, armed) = self
            .0
            .get_or_insert_with(|| (Box::pin(tokio::time::sleep_until(deadline)), deadline));
        if *armed > deadline {
            sleep.as_mut().reset(deadline);
            *armed = deadline;
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if *armed >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
            *armed = deadline;
        }
    }
}

/// What hyper gets in place of the head that these bytes begin.
fn stand_in(refused: &[u8]) -> &'static [u8] {
    let line = refused.strip_prefix(b"\r\n").unwrap_or(refused);
    if line.starts_with(b"HEAD ") {
        STAND_IN_FOR_HEAD
    } else {
        STAND_IN
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn a_head_that_is_refused_is_answered_as_one() {
        assert_eq!(stand_in(b"HEAD / HTTP/1.1\nHost"), STAND_IN_FOR_HEAD);
        assert_eq!(stand_in(b"\r\nHEAD  / "), STAND_IN_FOR_HEAD);
        assert_eq!(stand_in(b"HEADER / "), STAND_IN);
        assert_eq!(stand_in(b""), STAND_IN);
    }

    #[tokio::test]
    async fn a_part_of_a_request_or_of_a_response_is_under_way() {
        let limits = LimitSettings {
            in_flight: 1,
            in_flight_per_connection: 1,
            in_flight_per_peer: None,
            in_flight_per_resource: None,
            connections: 1,
            connections_per_peer: None,
            http2_streams: 1,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            header_bytes: 1000,
            header_count: 10,
            target_bytes: 100,
            body_memory: 1,
            key_bytes: 1024,
            new_resources: None,
            new_resources_per_peer: None,
            body_rate: None,
        };
        let (mut client, near) = duplex(64);
        let (talk, metrics) = (Arc::new(Talk::default()), Arc::new(Metrics::new(&[])));
        let mut guarded = Guarded::new(near, &limits, Arc::clone(&talk), metrics);
        let mut buf = [0; 4096];
        let request = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
        for (piece, under_way) in [
            (&request[..0], false),
            (&request[..20], true),
            (&request[20..request.len() - 1], true),
            (&request[request.len() - 1..], false),
        ] {
            client.write_all(piece).await.expect("room");
            while poll!(Box::pin(AsyncReadExt::read(&mut guarded, &mut buf))).is_ready() {}
            assert_eq!(talk.is_under_way(), under_way, "{}", piece.escape_ascii());
        }
        let response = [b'x'; 100];
        assert!(poll!(Box::pin(guarded.write(&response))).is_ready());
        assert!(!talk.is_under_way());
        assert!(poll!(Box::pin(guarded.write(&response[64..]))).is_pending());
        assert!(talk.is_under_way(), "the client has taken nothing");
        client.read_exact(&mut buf[..64]).await.expect("a part");
        assert!(poll!(Box::pin(guarded.write(&response[64..]))).is_ready());
        assert!(!talk.is_under_way());
    }
}
