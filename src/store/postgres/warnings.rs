//! [`Line`]: a connection on which a warning of the server puts the statement in doubt.
//!
//! # Why warnings count
//!
//! A commit waits for its synchronous standby. If that wait is ended (`pg_cancel_backend`,
//! `statement_timeout`), the server answers with *success*: the commit is done on the primary, but
//! a failover may lose it. Only a warning on the wire says so. Neither its SQLSTATE (01000, that of
//! any warning) nor its text (in the server's language) identifies it. So a statement that draws
//! any warning counts as in doubt: its connection is closed, and its caller gets
//! [`StoreError::Warned`].
//!
//! # How they are heard
//!
//! sqlx passes warnings to `tracing` only. So statements run under a subscriber of the line's own,
//! whatever the process logs: a subscriber in scope comes before the global one and its filter. It
//! receives nothing else, and passes nothing on; its warnings are logged after the statement.
//! `tracing` could keep warnings from it in three ways, and each is prevented:
//!
//! - The greatest level that any living subscriber asks for holds for all. This one asks for
//!   warnings.
//! - `tracing` caches, per place in the code, whether any subscriber is interested. It asks the
//!   subscribers that are registered when the place is first reached. If only one is registered, it
//!   asks the one *in scope* instead, and there may be none. So there are always two: [`anchor`] is
//!   the other.
//! - A release of sqlx may rename its target, and a pooler or a role's `client_min_messages` may
//!   hold warnings back. So every connection proves that it hears them before its first use, with a
//!   statement that always warns ([`Line::hears`]). A connection that does not is refused.

use std::fmt;
use std::sync::{Arc, Mutex};

use sqlx::PgConnection;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber as _;
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::errors::error_of;
use crate::locked::locked;
use crate::store::StoreError;
use crate::store::rows::Failure;

/// The target under which sqlx reports the server's notices.
const TARGET: &str = "sqlx::postgres::notice";

/// The one warning that is ignored, if the server speaks English. It comes with every write for the
/// last forty million transactions before Postgres stops by itself, and does not concern the
/// statement.
const HARMLESS: &str = "must be vacuumed within";

/// A connection on which a statement that drew a warning does not count as done.
#[derive(Debug)]
pub(super) struct Line {
    connection: PgConnection,
    dispatch: Dispatch,
    heard: HeardWarnings,
    /// Its number among those of its connector.
    pub(super) number: u64,
}

/// The second subscriber: see the module's documentation. Must live as long as any [`Line`].
pub(super) fn anchor() -> Dispatch {
    Ear(HeardWarnings::default()).dispatch()
}

impl Line {
    pub(super) fn new(connection: PgConnection) -> Self {
        let heard = HeardWarnings::default();
        Self {
            connection,
            dispatch: Ear(heard.clone()).dispatch(),
            heard,
            number: 0,
        }
    }

    /// True if the server's warnings are heard here. Outside a transaction, a ROLLBACK does nothing
    /// and warns.
    pub(super) async fn hears(&mut self) -> Result<bool, StoreError> {
        let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut self.connection);
        rollback
            .with_subscriber(self.dispatch.clone())
            .await
            .map_err(error_of)?;
        Ok(!std::mem::take(&mut *locked(&self.heard)).is_empty())
    }

    /// Runs work on the connection, whose number it gets. After an error or a warning the connection
    /// is in doubt: drop it.
    pub(super) async fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut PgConnection, u64) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let done = work(&mut self.connection, self.number)
            .with_subscriber(self.dispatch.clone())
            .await;
        let mut doubt = None;
        for warning in std::mem::take(&mut *locked(&self.heard)) {
            if warning.contains(HARMLESS) {
                tracing::debug!(%warning, "the server warns");
            } else {
                tracing::warn!(%warning, "the server warned; what it was told counts as in doubt");
                doubt.get_or_insert(warning);
            }
        }
        let done = done.map_err(error_of)?;
        match doubt {
            Some(warning) => Err(StoreError::Warned(warning)),
            None => Ok(done),
        }
    }

    /// The bare connection, for what may warn.
    pub(super) fn bare(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

/// The warnings of one statement. Short sections, never across an await.
type HeardWarnings = Arc<Mutex<Vec<String>>>;

/// Collects warnings and errors of sqlx.
struct Ear(HeardWarnings);

impl Ear {
    /// The subscriber of this ear alone. No span is ever enabled in it.
    fn dispatch(self) -> Dispatch {
        let concerns = Targets::new().with_target(TARGET, LevelFilter::WARN);
        Dispatch::new(tracing_subscriber::registry().with(concerns).with(self))
    }
}

impl<S: Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = WarningText(String::new());
        event.record(&mut text);
        locked(&self.0).push(text.0);
    }
}

/// An event's message.
struct WarningText(String);

impl Visit for WarningText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
