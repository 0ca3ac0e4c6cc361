//! The response on its way to the client: its head, and its content as it was announced.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use http::{HeaderMap, StatusCode, Version};
use http_body::{Body as _, Frame};
use httpdate::HttpDate;
use tokio::io::AsyncWrite;

use crate::body::BoxError;
use crate::http1::content::{Framing, content_length};
use crate::http1::names::{CONNECTION, CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING};
use crate::http1::{Response, ResponseHead, WriteQueue, title_line};
use crate::json_values::wall_clock;
use crate::proxy::ClientBody;

/// The properties of a request that its response depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// HEAD: the response has no content.
    pub head: bool,
    pub version: Version,
    /// The client accepts trailers.
    pub trailers: bool,
    /// The client allows another request on its connection.
    pub keeps: bool,
}

/// The writing side of a connection.
#[derive(Default)]
pub(super) struct Output {
    pub queue: WriteQueue,
    /// The client accepts the trailers of the current answer.
    trailers: bool,
    /// The content of the current answer. `None`: no more of it comes.
    body: Option<ClientBody>,
    /// The current answer has broken off.
    broken: bool,
}

impl Output {
    /// Begins an answer. `last`: its connection ends behind it. Says if it does.
    pub(super) fn begin(
        &mut self,
        response: Response<ClientBody>,
        asked: Asked,
        last: bool,
    ) -> bool {
        let Response { mut head, body } = response;
        let length = body.size_hint().exact();
        self.body = Some(body);
        self.head(&mut head, asked, length, last)
    }

    /// Writes the head of a response. `length`: that of its content; `None`: unknown.
    fn head(
        &mut self,
        head: &mut ResponseHead,
        asked: Asked,
        length: Option<u64>,
        last: bool,
    ) -> bool {
        let status = head.status;
        let bodiless = asked.head
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let http_11 = asked.version == Version::HTTP_11;
        let fields = &mut head.fields;
        fields.remove(TRANSFER_ENCODING);
        if length == Some(0) && !asked.head {
            // Without content, only the response to HEAD may have a length.
            fields.remove(CONTENT_LENGTH);
        }
        if bodiless || !http_11 {
            fields.remove(TRAILER);
        }
        let declared = fields.get(CONTENT_LENGTH);
        let declared = declared.and_then(|length| content_length(length).ok());
        let out = self.queue.end();
        let minor = u8::from(http_11);
        let _ = write!(out, "HTTP/1.{minor} {} ", status.as_str());
        let canonical = status.canonical_reason().unwrap_or("<none>");
        let reason = head.reason.as_deref();
        out.extend_from_slice(reason.unwrap_or(canonical.as_bytes()));
        out.extend_from_slice(b"\r\n");
        head.fields.write_to(out);
        if let (None, Some(length)) = (declared, length)
            && (!bodiless || asked.head && length > 0)
        {
            title_line(CONTENT_LENGTH, length.to_string().as_bytes(), out);
        }
        let framing = match declared.or(length) {
            _ if bodiless => Framing::Length(0),
            Some(length) => Framing::Length(length),
            None if http_11 => {
                title_line(TRANSFER_ENCODING, b"chunked", out);
                Framing::Chunked
            }
            None => Framing::None,
        };
        self.trailers = asked.trailers;
        let last = last || framing == Framing::None;
        if head.fields.contains(CONNECTION) {
            // The proxy's own.
        } else if last {
            title_line(CONNECTION, b"close", out);
        } else if !http_11 {
            // Its clients expect a close otherwise (RFC 9112, 9.3).
            title_line(CONNECTION, b"keep-alive", out);
        }
        if !head.fields.contains(DATE) {
            // RFC 9110, 6.6.1.
            let now = HttpDate::from(wall_clock().max(SystemTime::UNIX_EPOCH));
            let _ = write!(out, "Date: {now}\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.queue.framing = framing;
        last
    }

    /// Writes the answer. `false`: it has broken off. The client gets what came before that: many
    /// clients send a request again if its connection ends without a byte.
    pub(super) fn poll_answer<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        loop {
            let filled = self.poll_fill(cx);
            if let Poll::Ready(Err(error)) = &filled {
                tracing::debug!(%error, "an answer broke off");
                (self.body, self.broken) = (None, true);
            }
            if ready!(self.poll_write(io, cx)).is_err() {
                return Poll::Ready(false);
            }
            if self.body.is_none() {
                return Poll::Ready(!self.broken);
            }
            // All is written, and the content has not been polled since: there may be more.
            let _ = ready!(filled);
        }
    }

    /// Takes the available content, as far as there is room. A body that is whole, or that the
    /// client must not get, is dropped with everything it holds.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        while let Some(body) = &mut self.body {
            if self.queue.framing == Framing::Length(0) || body.is_end_stream() {
                return Poll::Ready(self.end(None));
            }
            if !self.queue.has_room() {
                break;
            }
            let frame = ready!(Pin::new(body).poll_frame(cx)).transpose()?;
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => {
                    // No more than was promised.
                    self.queue.push(data);
                }
                Some(Err(frame)) => return Poll::Ready(self.end(frame.trailers_ref())),
                None => return Poll::Ready(self.end(None)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the content. The proxy has removed what may not be in its trailers.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), BoxError> {
        self.body = None;
        if self.queue.push_end(trailers.filter(|_| self.trailers)) {
            Ok(())
        } else {
            Err("the content of an answer has ended before its length".into())
        }
    }

    /// Writes and flushes everything.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            ready!(self.queue.poll_write(io, cx))?;
        }
        Pin::new(io).poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;

