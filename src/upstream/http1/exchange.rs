//! One exchange, up to the head of its answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf as _;
use http::Method;

use super::Http1Pool;
use super::body::{Carrier, Http1Body};
use super::connection::{Http1UpstreamConnection, Upgraded};
use super::head::{self, response_limits};
use super::upload::{Outgoing, Unwritten};
use crate::body::UpstreamRequest;
use crate::http1::content::ContentReader;
use crate::http1::names::UPGRADE;
use crate::http1::response::ResponseHead;
use crate::http1::upstream_framing::{Head, ResponseExpectation, UpstreamFault, UpstreamFraming};
use crate::http1::{Response, connection_has};
use crate::upstream::errors::{SendError, chain};
use crate::upstream::socket::LAPSED;

/// A request that is sent as its response is waited for.
pub(crate) struct Http1Pending {
    pool: Arc<Http1Pool>,
    asked: ResponseExpectation,
    outgoing: Outgoing,
    repeatable: bool,
}

/// Why an exchange over one connection got no answer.
enum Broke {
    /// The kernel has taken no byte of it, and will not.
    Unsent(String),
    /// It may have arrived, in part or whole. The upstream sent nothing before the connection
    /// ended.
    Silent(String),
    /// It may have arrived, in part or whole.
    Midway(String),
}

impl Http1Pending {
    /// `repeatable`: sending it twice does no harm.
    pub(crate) fn new(pool: Arc<Http1Pool>, request: UpstreamRequest, repeatable: bool) -> Self {
        let asked = ResponseExpectation {
            head: request.head.method == Method::HEAD,
            upgrade: request.head.fields.contains(UPGRADE),
        };
        Self {
            pool,
            asked,
            outgoing: Outgoing::new(request),
            repeatable,
        }
    }

    /// Sends the request, and reads the response's head. Dropped midway, it resets the connection
    /// of a fenced request.
    pub(crate) async fn response(mut self: Box<Self>) -> Result<Response<Http1Body>, SendError> {
        // `self` is dropped after the connection below: see the module's documentation.
        let mut reused = true;
        let mut repeats = false;
        let mut connection = if let Some(connection) = self.pool.take() {
            if self.repeatable {
                repeats = self.outgoing.keep();
            }
            connection
        } else {
            reused = false;
            self.pool.open().await.map_err(SendError::NotSent)?
        };
        loop {
            connection.set_busy(true);
            let limits = response_limits(self.pool.connecting.header_bytes);
            let mut attempt = Attempt::new(UpstreamFraming::new(self.asked, limits), &connection);
            let outgoing = &mut self.outgoing;
            let answered = poll_fn(|cx| attempt.poll(cx, &mut connection, outgoing)).await;
            match answered {
                Ok((head, content)) => {
                    let Self { pool, outgoing, .. } = *self;
                    return attempt.response(&pool, connection, outgoing, &head, content);
                }
                Err(Broke::Silent(why)) if std::mem::take(&mut repeats) => {
                    // The upstream has probably closed it while it was idle (RFC 9110, 9.2.2).
                    tracing::debug!(why, "a safe request goes over another connection");
                    reused = false;
                    self.outgoing.rewind();
                    connection = self.pool.open().await.map_err(SendError::Broken)?;
                }
                Err(Broke::Silent(why) | Broke::Midway(why)) => {
                    return Err(SendError::Broken(why));
                }
                Err(Broke::Unsent(why)) => {
                    drop(connection);
                    if !reused || !self.outgoing.is_untouched() {
                        return Err(SendError::NotSent(why));
                    }
                    // It was closed while it was idle.
                    (reused, repeats) = (false, false);
                    connection = self.pool.open().await.map_err(SendError::NotSent)?;
                }
            }
        }
    }
}

/// A 101 to a request that can't be written any more.
fn not_taken() -> Broke {
    let why = "the upstream switched protocols, and did not take the request";
    Broke::Midway(why.to_owned())
}

/// An exchange over one connection.
struct Attempt {
    reader: UpstreamFraming,
    /// How many bytes the kernel had taken before.
    before: u64,
    /// The upstream takes no more of the request. Its answer may say why.
    unwritable: bool,
    /// Something has come over the connection.
    heard: bool,
    /// The upstream answered 101 before it had the whole request.
    switched: Option<ResponseHead>,
}

impl Attempt {
    fn new(reader: UpstreamFraming, connection: &Http1UpstreamConnection) -> Self {
        Self {
            reader,
            before: connection.written(),
            unwritable: false,
            heard: false,
            switched: None,
        }
    }

