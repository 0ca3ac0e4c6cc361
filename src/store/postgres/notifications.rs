//! Notifications between instances, over NOTIFY. Any of them may get lost: each is a hint to look
//! at one row, and instances look without one, too, if later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::mpsc::Sender;

use super::connect::{Connector, Session};
use super::errors::{bounded, error_of};
use crate::store::{Heard, Notification, StoreError};

/// The pauses between attempts to subscribe: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A subscription that has received nothing for this long sends a statement: a server that has
/// vanished closes nothing.
const QUIET: Duration = Duration::from_secs(10);

/// The channel of a namespace: a digest, since an identifier may not have any length and spelling.
pub(super) fn channel(namespace: &str) -> String {
    let digest = Sha256::digest(namespace.as_bytes());
    let first = digest.iter().take(8);
    let number = first.fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("fencepost_{number:016x}")
}

/// `None` for a payload that no fencepost sends: any login may notify.
fn decode(payload: &str) -> Option<Notification> {
    serde_json::from_str(payload).ok()
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
                    if let Err(error) = relay(subscription, connector.timeout, &heard).await {
                        tracing::debug!(%error, "the subscription to notifications broke; subscribing again");
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
async fn subscribe(connector: &Connector, channel: &str) -> Result<PgListener, StoreError> {
    let mut last = StoreError::Unfit("store.url names no host".to_owned());
    for options in connector.hosts(Session::Other).await? {
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
            listener.listen(channel).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        let subscribing = subscribing.map_err(error_of);
        match bounded(connector.timeout, subscribing).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Passes notifications on until the connection is lost or the receiver is gone.
async fn relay(
    mut listener: PgListener,
    timeout: Duration,
    heard: &Sender<Heard>,
) -> Result<(), StoreError> {
    loop {
        match tokio::time::timeout(QUIET, listener.try_recv()).await {
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
                let answer = sqlx::raw_sql("SELECT 1").execute(&mut listener);
                bounded(timeout, answer.map_err(error_of)).await?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{ResourceKey, Token};
    use crate::store::InstanceId;
    use crate::store::engine::json;

    #[test]
    fn notifications_survive_the_wire_and_nothing_else_is_read() {
        let resource = ResourceKey::new("order:ü\"7\\").expect("a good key");
        let closed = Notification {
            resource,
            waits: None,
            to: None,
        };
        let waiting = Notification {
            waits: Some(Token::MAX),
            to: Some(InstanceId::from_bits(7)),
            ..closed.clone()
        };
        for sent in [closed, waiting] {
            let wire = json(&sent);
            assert_eq!(decode(&wire), Some(sent));
        }
        for odd in [
            "",
            "{}",
            r#"{"r":""}"#,
            r#"{"r":"a","w":"-1"}"#,
            r#"{"r":"a","w":1}"#,
            r#"{"r":"a","o":"b"}"#,
            r#"{"r":"a","x":"1"}"#,
        ] {
            assert_eq!(decode(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_longest_key_fits_into_a_notification() {
        let longest = Notification {
            resource: ResourceKey::new("\"".repeat(1024)).expect("a good key"),
            waits: Some(Token::MAX),
            to: Some(InstanceId::from_bits(u64::MAX)),
        };
        let payload = json(&longest);
        assert!(payload.len() < 8000);
    }

    #[test]
    fn a_channel_is_an_identifier() {
        let name = channel("orders; DROP TABLE marks");
        assert_eq!(name.len(), "fencepost_".len() + 16);
        assert_ne!(name, channel("orders"));
    }
}
