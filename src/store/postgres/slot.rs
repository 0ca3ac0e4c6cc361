//! [`DedicatedConnection`]: a connection that one call uses at a time, and none after a doubt.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::connect::{Connector, Phase, Session};
use super::warnings::Line;
use crate::store::StoreError;

/// A connection that has been idle for longer is pinged before it carries a statement. So a server
/// that was restarted costs a reconnect, and not a refusal.
const STALE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct DedicatedConnection {
    connector: Arc<Connector>,
    session: Session,
    /// The connection while it is idle, and since when. Locked while a call uses it, and no others
    /// are opened: many calls at once must not use up the server's connections.
    idle: Mutex<Idle>,
}

type Idle = Option<(Line, Instant)>;

/// The use of a slot's connection. If it is dropped before [`Turn::done`], for whatever reason, the
/// connection is closed. The socket closes at once, nothing is cancelled, and statements that were
/// sent may still take effect.
#[must_use]
pub(super) struct Turn<'a> {
    idle: MutexGuard<'a, Idle>,
    pub(super) line: Line,
}

impl DedicatedConnection {
    pub(super) fn new(connector: Arc<Connector>, session: Session) -> Self {
        Self {
            connector,
            session,
            idle: Mutex::default(),
        }
    }

    /// Waits for the turn. Takes the idle connection, or opens one.
    pub(super) async fn turn(&self) -> Result<Turn<'_>, StoreError> {
        let mut idle = self.idle.lock().await;
        if let Some((mut line, since)) = idle.take() {
            let fresh = since.elapsed() < STALE
                || tokio::time::timeout(self.connector.timeout() / 4, line.bare().ping())
                    .await
                    .is_ok_and(|pinged| pinged.is_ok());
            if fresh {
                return Ok(Turn { idle, line });
            }
        }
        let line = self.connector.connect(self.session, Phase::Running).await?;
        Ok(Turn { idle, line })
    }

    /// Opens a new connection for the start, even if there is an idle one.
    pub(super) async fn fresh(&self) -> Result<Turn<'_>, StoreError> {
        let mut idle = self.idle.lock().await;
        *idle = None;
        let line = self.connector.connect(self.session, Phase::Start).await?;
        Ok(Turn { idle, line })
    }
}

impl Turn<'_> {
    /// Gives the connection back. Only after every answer was read to its end and none was an
    /// error.
    pub(super) fn done(mut self) {
        *self.idle = Some((self.line, Instant::now()));
    }
}
