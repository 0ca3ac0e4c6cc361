//! Limits the requests to `/v1` and the page. Requests beyond the limit are refused at once.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::Semaphore;

use super::problem;
use crate::metrics::{AdminRefusal, Metrics};

/// Reads that are handled, or whose answers are being written; and as many writes.
pub const AT_ONCE: usize = 32;
/// The bytes of an answer that are handed to the connection at once. The rest keeps the permit.
const PIECE: usize = 16 << 10;

/// The limit on requests in progress. Reads take nothing from writes, which need a token.
pub struct RequestLimit {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl RequestLimit {
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            reads: Arc::new(Semaphore::new(AT_ONCE)),
            writes: Arc::new(Semaphore::new(AT_ONCE)),
            metrics,
        })
    }

    /// A layer: serves a request if a permit is free, and keeps the permit until the connection has
    /// taken the answer.
    pub async fn serve(self: Arc<Self>, request: Request, next: Next) -> Response {
        let writes = request.method() == Method::POST;
        let permits = if writes { &self.writes } else { &self.reads };
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
            self.metrics.admin_refused(AdminRefusal::Overloaded);
            return problem::shed().into_response();
        };
        let (mut head, body) = next.run(request).await.into_parts();
        let Ok(whole) = to_bytes(body, usize::MAX).await else {
            return problem::shed().into_response();
        };
        let length = head.headers.entry(header::CONTENT_LENGTH);
        length.or_insert_with(|| whole.len().into());
        let pieces = unfold((whole, permit), async |(mut rest, permit)| {
            let piece = rest.split_to(rest.len().min(PIECE));
            (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (rest, permit)))
        });
        Response::from_parts(head, Body::from_stream(pieces))
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_goes_out_in_pieces_and_holds_its_permit_until_the_last() {
        let limit = RequestLimit::new(Arc::new(Metrics::new(&[])));
        let layer = Arc::clone(&limit);
        let long = async || vec![7_u8; 2 * PIECE + 1];
        let app = Router::new()
            .route("/", get(long).post(long))
            .layer(from_fn(move |request: Request, next| {
                Arc::clone(&layer).serve(request, next)
            }));
        let ask = async |method: Method| {
            let mut request = Request::new(Body::empty());
            *request.method_mut() = method;
            app.clone().oneshot(request).await.expect("infallible")
        };
        let mut held = Vec::new();
        for _ in 0..AT_ONCE {
            let mut answer = ask(Method::GET).await;
            let length = &answer.headers()[header::CONTENT_LENGTH];
            assert_eq!(*length, (2 * PIECE + 1).to_string());
            let first = answer.frame().await.expect("a frame").expect("no error");
            assert_eq!(first.into_data().expect("data").len(), PIECE);
            held.push(answer);
        }
        assert_eq!(ask(Method::GET).await.status(), 503);
        // Reads take no permit from writes.
        assert_eq!(ask(Method::POST).await.status(), 200);
        let answer = held.pop().expect("one is held");
        let rest = answer.collect().await.expect("no error").to_bytes();
        assert_eq!(rest.len(), PIECE + 1);
        let without = ask(Method::HEAD).await;
        assert_eq!(without.status(), 200);
        assert_eq!(
            without.headers()[header::CONTENT_LENGTH],
            (2 * PIECE + 1).to_string()
        );
    }
}
