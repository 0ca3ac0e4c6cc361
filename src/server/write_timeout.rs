//! The timeout of a client that reads nothing of its answer: `limits.write_timeout`, or one second
//! if others need its in-flight permit.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::metrics::Limit;
use crate::proxy::Network;
use crate::proxy::limits::slow_clients::{AT_LEAST, SlowClient, SlowClients};

/// The timeout of one client.
pub(super) struct WriteTimeout {
    limit: Duration,
    all: Arc<SlowClients>,
    network: Option<Network>,
    /// Since when it has read nothing.
    since: Option<Instant>,
    clock: Option<Pin<Box<Sleep>>>,
    /// Its entry among the slow clients, once it has read nothing for a while.
    slow: Option<(SlowClient, Pin<Box<WaitForCancellationFutureOwned>>)>,
}

impl WriteTimeout {
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

    /// Stops the timeout: the client has read something, or nothing waits for it.
    pub(super) fn progressed(&mut self) {
        if self.since.take().is_some() {
            self.slow = None;
        }
    }

    /// Starts the timeout if it does not run. Ready with the limit that is reached.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Limit> {
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
        let mut timeout = WriteTimeout::new(LIMIT, Arc::default(), None);
        let began = Instant::now();
        let reached = poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert_eq!((reached, began.elapsed()), (Limit::WriteTimeout, LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_after_a_second_where_room_is_needed() {
        let all: Arc<SlowClients> = Arc::default();
        let mut timeout = WriteTimeout::new(LIMIT, Arc::clone(&all), None);
        let needed = async {
            loop {
                all.make_room(1, Instant::now());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let began = Instant::now();
        let reached = tokio::select! {
            reached = poll_fn(|cx| timeout.poll_expired(cx)) => reached,
            () = needed => unreachable!("it has no end"),
        };
        assert_eq!(reached, Limit::SlowClients);
        let ended = began.elapsed().as_millis();
        assert!((1000..1500).contains(&ended), "{ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_begins_it_again() {
        let mut timeout = WriteTimeout::new(LIMIT, Arc::default(), None);
        for _ in 0..3 {
            let wait = poll_fn(|cx| timeout.poll_expired(cx));
            let waited = tokio::time::timeout(LIMIT / 2, wait).await;
            assert!(waited.is_err());
            timeout.progressed();
        }
    }
}
