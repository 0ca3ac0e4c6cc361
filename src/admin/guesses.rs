//! Wrong tokens are logged, counted, and answered late. A right token never waits for wrong ones: a
//! client is an address, and an operator may share it with a guesser. So a guesser that hangs up
//! early and connects again is not slowed down. Only the length of the token bounds it
//! (docs/limits.md).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::peer::AdminPeer;
use crate::metrics::{AdminRefusal, Metrics};
use crate::throttle::Throttle;

/// How late the answer is.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Guesses {
    said: Throttle,
    metrics: Arc<Metrics>,
}

impl Guesses {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            said: Throttle::of_many(),
            metrics,
        }
    }

    /// Notes a wrong token.
    pub fn wrong(&self, peer: &AdminPeer) {
        self.metrics.admin_refused(AdminRefusal::WrongToken);
        if let Some(left_out) = self.said.say(Instant::now()) {
            tracing::warn!(
                client = &*peer.text,
                left_out,
                "a wrong admin token was refused"
            );
        }
    }

    pub async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }
}
