//! Wrong tokens: logged, counted, and slowed. A client that gave one is answered late for a while, right tokens
//! too: where only wrong ones waited, a guesser would hang up early and go on. The right token is never refused,
//! so nobody locks the operator out by guessing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Peer;
use super::clients::Client;
use crate::metrics::{AdminRefusal, Metrics};
use crate::throttle::Throttle;

/// How late the answer is. A client has few connections at once, and so few guesses in that time.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long after its last wrong token a client is slowed.
const SLOWED: Duration = Duration::from_mins(1);
/// So many clients are remembered; for another one the oldest is forgotten.
const REMEMBERED: usize = 1024;

pub struct Guesses {
    /// The last wrong token of each client. Held for a look through a bounded map, never across an await.
    latest: Mutex<HashMap<Client, Instant>>,
    said: Throttle,
    metrics: Arc<Metrics>,
}

impl Guesses {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            latest: Mutex::default(),
            said: Throttle::of_many(),
            metrics,
        }
    }

    /// Whether this client gave a wrong token lately.
    pub fn slows(&self, client: Client) -> bool {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        latest.get(&client).is_some_and(|last| now - *last < SLOWED)
    }

    /// Notes a wrong token.
    pub fn wrong(&self, peer: &Peer) {
        let now = Instant::now();
        self.metrics.admin_refused(AdminRefusal::WrongToken);
        if let Some(left_out) = self.said.say(now) {
            tracing::warn!(
                peer = &*peer.text,
                left_out,
                "a wrong admin token was refused"
            );
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.len() >= REMEMBERED && !latest.contains_key(&peer.client) {
            let oldest = latest.iter().min_by_key(|(_, last)| **last);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                latest.remove(&oldest);
            }
        }
        latest.insert(peer.client, now);
    }

    pub async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }
}
