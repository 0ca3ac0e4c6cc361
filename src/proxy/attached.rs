//! The request path of `fencepost attach`: each request gets the holder's token and goes to a
//! fencepost, which judges it. A refusal is answered by what it says about a retry:
//!
//! - `never` because the token is stale: the hold is lost. Nothing more is forwarded.
//! - `same-token`: the fencepost has sent nothing, so the same request with the same token is sent
//!   again, as long as `retry_for` lasts and the body is here whole.
//! - `check-first`, and everything else: the client gets it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, Version};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;
use tokio::time::Instant;

use super::answer::{CountAs, Forwarded};
use super::attachment::Attachment;
use super::body::{ClientBody, Received, Upload, UploadProgress};
use super::classify::{host, whole_head};
use super::client::Client;
use super::context::Context;
use super::exchange::unfenced;
use super::headers::attached::FencingStamp;
use super::headers::{self, OUTCOME, RETRY, TARGET, fencing_token};
use super::refusal::Refusal;
use super::setup::Proxy;
use super::tunnel;
use super::upstream_request::Additions;
use crate::metrics::Outcome;
use crate::routing::is_address_or_localhost;

/// How long a body may take to come whole, so that its request can be sent again.
const HOLD: Duration = Duration::from_millis(100);
/// The pauses before attempts of which the fencepost says no time: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The most of a refusal's body that is read. Those of a fencepost are shorter.
const PROBLEM_MAX: usize = 64 << 10;

impl Proxy {
    /// Stamps a request, passes it on, and sends it again where the answer allows that.
    pub(super) async fn attached(
        &self,
        context: &Context<'_>,
        attachment: &Attachment,
        head: Parts,
        body: Received,
    ) -> Result<Forwarded, Refusal> {
        attachment.counts.request();
        let stamp = attachment.stamp();
        check(attachment, &stamp, (&head, context.client))?;
        let is_call = context.is_call(&head.headers);
        let rules = self.body_rules(context.table().settings.body);
        // A call's messages may wait for answers, and a tunnel has no body.
        let streams = is_call || tunnel::wanted(&head.headers);
        let hold = if streams { Duration::ZERO } else { HOLD };
        let upload = Upload::read(body, &head.headers, &rules, Some(hold)).await?;
        // What the fencepost may be sent again; `None`: the body goes through piece by piece.
        let whole = upload.whole()?;
        let mut upload = Some(upload);
        let until = Instant::now() + attachment.retry_for;
        let mut pause = PAUSES.0;
        let mut lost = attachment.lost();
        loop {
            if let Some(response) = attachment.refused() {
                return Ok(stale(response));
            }
            let upload = match (upload.take(), &whole) {
                (Some(upload), _) => upload,
                (None, body) => {
                    let body = body.as_ref().map(|body| body.data.clone());
                    let body = body.unwrap_or_default();
                    Upload::streamed(Received::Whole(body), &rules)?
                }
            };
            let sent = self.stamped(context, &stamp, (head.clone(), upload)).await;
            let wait = whole.as_ref().and_then(|_| wait(&sent, pause));
            let Some(wait) = wait.filter(|wait| Instant::now() + *wait < until) else {
                let sent = sent.inspect_err(|refusal| {
                    refused(attachment, &head, refusal.outcome().as_str());
                });
                return self.seen(attachment, &stamp, &head, sent?).await;
            };
            drop(sent);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A sender that is gone is not waited for either.
                _ = lost.wait_for(Option::is_some) => {}
            }
            pause = (pause * 2).min(PAUSES.1);
            attachment.counts.retry();
        }
    }

    /// One attempt.
    async fn stamped(
        &self,
        context: &Context<'_>,
        stamp: &FencingStamp,
        (mut head, upload): (Parts, Upload),
    ) -> Result<Response<ClientBody>, Refusal> {
        let permit = self.in_flight.take(context.client)?;
        let opening = if context.snapshot.upstream.h2 {
            None
        } else {
            self.tunnel(&mut head, context.client)?
        };
        let additions = Additions {
            stamp: Some(stamp),
            opening,
            ..Additions::default()
        };
        let progress = Arc::new(UploadProgress::default());
        let body = upload.send_unfenced(Arc::clone(&progress));
        let exchange = self.exchange(context, None, head, body, additions, permit);
        let metrics = &context.table().unmatched_metrics;
        let way = (&*context.snapshot.upstream, &**metrics);
        unfenced::forward(exchange, way, &progress, &self.tasks).await
    }

    /// Looks at the last answer on its way to the client.
    async fn seen(
        &self,
        attachment: &Attachment,
        stamp: &FencingStamp,
        head: &Parts,
        answer: Response<ClientBody>,
    ) -> Result<Forwarded, Refusal> {
        let outcome = answer.headers().get(OUTCOME);
        if outcome.is_none()
            && !self.via.is_behind_another(answer.headers())
            && attachment.counts.past_no_fence()
        {
            tracing::warn!(
                request = said(head),
                "an answer did not come through a fencepost, so nothing checks the token there: \
                 --to must lead to one; further ones are only counted"
            );
        }
        if outcome.is_none_or(|outcome| outcome != Outcome::StaleToken.as_str()) {
            if answer.headers().contains_key(RETRY)
                && let Some(Ok(outcome)) = outcome.map(HeaderValue::to_str)
            {
                refused(attachment, head, outcome);
            }
            return Ok(Forwarded {
                response: answer,
                counted: CountAs::Outcome(Outcome::Unfenced),
            });
        }
        let (mut parts, body) = answer.into_parts();
        let body = if let Ok(collected) = Limited::new(body, PROBLEM_MAX).collect().await {
            collected.to_bytes()
        } else {
            // What it says matters less than that it is known.
            parts.headers.remove(CONTENT_LENGTH);
            Bytes::new()
        };
        let request = (&stamp.token, said(head));
        let mark = mark(&body);
        Ok(stale(attachment.lose(request, mark, (parts, body))))
    }
}

