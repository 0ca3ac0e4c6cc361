//! What an exchange hands to its client: the upstream's answer, or the refusal in its place.

use http::Response;
use tokio::sync::oneshot;

use crate::proxy::conclusion::Doubt;
use crate::proxy::refusal::Refusal;
use crate::proxy::reply::ClientBody;

/// What the upstream has answered.
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

/// Where the head of the answer is handed over, or the refusal in its place.
pub(super) type HeadTx = oneshot::Sender<Result<Answered, Refusal>>;
