//! Notifications between instances, over NOTIFY. Any of them may get lost; polling covers that.
//!
//! A subscription that is alive loses nothing. It proves that it is alive: it regularly notifies
//! itself, on a channel of its own. Notifications arrive in the order in which they were committed,
//! so its own one arrives after all that were sent before.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use super::connect::Connector;
use super::errors::error_of;
use crate::routing::{ResourceKey, Token};
use crate::store::{Era, Heard, InstanceId, Notification, StoreError};

/// The pauses between attempts to subscribe: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often a subscription notifies itself, and how soon that must arrive.
const ECHO: Duration = Duration::from_secs(2);

/// The channel of a namespace: a digest, since an identifier may not have any length and spelling.
pub(super) fn channel(namespace: &str) -> String {
    use std::fmt::Write as _;

    let digest = Sha256::digest(namespace.as_bytes());
    let mut name = "fencepost_".to_owned();
    for byte in digest.iter().take(8) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
enum Payload {
    Newer {
        r: String,
        t: String,
        e: Era,
        /// Absent in what versions before 0.2.0 send.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        o: Option<String>,
    },
    Closed {
        r: String,
    },
}

pub(super) fn encode(notification: &Notification) -> Option<String> {
    let payload = match notification {
        Notification::Newer {
            resource,
            token,
            era,
            owner,
        } => Payload::Newer {
            r: resource.as_str().to_owned(),
            t: token.to_string(),
            e: *era,
            o: owner.as_ref().map(|owner| owner.as_str().to_owned()),
        },
        Notification::Closed { resource } => Payload::Closed {
            r: resource.as_str().to_owned(),
        },
    };
    serde_json::to_string(&payload).ok()
}

/// `None` for a payload that no fencepost sends: any login may notify.
fn decode(payload: &str) -> Option<Notification> {
    Some(match serde_json::from_str(payload).ok()? {
        Payload::Newer { r, t, e, o } => Notification::Newer {
            resource: ResourceKey::new(r).ok()?,
            token: Token::new(t.parse().ok()?)?,
            era: e,
            owner: o.as_deref().map(InstanceId::from_row),
        },
        Payload::Closed { r } => Notification::Closed {
            resource: ResourceKey::new(r).ok()?,
        },
    })
}

/// Listens until the receiver is gone.
pub(super) async fn listen(connector: Arc<Connector>, channel: String, heard: Sender<Heard>) {
    let listening = async {
        let mut pause = BACKOFF.0;
        loop {
            match subscribe(&connector, &channel).await {
                Ok(subscription) => {
                    pause = BACKOFF.0;
                    if heard.send(Heard::Resumed).await.is_err() {
                        return;
                    }
                    if let Err(error) = subscription.relay(&connector, &heard).await {
                        tracing::debug!(%error, "the subscription to notifications broke; subscribing again");
                    }
                    if heard.send(Heard::Whole(false)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no subscription to notifications; trying again");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    };
    tokio::select! {
        () = listening => {}
        () = heard.closed() => {}
    }
}

/// Subscribes at the first host that lets it; a standby refuses LISTEN.
async fn subscribe(connector: &Connector, channel: &str) -> Result<Subscription, StoreError> {
    let mut last = StoreError::Unfit("store.url names no host".to_owned());
    for options in connector.hosts().await? {
        let subscribing = async {
            // PgListener takes its connection from a pool; this one never holds another.
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .connect_lazy_with(options);
            let mut listener = PgListener::connect_with(&pool).await?;
            // An automatic reconnect would hide that notifications may have been missed.
            listener.eager_reconnect(false);
            // No other session has this number while this one lives.
            let session: Vec<i32> = sqlx::query_scalar("SELECT pg_backend_pid()")
                .fetch_all(&mut listener)
                .await?;
            let own = format!("{channel}_{}", session.first().unwrap_or(&0));
            listener.listen_all([channel, &own]).await?;
            Ok(Subscription {
                listener,
                own,
                number: 0,
                echoed: 0,
                whole: false,
            })
        };
        match tokio::time::timeout(connector.timeout(), subscribing).await {
            Ok(Ok(listener)) => return Ok(listener),
            Ok(Err(error)) => last = error_of(error),
            Err(_) => last = StoreError::Timeout(connector.timeout()),
        }
    }
    Err(last)
}

/// One connection that listens.
struct Subscription {
    listener: PgListener,
    /// The channel on which it notifies itself.
    own: String,
    /// The last echo that was sent, and the last one that was received.
    number: u64,
    echoed: u64,
    /// True if everything arrives, as last reported.
    whole: bool,
}

impl Subscription {
    /// Passes notifications on until the connection is lost or the receiver is gone.
    async fn relay(
        mut self,
        connector: &Connector,
        heard: &Sender<Heard>,
    ) -> Result<(), StoreError> {
        let mut due = Instant::now();
        loop {
            match tokio::time::timeout_at(due, self.listener.try_recv()).await {
                Ok(Ok(Some(notification))) if notification.channel() == self.own => {
                    self.echoed = notification.payload().parse().unwrap_or(0);
                    if self.echoed == self.number {
                        self.say(true, heard).await;
                    }
                }
                Ok(Ok(Some(notification))) => {
                    let Some(notification) = decode(notification.payload()) else {
                        tracing::debug!("ignored a notification that no fencepost sends");
                        continue;
                    };
                    if heard.send(Heard::Notification(notification)).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error_of(error)),
                Err(_) => {
                    if self.echoed != self.number {
                        self.say(false, heard).await;
                    }
                    due = Instant::now() + ECHO;
                    self.echo(connector, heard).await?;
                }
            }
        }
    }

    /// Notifies itself. A server that vanished silently closes nothing, and does not answer.
    async fn echo(
        &mut self,
        connector: &Connector,
        heard: &Sender<Heard>,
    ) -> Result<(), StoreError> {
        self.number += 1;
        let echo = sqlx::query("SELECT pg_notify($1, $2) /* echo */")
            .bind(self.own.clone())
            .bind(self.number.to_string());
        let mut answer = Box::pin(echo.execute(&mut self.listener));
        if let Ok(answer) = tokio::time::timeout(ECHO, &mut answer).await {
            return answer.map(drop).map_err(error_of);
        }
        if std::mem::take(&mut self.whole) {
            let _ = heard.send(Heard::Whole(false)).await;
        }
        tokio::time::timeout(connector.timeout(), answer)
            .await
            .map_err(|_| StoreError::Timeout(connector.timeout()))?
            .map(drop)
            .map_err(error_of)
    }

    async fn say(&mut self, whole: bool, heard: &Sender<Heard>) {
        if self.whole != whole {
            self.whole = whole;
            // Without a receiver, the next notification ends this.
            let _ = heard.send(Heard::Whole(whole)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_survive_the_wire_and_nothing_else_is_read() {
        let resource = ResourceKey::new("order:ü\"7\\").expect("a good key");
        for sent in [
            Notification::Newer {
                resource: resource.clone(),
                token: Token::MAX,
                era: 3,
                owner: Some(InstanceId::from_bits(7)),
            },
            Notification::Closed { resource },
        ] {
            let wire = encode(&sent).expect("a notification can be written");
            assert_eq!(decode(&wire), Some(sent));
        }
        for odd in [
            "",
            "{}",
            r#"{"k":"newer","r":"","t":"1","e":0}"#,
            r#"{"k":"newer","r":"a","t":"-1","e":0}"#,
        ] {
            assert_eq!(decode(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_longest_key_fits_into_a_notification() {
        let longest = Notification::Newer {
            resource: ResourceKey::new("\"".repeat(1024)).expect("a good key"),
            token: Token::MAX,
            era: i64::MAX,
            owner: Some(InstanceId::from_bits(u64::MAX)),
        };
        assert!(
            encode(&longest)
                .expect("a notification can be written")
                .len()
                < 8000
        );
    }

    #[test]
    fn a_channel_is_an_identifier() {
        let name = channel("orders; DROP TABLE marks");
        assert_eq!(name.len(), "fencepost_".len() + 16);
        assert_ne!(name, channel("orders"));
    }
}
