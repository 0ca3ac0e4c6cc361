//! [`Engine`] for [`PostgresStore`].

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::connect::{self, Phase, Session as Use};
use super::statements::WORDS;
use super::{LANES, PostgresStore, notifications};
use crate::store::engine::{Connection, Engine, Session, Turn, Work};
use crate::store::rows::{self, Failure};
use crate::store::{StoreError, place};

#[async_trait]
impl Engine for PostgresStore {
    fn shared(&self) -> bool {
        true
    }

    async fn work(&self, turn: Turn, work: Work) -> Result<(), StoreError> {
        let slot = match turn {
            Turn::Look => &self.reader,
            Turn::Read | Turn::Write | Turn::Transaction => &self.operators,
            Turn::Join | Turn::Renew | Turn::Watch | Turn::Declare => &self.heartbeat,
            Turn::Cede => &self.ceding,
            Turn::Operate => &self.operating[self.operated.fetch_add(1, Ordering::Relaxed) % LANES],
            Turn::Notify => &self.notifying,
        };
        let done = slot.run(Phase::Running, async |c, number| {
            let over = self.instances_over.load(Ordering::Relaxed);
            if turn == Turn::Declare && over != 0 && over != number {
                return Ok(false);
            }
            match turn {
                Turn::Transaction | Turn::Join => self.transact(c, work).await?,
                _ => work(self.session(c)).await?,
            }
            if turn == Turn::Watch {
                self.instances_over.store(number, Ordering::Relaxed);
            }
            Ok(true)
        });
        if done.await? {
            return Ok(());
        }
        let why = "this is another connection than the one that the counter was read over";
        Err(StoreError::Connection(why.to_owned()))
    }

    /// Taken by the first instance of this process that joins.
    async fn place(&self) -> Result<String, StoreError> {
        // A name for the marks that proxies on this machine may share.
        let mut shared = self.namespace.to_string();
        for host in self.connector.hosts(Use::Other).await? {
            shared.push('\n');
            shared.push_str(&connect::name(&host));
            shared.push('/');
            shared.push_str(host.get_database().unwrap_or_default());
        }
        let take = || place::take(&notifications::channel(&shared));
        Ok(self.place.get_or_init(take).clone())
    }

    fn known_place(&self) -> String {
        self.place.get().cloned().unwrap_or_default()
    }
}

impl PostgresStore {
    pub(super) fn session<'c>(&'c self, connection: &'c mut PgConnection) -> Session<'c> {
        Session {
            namespace: &self.namespace,
            words: WORDS,
            connection: Connection::Postgres(connection),
        }
    }

    /// Any error leaves the transaction open. The connection is then dropped, which ends it.
    async fn transact(&self, c: &mut PgConnection, work: Work) -> Result<(), Failure> {
        run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        work(self.session(c)).await?;
        let id: Vec<Option<i64>> = sqlx::query_scalar("SELECT txid_current_if_assigned()")
            .fetch_all(&mut *c)
            .await?;
        let id = rows::only(id)?;
        run(c, "COMMIT").await?;
        // A COMMIT may be answered with ROLLBACK, which is no error on the wire.
        let kept = sqlx::query_scalar("SELECT COALESCE(txid_status($1) = 'committed', $1 IS NULL)");
        if rows::only::<bool>(kept.bind(id).fetch_all(c).await?)? {
            return Ok(());
        }
        let message = "the change was rolled back";
        Err(StoreError::Statement(message.to_owned()).into())
    }
}

async fn run(connection: &mut PgConnection, statement: &'static str) -> Result<(), Failure> {
    sqlx::raw_sql(statement).execute(connection).await?;
    Ok(())
}
