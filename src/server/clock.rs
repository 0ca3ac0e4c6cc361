//! One timer for all deadlines of a connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep};

/// A timer that is armed again only for an earlier deadline. Mostly deadlines move on before they
/// are reached: then it wakes once, and finds a later one.
#[derive(Default)]
pub(super) struct Clock(Option<(Pin<Box<Sleep>>, Instant)>);

impl Clock {
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
