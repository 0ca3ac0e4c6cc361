//! Connections to the upstream whose responses are read to the letter before hyper sees them
//! ([`Answers`]): the outermost layer, above TLS.
//!
//! hyper mends or skips what an upstream has no business to send (bare LFs, two equal lengths, codings it does
//! not know, blank lines), and one that it is unsure of ends where the connection does. What the
//! client gets has to be what the upstream said, once and whole, or a 502; and a connection of which one byte is
//! in doubt may carry nothing more: the next request on it would get somebody else's answer. So a
//! fault is an error of the connection. It ends the exchange that is out, if one is; a response that was
//! whole before stands. hyper looks at an idle connection before it writes the next request, finds the error,
//! and hands that request back as never begun.
//!
//! That a response which only its connection ends is whole, a clean end says: over TLS that takes a
//! `close_notify` (rustls gives an error otherwise); over TCP there is no more than the FIN.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;

use super::body::BoxError;
use super::upstream::ResetSwitch;
use crate::wire::answers::{Answers, Fault};
use crate::wire::head::HeadLimits;

/// What the head of a response may have; it is held back until it is whole. No setting: a larger one is a fault
/// of the upstream that somebody has to look at.
const RESPONSE_LIMITS: HeadLimits = HeadLimits {
    // Less than hyper's buffer has room for.
    bytes: 60 << 10,
    // As many as hyper takes.
    fields: 100,
    target: 0,
};
/// What is read at once while a head is held back.
const PIECE: usize = 4096;

/// Opens watched connections, which speak HTTP/1.
#[derive(Clone)]
pub(crate) struct Watch<C> {
    connector: C,
}

impl<C> Watch<C> {
    pub(crate) fn new(connector: C) -> Self {
        Self { connector }
    }
}

/// Whether an error says that nothing was ever written over the connection that it comes from.
pub(super) fn nothing_written(error: &(dyn std::error::Error + 'static)) -> bool {
    let fault = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .and_then(|inner| inner.downcast_ref::<Fault>());
    fault == Some(&Fault::Greeting)
}

type Opening<S> =
    Pin<Box<dyn Future<Output = Result<TokioIo<Watched<TokioIo<S>>>, BoxError>> + Send>>;

impl<C> Service<Uri> for Watch<C>
where
    C: Service<Uri, Error: Into<BoxError>, Future: Send + 'static>,
    C::Response: Connection + Unpin + 'static,
{
    type Response = TokioIo<Watched<TokioIo<C::Response>>>;
    type Error = BoxError;
    type Future = Opening<C::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let opening = self.connector.call(uri);
        Box::pin(async move {
            let stream = opening.await.map_err(Into::into)?;
            let connected = stream.connected();
            let mut watched = Watched::new(TokioIo::new(stream));
            watched.reset = ResetSwitch::of(&connected);
            Ok(TokioIo::new(watched))
        })
    }
}

/// A watched connection. It is reset when it is dropped while a request is out, or as a tunnel: what
/// the kernel has not sent by then it would go on sending, and an outcome that is unknown settles from
/// here on.
pub(crate) struct Watched<S> {
    stream: S,
    reset: Option<ResetSwitch>,
    answers: Answers,
    /// What has come and may not be handed on yet, behind what may.
    held: Vec<u8>,
    /// So much of it may.
    released: usize,
    /// Nothing more is read or written.
    fault: Option<Fault>,
}

impl<S> Watched<S> {
    fn new(stream: S) -> Self {
        Self {
            stream,
            reset: None,
            answers: Answers::new(RESPONSE_LIMITS),
            held: Vec::new(),
            released: 0,
            fault: None,
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.fault {
            Some(fault) => Err(io::Error::new(io::ErrorKind::InvalidData, fault)),
            None => Ok(()),
        }
    }

    /// Before a write.
    fn may_write(&self) -> io::Result<()> {
        self.check()?;
        if self.answers.is_over() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }

    /// Takes what has come into account; returns how much of it may be handed on.
    fn judge(&mut self, bytes: Option<&[u8]>) -> usize {
        let (released, verdict) = self.answers.feed(bytes.unwrap_or(&self.held));
        if let Err(fault) = verdict {
            tracing::warn!(%fault, "a connection to the upstream is given up");
            self.fault = Some(fault);
        }
        released
    }

    /// So many of these bytes have been written.
    fn wrote(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(fault) = self.answers.wrote(bytes) {
            tracing::error!(%fault, "a connection to the upstream is given up");
            self.fault = Some(fault);
        }
        self.check()
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        if let Some(reset) = &self.reset
            && (self.answers.is_out() || self.answers.is_through())
        {
            reset.throw();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.answers.is_through() && this.held.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        loop {
            if this.released > 0 {
                let now = this.released.min(buf.remaining());
                buf.put_slice(&this.held[..now]);
                this.held.drain(..now);
                this.released -= now;
                return Poll::Ready(Ok(()));
            }
            this.check()?;
            if this.held.is_empty() && this.answers.is_over() {
                // As if the upstream had closed it, as it well may.
                return Poll::Ready(Ok(()));
            }
            if this.held.is_empty() {
                // Mostly all of it passes, and nothing is copied.
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                let released = this.judge(Some(&buf.filled()[before..]));
                let end = before + released;
                if buf.filled().len() == before {
                    return Poll::Ready(Ok(()));
                }
                this.held.extend_from_slice(&buf.filled()[end..]);
                buf.set_filled(end);
                if released > 0 {
                    return Poll::Ready(Ok(()));
                }
                // Nothing passes yet: to return now would say that the stream has ended.
                continue;
            }
            let mut piece = [0; PIECE];
            let mut more = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut more))?;
            if more.filled().is_empty() {
                // In the middle of a head: hyper makes an error of it.
                return Poll::Ready(Ok(()));
            }
            this.held.extend_from_slice(more.filled());
            this.released = this.judge(None);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.may_write()?;
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, buf))?;
        this.wrote(&buf[..written])?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.may_write()?;
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let now = left.min(buf.len());
            this.wrote(&buf[..now])?;
            left -= now;
        }
        Poll::Ready(Ok(written))
    }
}

