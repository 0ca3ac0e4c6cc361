//! [`DedicatedConnection`]: a connection that one call uses at a time, and none after a doubt.

use std::sync::atomic::{AtomicU64, Ordering};
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
    /// The connection while it is idle, its number, and since when. Never held across an await.
    idle: Mutex<Option<(Line, u64, Instant)>>,
    /// How many connections were made.
    made: AtomicU64,
}

/// The use of a slot's connection. If it is dropped before [`Turn::done`], for whatever reason, the
/// connection is closed. The socket closes at once, nothing is cancelled, and statements that were
/// sent may still take effect.
#[must_use]
pub(super) struct Turn<'a> {
    slot: &'a DedicatedConnection,
    line: Line,
    number: u64,
}

impl DedicatedConnection {
    pub(super) fn new(connector: Arc<Connector>, session: Session) -> Self {
        Self {
            connector,
            session,
            idle: Mutex::new(None),
            made: AtomicU64::new(0),
        }
    }

    /// Takes the idle connection, or opens one.
    pub(super) async fn turn(&self) -> Result<Turn<'_>, StoreError> {
        let idle = self.lock().take();
        if let Some((mut line, number, since)) = idle {
            let fresh = since.elapsed() < STALE
                || tokio::time::timeout(self.connector.timeout() / 4, line.bare().ping())
                    .await
                    .is_ok_and(|pinged| pinged.is_ok());
            if fresh {
                return Ok(Turn {
                    slot: self,
                    line,
                    number,
                });
            }
        }
        self.fresh(Phase::Running).await
    }

    /// Opens a new connection, even if there is an idle one.
    pub(super) async fn fresh(&self, phase: Phase) -> Result<Turn<'_>, StoreError> {
        let line = self.connector.connect(self.session, phase).await?;
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Turn {
            slot: self,
            line,
            number,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Line, u64, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Names the connection among those of its slot.
    pub(super) fn number(&self) -> u64 {
        self.number
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
        *self.slot.lock() = Some((self.line, self.number, Instant::now()));
    }
}