    fn broke(&self, connection: &Http1UpstreamConnection, why: String) -> Broke {
        if connection.written() == self.before {
            Broke::Unsent(why)
        } else if !self.heard {
            Broke::Silent(why)
        } else {
            Broke::Midway(why)
        }
    }

    fn fault(&self, connection: &Http1UpstreamConnection, fault: UpstreamFault) -> Broke {
        tracing::warn!(%fault, "a connection to the upstream is given up");
        self.broke(connection, fault.to_string())
    }

    /// Ready with the head of the answer, and its content. `None`: another protocol follows.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1UpstreamConnection,
        outgoing: &mut Outgoing,
    ) -> Poll<Result<(ResponseHead, Option<ContentReader>), Broke>> {
        if !self.unwritable
            && let Poll::Ready(Err(error)) = outgoing.poll(cx, connection)
        {
            match error {
                Unwritten::Body(error) => return Poll::Ready(Err(Broke::Midway(chain(&error)))),
                Unwritten::Length => {
                    let why = "the body is not as long as its Content-Length says";
                    return Poll::Ready(Err(Broke::Midway(why.to_owned())));
                }
                Unwritten::Socket(error) if error.kind() == LAPSED => {
                    return Poll::Ready(Err(Broke::Midway(chain(&error))));
                }
                Unwritten::Socket(error) if connection.written() == self.before => {
                    return Poll::Ready(Err(Broke::Unsent(chain(&error))));
                }
                Unwritten::Socket(_) => self.unwritable = true,
            }
        }
        if let Some(head) = &self.switched {
            if self.unwritable {
                return Poll::Ready(Err(not_taken()));
            }
            if !outgoing.is_whole() {
                return Poll::Pending;
            }
            return Poll::Ready(Ok((head.clone(), None)));
        }
        loop {
            if let Some(answer) = self.look(connection)? {
                if answer.1.is_none() && !outgoing.is_whole() {
                    if self.unwritable {
                        return Poll::Ready(Err(not_taken()));
                    }
                    self.switched = Some(answer.0);
                    // The upload was polled above and wakes this task.
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(answer));
            }
            let why = match ready!(connection.poll_fill(cx)) {
                Ok(0) => "the upstream closed the connection before its answer".to_owned(),
                Ok(_) => {
                    self.heard = true;
                    continue;
                }
                Err(error) => chain(&error),
            };
            return Poll::Ready(Err(self.broke(connection, why)));
        }
    }

    /// Reads heads from the received bytes.
    fn look(
        &mut self,
        connection: &mut Http1UpstreamConnection,
    ) -> Result<Option<(ResponseHead, Option<ContentReader>)>, Broke> {
        loop {
            if connection.buf.is_empty() {
                return Ok(None);
            }
            if connection.written() == self.before {
                return Err(self.fault(connection, UpstreamFault::Extra));
            }
            let read = self.reader.read(&connection.buf);
            match read.map_err(|fault| self.fault(connection, fault))? {
                None => return Ok(None),
                Some(Head::Interim(length)) => connection.buf.advance(length),
                Some(Head::Final(head, content)) => return Ok(Some((head, Some(content)))),
                Some(Head::Switched(head)) => return Ok(Some((head, None))),
            }
        }
    }

    /// The response, with a body that has the connection.
    fn response(
        self,
        pool: &Arc<Http1Pool>,
        mut connection: Http1UpstreamConnection,
        outgoing: Outgoing,
        head: &ResponseHead,
        content: Option<ContentReader>,
    ) -> Result<Response<Http1Body>, SendError> {
        let bytes = connection.take(head.length as u64);
        let Some(said) = head::response(head, bytes, self.reader.fields()) else {
            return Err(SendError::Broken("the head of the response".to_owned()));
        };
        let Some(content) = content else {
            let body = Http1Body::switched(Upgraded::new(connection));
            return Ok(Response { head: said, body });
        };
        let carrier = Carrier {
            // An HTTP/1.0 upstream may disagree on where messages end.
            keeps: head.http_11 && !head.odd && !connection_has(&said.fields, "close"),
            connection,
            outgoing,
            unwritable: self.unwritable,
            pool: Arc::clone(pool),
        };
        let body = Http1Body::new(carrier, content).map_err(|fault| {
            tracing::warn!(%fault, "a connection to the upstream is given up");
            SendError::Broken(fault.to_string())
        })?;
        Ok(Response { head: said, body })
    }
}