impl<S: Connection> Connection for Watched<TokioIo<S>> {
    fn connected(&self) -> Connected {
        self.stream.inner().connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    #[tokio::test]
    async fn a_head_is_held_back_until_it_is_whole() {
        let (mut upstream, near) = duplex(64 << 10);
        let mut watched = Watched::new(near);
        watched.write_all(GET).await.expect("written");
        upstream.write_all(&OK[..20]).await.expect("room");
        let mut read = [0; 100];
        assert!(futures_util::poll!(Box::pin(watched.read(&mut read))).is_pending());
        upstream.write_all(&OK[20..]).await.expect("room");
        // Small reads get it in order.
        let mut got = Vec::new();
        while got.len() < OK.len() {
            let mut small = [0; 7];
            let count = watched.read(&mut small).await.expect("it passes");
            assert_ne!(count, 0);
            got.extend_from_slice(&small[..count]);
        }
        assert_eq!(got, OK);
        watched.write_all(GET).await.expect("the next request");
    }

    #[tokio::test]
    async fn what_is_extra_lets_the_response_pass_and_nothing_after_it() {
        let (mut upstream, near) = duplex(64 << 10);
        let mut watched = Watched::new(near);
        watched.write_all(GET).await.expect("written");
        upstream.write_all(&[OK, OK].concat()).await.expect("room");
        let mut read = [0; 200];
        let count = watched.read(&mut read).await.expect("it passes");
        assert_eq!(&read[..count], OK);
        let error = watched.read(&mut read).await.expect_err("extra");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        watched.write_all(GET).await.expect_err("no more");
        let mut seen = vec![0; GET.len()];
        upstream.read_exact(&mut seen).await.expect("one request");
        drop(watched);
        seen.clear();
        upstream.read_to_end(&mut seen).await.expect("and no more");
        assert!(seen.is_empty());
    }

    #[tokio::test]
    async fn a_connection_that_has_answered_in_http_1_0_is_closed_though_its_upstream_keeps_it() {
        let (mut upstream, near) = duplex(64 << 10);
        let mut watched = Watched::new(near);
        watched.write_all(GET).await.expect("written");
        let old = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok";
        upstream.write_all(old).await.expect("room");
        let mut all = Vec::new();
        watched.read_to_end(&mut all).await.expect("a clean end");
        assert_eq!(all, old);
        watched.write_all(GET).await.expect_err("no more");
    }

    #[tokio::test]
    async fn a_broken_end_is_not_a_clean_one() {
        let broken = cut_off();
        let mut watched = Watched::new(broken);
        watched.wrote(GET).expect("a request");
        let mut all = Vec::new();
        let error = watched.read_to_end(&mut all).await.expect_err("cut off");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(all, b"HTTP/1.1 200 OK\r\n\r\nhalf");
    }

    /// A response that only its connection ends, and an end as rustls tells it without a `close_notify`.
    fn cut_off() -> impl AsyncRead + AsyncWrite + Unpin {
        struct Broken(Vec<io::Result<&'static [u8]>>);
        impl AsyncRead for Broken {
            fn poll_read(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let next = self.0.pop().expect("not read again");
                Poll::Ready(next.map(|bytes| buf.put_slice(bytes)))
            }
        }
        let parts = vec![
            Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(&b"half"[..]),
            Ok(&b"HTTP/1.1 200 OK\r\n\r\n"[..]),
        ];
        tokio::io::join(Broken(parts), tokio::io::sink())
    }
}
