//! The loopback port of `fencepost attach`: the data path of `fencepost serve`, with an
//! [`Attachment`] in front of its judgement.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;

use crate::app::Attached;
use crate::config::{Listen, Settings};
use crate::proxy::attachment::Attachment;
use crate::proxy::headers::{OUTCOME, TARGET};
use crate::proxy::{Client, ClientBody, Received};

/// The most of an answer to a claim that is read.
const ANSWER_MAX: usize = 64 << 10;

/// A port that accepts.
pub(super) struct AttachedPort(Attached);

/// A claim of a resource.
#[derive(Clone, Debug)]
pub struct AttachClaim {
    /// The later request: `PUT /orders/7`.
    pub target: HeaderValue,
    /// Where the fencepost takes claims.
    pub path: Uri,
    /// `Bearer …`, if it asks for that.
    pub authorization: Option<HeaderValue>,
}

impl AttachedPort {
    /// Binds the port and begins to accept.
    pub(super) async fn open(
        settings: Settings,
        attachment: Arc<Attachment>,
    ) -> anyhow::Result<Self> {
        if let Listen::Tcp(address) = &settings.listen {
            let ip: Option<std::net::SocketAddr> = address.parse().ok();
            ensure!(
                ip.is_some_and(|ip| ip.ip().is_loopback()),
                "--listen {address}: whoever reaches the port writes with your token, so it must be \
                 a loopback address, such as 127.0.0.1:7079, or unix:/path"
            );
        }
        Ok(Self(Attached::open(settings, attachment).await?))
    }

    /// `127.0.0.1:40123`, or `unix:` and a path.
    pub(super) fn address(&self) -> &str {
        &self.0.address
    }

    /// The path of the Unix socket, if it is one.
    pub(super) fn socket(&self) -> Option<&str> {
        self.address().strip_prefix("unix:")
    }

    /// Claims a resource with the token. When it returns, the older holder's work there has ended.
    pub(super) async fn claim(&self, claim: &AttachClaim) -> anyhow::Result<()> {
        let mut request = Request::new(Received::Whole(Bytes::new()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = claim.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        headers.insert(TARGET, claim.target.clone());
        if let Some(authorization) = &claim.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let client = Client::of_this_process("attach");
        let answer = self.0.proxy().handle(request, &client).await;
        let outcome = answer.headers().get(OUTCOME);
        if outcome.is_some_and(|outcome| outcome == "claimed") {
            return Ok(());
        }
        anyhow::bail!(refusal(answer).await)
    }

    /// Lets requests in flight end, and cuts them after `within`.
    pub(super) async fn close(self, within: Duration) {
        self.0.close(within).await;
    }
}

/// What an answer says in place of a grant.
async fn refusal(answer: Response<ClientBody>) -> String {
    let (head, body) = answer.into_parts();
    let outcome = head
        .headers
        .get(OUTCOME)
        .and_then(|outcome| outcome.to_str().ok());
    let Some(outcome) = outcome else {
        return format!(
            "{} came back, and not from a fencepost: --to must lead to one that takes claims",
            head.status
        );
    };
    let body = Limited::new(body, ANSWER_MAX).collect().await;
    let problem = body.ok().map(http_body_util::Collected::to_bytes);
    let problem: Option<Value> = problem.and_then(|text| serde_json::from_slice(&text).ok());
    let detail = problem
        .as_ref()
        .and_then(|problem| problem.get("detail")?.as_str());
    format!(
        "{outcome} ({}): {}",
        head.status,
        detail.unwrap_or("no detail")
    )
}