/// Counts a refusal that ends no hold, or an unknown outcome.
fn refused(attachment: &Attachment, head: &Parts, outcome: &str) {
    if attachment.counts.refused(outcome) {
        tracing::warn!(
            request = said(head),
            outcome,
            "a request was refused, or its outcome is unknown; further ones with this outcome are \
             only counted"
        );
    }
}

fn stale(response: Response<ClientBody>) -> Forwarded {
    Forwarded {
        response,
        counted: CountAs::Outcome(Outcome::StaleToken),
    }
}

/// For people: `PUT /orders/7`. A query may have secrets.
fn said(head: &Parts) -> String {
    match headers::text(&head.headers, &TARGET) {
        Ok(Some(target)) => format!("the claim of {target}"),
        Ok(None) | Err(_) => format!("{} {}", head.method, head.uri.path()),
    }
}

/// The mark that a refusal discloses.
fn mark(problem: &[u8]) -> Option<String> {
    let problem: Value = serde_json::from_slice(problem).ok()?;
    Some(problem.get("mark")?.as_str()?.to_owned())
}

/// How long to wait until the same request is sent again; `None`: it must not be. `pause`: where
/// the refusal names no time.
fn wait(sent: &Result<Response<ClientBody>, Refusal>, pause: Duration) -> Option<Duration> {
    match sent {
        Ok(answer) => {
            let headers = answer.headers();
            let again = headers
                .get(RETRY)
                .is_some_and(|retry| retry == "same-token");
            again.then(|| retry_after(headers).unwrap_or(pause))
        }
        Err(refusal) => refusal
            .was_not_sent()
            .then(|| refusal.retry_after().unwrap_or(pause)),
    }
}

/// In seconds (RFC 9110, 10.2.3), as a fencepost writes it.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Whether a request may be stamped.
fn check(
    attachment: &Attachment,
    stamp: &FencingStamp,
    (head, client): (&Parts, &Client),
) -> Result<(), Refusal> {
    whole_head(head)?;
    addressed_here(attachment, head, client)?;
    let own = fencing_token(&head.headers);
    match own.map_err(|error| Refusal::Ambiguous(error.to_string()))? {
        Some(own) if *own != stamp.token => Err(Refusal::Ambiguous(
            "The request has an X-Fencing-Token of its own, and fencepost attach sends another one: \
             leave one of them out."
                .into(),
        )),
        Some(_) | None => Ok(()),
    }
}

/// The token is for the command. A port of the loopback is also reached by web pages in a browser
/// of this machine: of another site, or under a name that its owner has turned toward this machine
/// (DNS rebinding). No browser reaches a Unix socket.
fn addressed_here(attachment: &Attachment, head: &Parts, client: &Client) -> Result<(), Refusal> {
    let host = host(head)?;
    let host = host.to_str().unwrap_or_default();
    let by_socket = client.ip.is_none();
    // The client takes this port for a proxy (RFC 9112, 3.2.2).
    let proxied = head.version != Version::HTTP_2 && head.uri.authority().is_some();
    let names_the_port = !proxied && (by_socket || is_address_or_localhost(host));
    if !names_the_port && !attachment.stands_for(host) {
        return Err(Refusal::Ambiguous(format!(
            "The request is for {host}, and this attach leads elsewhere: use the address in \
             FENCEPOST_URL. Or name {host} with --http-proxy if it is the fenced service, or in \
             NO_PROXY of the command if it is not."
        )));
    }
    let text = |name| Some(head.headers.get(name)?.to_str().unwrap_or_default());
    let of_this_site = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin
            .strip_prefix("http://")
            .is_some_and(|origin| origin.eq_ignore_ascii_case(host)),
        (None, None) => true,
    };
    if by_socket || of_this_site {
        return Ok(());
    }
    Err(Refusal::Ambiguous(
        "A web page of another site has sent this request, and fencepost attach adds the token to \
         requests of its command only."
            .into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::body::full;

    #[test]
    fn a_mark_is_read_where_it_is_disclosed() {
        assert_eq!(
            mark(br#"{"mark":"42","token":"41"}"#).as_deref(),
            Some("42")
        );
        for other in [&b"{}"[..], b"", b"[]", br#"{"mark":42}"#] {
            assert_eq!(mark(other), None);
        }
    }

    fn waits(fields: &[(&'static str, &'static str)], pause: Duration) -> Option<Duration> {
        let mut answer = Response::new(full(""));
        for (name, value) in fields {
            let value = http::HeaderValue::from_static(value);
            answer.headers_mut().insert(*name, value);
        }
        wait(&Ok(answer), pause)
    }

    #[test]
    fn only_what_was_not_sent_is_sent_again() {
        let pause = Duration::from_millis(7);
        let says = |retry| waits(&[("x-fencing-retry", retry)], pause);
        assert_eq!(says("same-token"), Some(pause));
        assert_eq!(says("never"), None);
        assert_eq!(says("check-first"), None);
        let services_own = [("retry-after", "1")];
        assert_eq!(waits(&services_own, pause), None);
        let after = [("x-fencing-retry", "same-token"), ("retry-after", "3")];
        assert_eq!(waits(&after, pause), Some(Duration::from_secs(3)));
        let broken = Refusal::TooSlow(Duration::from_secs(1));
        assert_eq!(wait(&Err(broken), pause), None, "it may have been sent");
    }
}
