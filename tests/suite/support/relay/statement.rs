//! [`Statement`]: which call of the store an SQL text is. Told by words that only this statement
//! has, whatever its white space; each has a test that waits for it, so that none goes unrecognised
//! when its text changes.

/// A statement of the store's protocol, by the call that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    Advance,
    Look,
    Cede,
    Repair,
    GiveBack,
    Notify,
    Join,
    Renew,
    Instances,
    DeclareDead,
    Settle,
    Leave,
    BeginOperation,
    KnowOperation,
    /// Any statement at all, those above and every other.
    Any,
}

/// All that have a text of their own, and words that are in no other.
const ALL: [(Statement, &str); 14] = [
    (Statement::Advance, "WHERE NOT a.present OR"),
    (
        Statement::Look,
        "SELECT m.resource, m.token, m.spent_by, m.era",
    ),
    (Statement::Cede, "FROM ceded AS c"),
    (Statement::Repair, "AS r(resource, token, spend,"),
    (Statement::GiveBack, "given_back + 1"),
    (Statement::Notify, "SELECT pg_notify("),
    (Statement::Join, "INSERT INTO instances (namespace"),
    (Statement::Renew, "renewals = CASE WHEN"),
    (Statement::Instances, "SELECT id, renewals, lease_ms"),
    (Statement::DeclareDead, "UPDATE instances SET state = CASE"),
    (Statement::Settle, "INSERT INTO instances AS i"),
    (Statement::Leave, "UPDATE instances SET state = $3"),
    (
        Statement::BeginOperation,
        "INSERT INTO operations (namespace",
    ),
    (Statement::KnowOperation, "UPDATE operations SET state = 2"),
];

impl Statement {
    /// Which one this text is; [`Statement::Any`] if none of those with a name.
    ///
    /// # Panics
    /// If it could be two of them.
    pub fn of(sql: &str) -> Self {
        let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut fitting = ALL.iter().filter(|(_, words)| sql.contains(words));
        let (found, _) = fitting.next().unwrap_or(&(Self::Any, ""));
        assert_eq!(fitting.next(), None, "besides {found:?}: {sql}");
        *found
    }
}