    /// A piece that is not copied.
    const LONG: usize = (4 << 10) + 1;

    fn asked(http_11: bool, trailers: bool) -> Asked {
        Asked {
            head: false,
            version: if http_11 {
                Version::HTTP_11
            } else {
                Version::HTTP_10
            },
            trailers,
            keeps: true,
        }
    }

    fn head(status: StatusCode, lines: &[(&'static str, &'static str)]) -> ResponseHead {
        let mut head = Response::new(status, ()).head;
        head.fields.append("date", "now");
        for (name, value) in lines {
            head.fields.append(name, value);
        }
        head
    }

    /// The bytes that are written for an answer with this content.
    async fn written(
        head: &ResponseHead,
        (asked, length): (Asked, Option<u64>),
        pieces: &[usize],
        trailers: Option<HeaderMap>,
    ) -> Result<Vec<u8>, BoxError> {
        let mut output = Output::default();
        output.head(&mut head.clone(), asked, length, false);
        let mut io = Vec::new();
        for length in pieces {
            output.queue.push(vec![b'x'; *length].into());
            let flushed = std::future::poll_fn(|cx| output.poll_write(&mut io, cx)).await;
            flushed.expect("a vector takes all");
        }
        output.end(trailers.as_ref())?;
        let flushed = std::future::poll_fn(|cx| output.poll_write(&mut io, cx)).await;
        flushed.expect("a vector takes all");
        assert!(output.queue.is_empty() && output.queue.has_room());
        Ok(io)
    }

    #[tokio::test]
    async fn content_of_unknown_length_goes_in_chunks() {
        let parts = head(StatusCode::OK, &[("trailer", "x-a"), ("x-c", "1")]);
        let mut trailers = HeaderMap::new();
        trailers.append(
            HeaderName::from_static("x-a"),
            "1".parse().expect("a value"),
        );
        for takes in [true, false] {
            let how = (asked(true, takes), None);
            let all = written(&parts, how, &[1, 0, 18, LONG], Some(trailers.clone())).await;
            let expected = format!(
                "HTTP/1.1 200 OK\r\nDate: now\r\nTrailer: x-a\r\nX-C: 1\r\n\
                 Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n12\r\n{}\r\n1001\r\n{}\r\n\
                 0\r\n{}\r\n",
                "x".repeat(18),
                "x".repeat(LONG),
                if takes { "X-A: 1\r\n" } else { "" },
            );
            assert_eq!(all.expect("whole"), expected.as_bytes());
        }
        // HTTP/1.0 has no chunks: the connection ends it.
        let how = (asked(false, true), None);
        let all = written(&parts, how, &[2], None).await.expect("whole");
        assert_eq!(
            all,
            b"HTTP/1.0 200 OK\r\nDate: now\r\nX-C: 1\r\nConnection: close\r\n\r\nxx"
        );
    }

    #[tokio::test]
    async fn content_is_as_long_as_was_said() {
        let parts = head(StatusCode::OK, &[("content-length", "3")]);
        let how = (asked(true, false), None);
        let all = written(&parts, how, &[2, 5], None).await.expect("whole");
        assert_eq!(
            all,
            b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 3\r\n\r\nxxx"
        );
        written(&parts, how, &[2], None)
            .await
            .expect_err("too short");
    }

    #[tokio::test]
    async fn some_answers_have_no_content() {
        let how = (asked(true, false), Some(0));
        let parts = head(StatusCode::NOT_MODIFIED, &[("content-length", "9")]);
        let all = written(&parts, how, &[], None).await.expect("whole");
        assert_eq!(all, b"HTTP/1.1 304 Not Modified\r\nDate: now\r\n\r\n");
        let parts = head(StatusCode::OK, &[]);
        let all = written(&parts, how, &[], None).await.expect("whole");
        assert_eq!(
            all,
            b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 0\r\n\r\n"
        );
    }

    #[tokio::test]
    async fn an_answer_without_a_date_gets_one() {
        let head = Response::new(StatusCode::OK, ()).head;
        let all = written(&head, (asked(true, false), Some(0)), &[], None).await;
        let all = String::from_utf8(all.expect("whole")).expect("ASCII");
        let date = all.lines().find_map(|line| line.strip_prefix("Date: "));
        let date = httpdate::parse_http_date(date.expect("a date")).expect("of HTTP");
        assert!(
            wall_clock()
                .duration_since(date)
                .is_ok_and(|ago| ago.as_secs() < 60)
        );
    }
}
