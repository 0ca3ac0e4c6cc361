//! [`DedicatedConnection`]: a connection that one call uses at a time, and none after a doubt.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::connect::{Connector, Phase, Session};
use super::errors::bounded;
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
    /// The connection while it is idle, and since when. Locked while a call uses it, and no others
    /// are opened: many calls at once must not use up the server's connections.
    idle: Mutex<Idle>,
}

type Idle = Option<(Line, Instant)>;

impl DedicatedConnection {
    pub(super) fn new(connector: Arc<Connector>, session: Session) -> Self {
        Self {
            connector,
            session,
            idle: Mutex::default(),
        }
    }

    /// Runs work in its turn, within the timeout: on the idle connection, or on a new one. At the
    /// start it is always a new one. The connection is kept if the work is done and its answers were
    /// read to their ends. After an error, or if the future is dropped, its socket closes at once,
    /// nothing is cancelled, and statements that were sent may still take effect.
    pub(super) async fn run<T>(
        &self,
        phase: Phase,
        work: impl AsyncFnOnce(&mut PgConnection, u64) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let timeout = self.connector.timeout;
        bounded(timeout, async {
            let mut idle = self.idle.lock().await;
            let mut kept = idle.take().filter(|_| phase == Phase::Running);
            if let Some((line, since)) = &mut kept
                && since.elapsed() >= STALE
                && !answers(line, timeout / 4).await
            {
                kept = None;
            }
            let mut line = match kept {
                Some((line, _)) => line,
                None => self.connector.connect(self.session, phase).await?,
            };
            let done = line.run(work).await?;
            *idle = Some((line, Instant::now()));
            Ok(done)
        })
        .await
    }
}

async fn answers(line: &mut Line, patience: Duration) -> bool {
    let ping = tokio::time::timeout(patience, line.bare().ping());
    ping.await.is_ok_and(|pinged| pinged.is_ok())
}
