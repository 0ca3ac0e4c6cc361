//! The upstream's answer, or the refusal in its place, as an exchange hands it to its client.

use http::Response;
use tokio::sync::oneshot;

use crate::proxy::conclusion::Doubt;
use crate::proxy::refusal::Refusal;
use crate::proxy::reply::ClientBody;

/// The answer of the upstream.
#[derive(Debug)]
pub(crate) struct Answered {
    pub response: Response<ClientBody>,
    /// Why the outcome is unknown though the response may come whole.
    pub doubt: Option<Doubt>,
}

impl Answered {
    /// The answer that opens a tunnel.
    pub(super) const fn switched(response: Response<ClientBody>) -> Self {
        Self {
            response,
            doubt: None,
        }
    }
}

/// Hands over the head of the answer, or the refusal in its place.
pub(super) type HeadTx = oneshot::Sender<Result<Answered, Refusal>>;
