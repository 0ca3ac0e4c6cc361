//! The time that a client has which takes nothing of its answer: `limits.write_timeout`, and no
//! more than a second where others need its place.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::metrics::Limit;
use crate::proxy::Network;
use crate::proxy::slow::{AT_LEAST, SlowClient, SlowClients};

/// The patience with one client.
pub(super) struct Patience {
    limit: Duration,
    all: Arc<SlowClients>,
    network: Option<Network>,
    /// Since when it has taken nothing.
    since: Option<Instant>,
    clock: Option<Pin<Box<Sleep>>>,
    /// Known to those who want room, once it has been waited for long enough.
    slow: Option<(SlowClient, Pin<Box<WaitForCancellationFutureOwned>>)>,
}

impl Patience {
    /// `network`: where the client is; `None`: at a Unix socket.
    pub(super) fn new(limit: Duration, all: Arc<SlowClients>, network: Option<Network>) -> Self {
        Self {
            limit,
            all,
            network,
            since: None,
            clock: None,
            slow: None,
        }
    }

    /// The client has taken something, or nothing waits for it.
    pub(super) fn taken(&mut self) {
        if self.since.take().is_some() {
            self.slow = None;
        }
    }

    /// The client is waited for. Ready with the limit that is reached.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Limit> {
        let now = Instant::now();
        let look = AT_LEAST.min(self.limit);
        let clock = self
            .clock
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(look)));
        let since = *self.since.get_or_insert_with(|| {
            clock.as_mut().reset(now + look);
            now
        });
        while clock.as_mut().poll(cx).is_ready() {
            let behind = Instant::now().saturating_duration_since(since);
            if behind >= self.limit {
                return Poll::Ready(Limit::WriteTimeout);
            }
            let (client, _) = self.slow.get_or_insert_with(|| {
                let client = self.all.add(self.network);
                let crowded = client.crowded().cancelled_owned();
                (client, Box::pin(crowded))
            });
            client.is_behind(behind);
            let next = Instant::now() + AT_LEAST;
            clock.as_mut().reset(next.min(since + self.limit));
        }
        match &mut self.slow {
            Some((_, crowded)) => crowded.as_mut().poll(cx).map(|()| Limit::SlowClients),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_the_limit_where_there_is_room() {
        let mut patience = Patience::new(LIMIT, Arc::default(), None);
        let began = Instant::now();
        let reached = poll_fn(|cx| patience.wait(cx)).await;
        assert_eq!((reached, began.elapsed()), (Limit::WriteTimeout, LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_after_a_second_where_room_is_needed() {
        let all: Arc<SlowClients> = Arc::default();
        let mut patience = Patience::new(LIMIT, Arc::clone(&all), None);
        let needed = async {
            loop {
                all.make_room(1, Instant::now());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let began = Instant::now();
        let reached = tokio::select! {
            reached = poll_fn(|cx| patience.wait(cx)) => reached,
            () = needed => unreachable!("it has no end"),
        };
        assert_eq!(reached, Limit::SlowClients);
        let ended = began.elapsed().as_millis();
        assert!((1000..1500).contains(&ended), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_begins_it_again() {
        let mut patience = Patience::new(LIMIT, Arc::default(), None);
        for _ in 0..3 {
            let wait = poll_fn(|cx| patience.wait(cx));
            let waited = tokio::time::timeout(LIMIT / 2, wait).await;
            assert!(waited.is_err());
            patience.taken();
        }
    }
}
