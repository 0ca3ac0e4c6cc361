//! Exchanges that end without a whole response: cut short, broken, or not sent at all.

use std::future::poll_fn;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ExchangeLimits;
use crate::body::UploadProgress;
use crate::deadline_timer::SpareTimer;
use crate::fencing::permit::Sending;
use crate::proxy::refusal::{Refusal, Why};
use crate::upstream::SendError;

/// Why there is no response head.
pub(super) enum ExchangeFailure {
    Unanswered(SendError),
    Cut(Cut),
}

impl ExchangeFailure {
    /// Whether nothing was sent, or the upstream says that it has processed nothing.
    pub(super) fn is_without_effect(&self) -> bool {
        matches!(
            self,
            Self::Unanswered(SendError::NotSent(_) | SendError::Refused(_))
        )
    }

    /// `spent`: the token could not be given back.
    pub(super) fn refusal(self, limits: ExchangeLimits, spent: bool) -> Refusal {
        match self {
            Self::Unanswered(SendError::Refused(why)) => Refusal::refused(&why, spent),
            Self::Unanswered(SendError::NotSent(why)) => Refusal::unreachable(&why, spent),
            Self::Unanswered(error @ SendError::Broken(_)) => error.into(),
            Self::Cut(cut) => cut.refusal(limits),
        }
    }
}

/// Why an exchange was cut short.
pub(super) enum Cut {
    Grace,
    Lease,
    TooSlow,
}

/// When an exchange is cut short, regardless of the upstream and the client.
#[derive(Clone, Copy)]
pub(super) struct Cuts<'a> {
    pub superseded: &'a CancellationToken,
    pub cutoff: &'a CancellationToken,
    pub grace: Duration,
}

impl<'a> Cuts<'a> {
    pub(super) fn of(sending: &'a Sending, limits: ExchangeLimits) -> Self {
        Self {
            superseded: sending.superseded(),
            cutoff: sending.cutoff(),
            grace: limits.grace,
        }
    }

    /// Resolves `grace` after a newer token is known, or when the lease has been lapsed for too
    /// long.
    pub(super) async fn due(self) -> Cut {
        let overdue = async {
            self.superseded.cancelled().await;
            tokio::time::sleep(self.grace).await;
        };
        tokio::select! {
            () = overdue => Cut::Grace,
            () = self.cutoff.cancelled() => Cut::Lease,
        }
    }
}

impl Cut {
    pub(super) fn refusal(&self, limits: ExchangeLimits) -> Refusal {
        match self {
            Self::TooSlow => Refusal::TooSlow(limits.timeout),
            Self::Grace => Refusal::Broken(Why::new(
                "A newer token waits, and the exchange did not end within barrier.grace",
            )),
            Self::Lease => Refusal::Broken(Why::new(
                "The proxy has lost its lease on the store, or is stopping",
            )),
        }
    }
}

/// Resolves `timeout` after the request was handed over whole: one that `began` just now mostly is.
/// If the upload does not end, it resolves after both limits together.
pub(super) async fn too_slow(progress: &UploadProgress, limits: ExchangeLimits, began: Instant) {
    let mut timer = SpareTimer::take();
    let mut deadline = began + limits.upload + limits.timeout;
    let (mut sent, mut now) = (false, Some(began));
    poll_fn(|cx| {
        let now = now.take();
        if !sent && progress.poll_sent(cx).is_ready() {
            let since = now.unwrap_or_else(Instant::now);
            (sent, deadline) = (true, deadline.min(since + limits.timeout));
        }
        timer.poll(cx, deadline)
    })
    .await;
}
