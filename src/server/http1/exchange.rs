//! One request of a connection: the handler, and its answer.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use http::{Method, StatusCode, Version};
use http_body::Body as _;

use super::input::Fed;
use super::response_head::{Last, ResponseConstraints, ResponseContent};
use super::{AfterAnswer, Http1Connection, Site, request_head};
use crate::body::BoxError;
use crate::http1::request::{RequestError, WholeHead};
use crate::http1::{Handover, Response, handover};
use crate::proxy::headers::OUTCOME;
use crate::proxy::{ClientBody, limit_of};
use crate::server::connection_state::Signal;

impl Http1Connection {
    /// One request, and its answer.
    pub(super) async fn exchange(&mut self, head: WholeHead, site: &Site<'_>) -> AfterAnswer {
        let bytes = self.input.take_head(head);
        let reader = self.input.reader();
        let keeps = reader.keeps();
        let (mut request, asked) = match request_head::read(reader, bytes) {
            Ok(request) => {
                let asked = ResponseConstraints {
                    head: request.method == Method::HEAD,
                    http_11: request.version == Version::HTTP_11,
                    trailers: reader.takes_trailers(),
                };
                (request, asked)
            }
            Err(error) => return self.refuse(error, site).await,
        };
        let mut switch = None;
        if head.upgrade {
            let (ours, theirs) = handover();
            switch = Some(ours);
            request.upgrade = Some(theirs);
        }
        let body = self.input.begin_body(head);
        let response = if site.spoken {
            let mut service = pin!(site.proxy.handle(request, body, site.peer));
            std::future::poll_fn(|cx| self.poll_service(service.as_mut(), cx)).await
        } else {
            // The body is not read.
            drop(body);
            Some(site.proxy.refuse(RequestError::Version, site.peer))
        };
        match response {
            Some(response) => self.answer(response, (asked, keeps, switch), site).await,
            None => AfterAnswer::Drop,
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
            let output = &mut self.output;
            let fed = self.input.poll_feed(&mut self.io, cx, || output.go_on());
            if let Poll::Ready(Err(_)) = self.output.poll_write(&mut self.io, cx) {
                return Poll::Ready(None);
            }
            match ready!(fed) {
                Fed::Progress => {}
                Fed::Gone => return Poll::Ready(None),
            }
        }
    }

    async fn answer(
        &mut self,
        response: Response<ClientBody>,
        (asked, keeps, switch): (ResponseConstraints, bool, Option<Handover>),
        site: &Site<'_>,
    ) -> AfterAnswer {
        let Response { mut head, body } = response;
        // After the answer no `100 Continue` is sent.
        let _ = self.input.takes_expectation();
        if !self.input.is_whole() && self.input.is_unwanted() {
            self.drain().await;
        }
        let unread = head.fields.contains(OUTCOME) && !self.input.is_whole();
        let state = site.state;
        let leaves = state.is(Signal::Announced) || state.is(Signal::Leave);
        let switches = head.status == StatusCode::SWITCHING_PROTOCOLS;
        let last = if switches {
            Last::No
        } else if leaves || unread {
            Last::Announced
        } else if !keeps || self.input.is_closed() {
            Last::Yes
        } else {
            Last::No
        };
        let content = if body.is_end_stream() {
            ResponseContent::None
        } else {
            let length = body.size_hint().exact();
            length.map_or(ResponseContent::Unknown, ResponseContent::Length)
        };
        self.output.head(&mut head, asked, content, last);
        drop(head);
        let to_end = self.output.is_to_end();
        let mut body = Some(body);
        let mut broken = false;
        if !std::future::poll_fn(|cx| self.poll_answer(&mut body, &mut broken, cx)).await {
            return AfterAnswer::Drop;
        }
        if switches {
            return switch.map_or(AfterAnswer::Drop, AfterAnswer::Switch);
        }
        if !std::future::poll_fn(|cx| self.poll_upload(cx)).await {
            return AfterAnswer::Drop;
        }
        let whole = self.input.is_whole();
        if last == Last::No && whole && !to_end {
            AfterAnswer::Next
        } else {
            AfterAnswer::Close
        }
    }

    /// Writes an answer. `false`: it has broken off. The client gets what came before that: many
    /// clients send a request again if its connection ends without a byte.
    fn poll_answer(
        &mut self,
        body: &mut Option<ClientBody>,
        broken: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        loop {
            let waits = self.fill(body, cx).unwrap_or_else(|error| {
                tracing::debug!(%error, "an answer broke off");
                (*body, *broken) = (None, true);
                false
            });
            let written = self.output.poll_write(&mut self.io, cx);
            if let Poll::Ready(Err(_)) = written {
                return Poll::Ready(false);
            }
            if body.is_none() && written.is_ready() {
                return Poll::Ready(!*broken);
            }
            match self.input.poll_feed(&mut self.io, cx, || {}) {
                Poll::Ready(Fed::Gone) => return Poll::Ready(false),
                Poll::Ready(Fed::Progress) => continue,
                Poll::Pending => {}
            }
            // All is written, and the content has not been polled since: there may be more.
            if waits || written.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Takes the available content of an answer. `true`: waits for more. A body that is whole, or
    /// that the client must not get, is dropped with everything it holds.
    fn fill(
        &mut self,
        body: &mut Option<ClientBody>,
        cx: &mut Context<'_>,
    ) -> Result<bool, BoxError> {
        while let Some(content) = body {
            if self.output.is_full() {
                *body = None;
            } else if content.is_end_stream() {
                *body = None;
                self.output.end(None)?;
            } else if !self.output.has_room() {
                return Ok(false);
            } else {
                match Pin::new(content).poll_frame(cx) {
                    Poll::Pending => return Ok(true),
                    Poll::Ready(None) => {
                        *body = None;
                        self.output.end(None)?;
                    }
                    Poll::Ready(Some(frame)) => {
                        if self.output.frame(frame?)? {
                            *body = None;
                        }
                    }
                }
            }
        }
        Ok(false)
    }

    /// Reads the rest of an upload behind its answer. `false`: the client has left.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        while !self.input.is_whole() && !self.input.is_closed() {
            match self.input.poll_feed(&mut self.io, cx, || {}) {
                Poll::Ready(Fed::Gone) => return Poll::Ready(false),
                Poll::Ready(Fed::Progress) => {}
                Poll::Pending if self.input.is_unwanted() => self.input.drain(&mut self.io, cx),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(true)
    }

    async fn drain(&mut self) {
        std::future::poll_fn(|cx| {
            self.input.drain(&mut self.io, cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Answers a refused head. Nothing behind it is read.
    pub(super) async fn refuse(&mut self, error: RequestError, site: &Site<'_>) -> AfterAnswer {
        if let Some(limit) = limit_of(error) {
            site.metrics.limit(limit);
        }
        self.input.close();
        let asked = ResponseConstraints {
            // No content may answer a HEAD, not even a refusal's (RFC 9110, 9.3.2).
            head: self.input.begins(b"HEAD "),
            http_11: true,
            trailers: false,
        };
        let response = site.proxy.refuse(error, site.peer);
        match self.answer(response, (asked, false, None), site).await {
            AfterAnswer::Next | AfterAnswer::Close => AfterAnswer::Close,
            then => then,
        }
    }
}
