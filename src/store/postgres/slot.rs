//! [`DedicatedConnection`]: a connection that one call uses at a time, and none after a doubt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use super::connect::{Connector, Phase, Session};
use super::warnings::Line;
use crate::store::StoreError;
use crate::store::rows::Failure;

/// A connection that has been idle for longer is pinged before it carries a statement. So a server
/// that was restarted costs a reconnect, and not a refusal.
const STALE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct DedicatedConnection {
    connector: Arc<Connector>,
    session: Session,
    /// The connection while it is idle, and since when. Never held across an await.
    idle: Mutex<Option<(Line, Instant)>>,
}

/// The use of a slot's connection. If it is dropped before [`Turn::done`], for whatever reason, the
/// connection is closed. The socket closes at once, nothing is cancelled, and statements that were
/// sent may still take effect.
#[must_use]
pub(super) struct Turn<'a> {
    slot: &'a DedicatedConnection,
    line: Line,
}

impl DedicatedConnection {
    pub(super) fn new(connector: Arc<Connector>, session: Session) -> Self {
        Self {
            connector,
            session,
            idle: Mutex::new(None),
        }
    }

    /// Takes the idle connection, or opens one.
    pub(super) async fn turn(&self) -> Result<Turn<'_>, StoreError> {
        let idle = self.lock().take();
        if let Some((mut line, since)) = idle {
            let fresh = since.elapsed() < STALE
                || tokio::time::timeout(self.connector.timeout() / 4, line.bare().ping())
                    .await
                    .is_ok_and(|pinged| pinged.is_ok());
            if fresh {
                return Ok(Turn { slot: self, line });
            }
        }
        self.fresh(Phase::Running).await
    }

    /// Opens a new connection, even if there is an idle one.
    pub(super) async fn fresh(&self, phase: Phase) -> Result<Turn<'_>, StoreError> {
        let line = self.connector.connect(self.session, phase).await?;
        Ok(Turn { slot: self, line })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Line, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Names the connection.
    pub(super) fn number(&self) -> u64 {
        self.line.number
    }

    /// Runs work on the connection; see [`Line::run`].
    pub(super) async fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.line.run(work).await
    }

    /// Gives the connection back. Only after every answer was read to its end and none was an
    /// error.
    pub(super) fn done(self) {
        *self.slot.lock() = Some((self.line, Instant::now()));
    }
}
