//! The least HTTP server that the demo's own services need: hyper on a loopback port that the
//! kernel picks, one handler, JSON in and out.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What a handler answers.
pub type Reply = Response<Full<Bytes>>;

/// Bodies beyond this many bytes are not for a demo.
const BODY_LIMIT: usize = 64 * 1024;

/// A request, read whole.
pub struct Call {
    pub method: Method,
    pub path: String,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Call {
    /// The path's segments, without empty ones: enough for services that nobody attacks.
    pub fn segments(&self) -> Vec<&str> {
        self.path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .collect()
    }

    /// The body as JSON; an empty one is `null`.
    ///
    /// # Errors
    /// A 400 that says what the parser said.
    pub fn json(&self) -> Result<Value, Box<Reply>> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            let reason = serde_json::json!({ "error": format!("the body is not JSON: {error}") });
            Box::new(reply(StatusCode::BAD_REQUEST, &reason))
        })
    }
}

/// A JSON answer.
pub fn reply(status: StatusCode, body: &Value) -> Reply {
    let mut text = body.to_string();
    text.push('\n');
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    response
}

/// A running server. Dropping it ends it.
#[must_use]
pub struct Server {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds a free loopback port and serves every request with `handler`.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start<H, F>(handler: H) -> anyhow::Result<Self>
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("cannot bind a loopback port")?;
        let addr = listener
            .local_addr()
            .context("a bound port has no address")?;
        let handler = Arc::new(handler);
        let task = tokio::spawn(async move {
            loop {
                // A failed accept (out of descriptors, say) passes; the next one may succeed.
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let handler = Arc::clone(&handler);
                tokio::spawn(async move {
                    let service = service_fn(move |request| serve(Arc::clone(&handler), request));
                    // A broken connection is the client's business.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { addr, task })
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve<H, F>(handler: Arc<H>, request: Request<Incoming>) -> Result<Reply, Infallible>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, BODY_LIMIT).collect().await else {
        let reason = serde_json::json!({ "error": "the body broke off, or is too long" });
        return Ok(reply(StatusCode::BAD_REQUEST, &reason));
    };
    let call = Call {
        method: head.method,
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body: body.to_bytes(),
    };
    Ok(handler(call).await)
}
