//! One timer for all deadlines of a connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep};

/// A timer that is only reset for an earlier deadline. Most deadlines move on before they are
/// reached. Then the timer fires once and finds a later deadline.
#[derive(Default)]
pub(super) struct DeadlineTimer(Option<(Pin<Box<Sleep>>, Instant)>);

impl DeadlineTimer {
    /// Ready once `deadline` has passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let (sleep, armed) = self
            .0
            .get_or_insert_with(|| (Box::pin(tokio::time::sleep_until(deadline)), deadline));
        if *armed > deadline {
            sleep.as_mut().reset(deadline);
            *armed = deadline;
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if *armed >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
            *armed = deadline;
        }
    }
}
