//! [`Statement`]: which call of the store an SQL text is. Told by words that only this statement
//! has, whatever its white space; a test runs a proxy through all of them, so that none goes
//! unrecognised when its text changes.

/// A statement of the store's protocol, by the call that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    Advance,
    Epochs,
    Close,
    /// A page of an instance's own rows.
    Own,
    /// Its own rows of some resources.
    OwnOf,
    /// The deletion at the end of a run, not the search before it.
    CloseOwn,
    Reopen,
    GiveBack,
    Join,
    Renew,
    Instances,
    DeclareDead,
    /// The deletion, not the search before it.
    Bury,
    Leave,
    Notify,
    /// Any statement at all, those above and every other.
    Any,
}

/// All that have a text of their own.
pub const ALL: [Statement; 15] = [
    Statement::Advance,
    Statement::Epochs,
    Statement::Close,
    Statement::Own,
    Statement::OwnOf,
    Statement::CloseOwn,
    Statement::Reopen,
    Statement::GiveBack,
    Statement::Join,
    Statement::Renew,
    Statement::Instances,
    Statement::DeclareDead,
    Statement::Bury,
    Statement::Leave,
    Statement::Notify,
];

impl Statement {
    /// Which one this text is; [`Statement::Any`] if none of those with a name.
    ///
    /// # Panics
    /// If it could be two of them.
    pub fn of(sql: &str) -> Self {
        let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut fitting = ALL.into_iter().filter(|statement| statement.fits(&sql));
        let found = fitting.next().unwrap_or(Self::Any);
        assert_eq!(fitting.next(), None, "besides {found:?}: {sql}");
        found
    }

    /// Which ones this text carries out, in their order; none if it only prepares some.
    ///
    /// # Panics
    /// As [`Self::of`].
    pub fn all_of(sql: &str) -> Vec<Self> {
        if sql.starts_with("PREPARE ") {
            Vec::new()
        } else if sql.contains("EXECUTE fencepost_advance") {
            assert!(
                sql.contains("COMMIT; EXECUTE fencepost_second_read"),
                "{sql}"
            );
            vec![Self::Advance, Self::Epochs]
        } else if sql.contains("k(resource, instance, opening") && sql.contains("pg_notify(") {
            vec![Self::Close, Self::Notify]
        } else {
            vec![Self::of(sql)]
        }
    }

    /// Returns whether what is armed for `self` is passed by `other`.
    pub fn takes(self, other: Self) -> bool {
        self == Self::Any || self == other
    }

    fn fits(self, sql: &str) -> bool {
        match self {
            Self::Advance => sql.contains("INSERT INTO marks AS m"),
            Self::Epochs => sql.starts_with(
                "SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e JOIN",
            ),
            Self::Close => {
                sql.starts_with("DELETE FROM epochs")
                    && sql.contains("k(resource, instance, opening)")
            }
            Self::Own => {
                sql.contains("SELECT m.token FROM marks AS m") && sql.ends_with("LIMIT $5")
            }
            Self::OwnOf => {
                sql.contains("SELECT m.token FROM marks AS m")
                    && sql.ends_with("AND e.resource = k.resource")
            }
            Self::CloseOwn => {
                sql.starts_with("DELETE FROM epochs AS e WHERE") && sql.contains("AS k(kept)")
            }
            Self::Reopen => sql.starts_with("INSERT INTO epochs"),
            Self::GiveBack => sql.contains("spent_by = NULL FROM mine"),
            Self::Join => sql.contains("INSERT INTO instances"),
            Self::Renew => sql.contains("SET renewals = GREATEST"),
            Self::Instances => sql.contains("SELECT id, renewals, lease_ms"),
            Self::DeclareDead => sql.contains("(renewals = $3 OR dead)"),
            Self::Bury => {
                sql.contains("DELETE FROM epochs") && sql.contains("k(resource, opening)")
            }
            Self::Leave => {
                sql.contains("UPDATE instances SET dead = true") && sql.contains("AND EXISTS (")
            }
            // Not what a subscription tells itself.
            Self::Notify => sql.contains("pg_notify("),
            Self::Any => false,
        }
    }
}
