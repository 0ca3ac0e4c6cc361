//! Grants for the role that `serve` uses: no more than the protocol needs. The role changes no
//! schema and deletes no mark: a mark never goes down, and a stray `DELETE` would break the first
//! guarantee.

use std::time::Duration;

use sqlx::{Executor as _, PgConnection};

use super::connect::{Connector, Phase, Session};
use super::errors::bounded;
use crate::config::PostgresAddress;
use crate::store::StoreError;
use crate::store::rows::{Failure, only};

/// The timeout for all of the grants.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tables, and the privileges on them.
const GRANTS: [(&str, &str); 6] = [
    ("namespaces", "SELECT, INSERT, UPDATE"),
    ("marks", "SELECT, INSERT, UPDATE"),
    ("instances", "SELECT, INSERT, UPDATE"),
    ("audit", "SELECT, INSERT"),
    ("operations", "SELECT, INSERT, UPDATE, DELETE"),
    ("fencepost_migrations", "SELECT"),
];

/// Grants `role` what `serve` needs, as the owner of the tables. Grants made by hand stay. Doing it
/// again changes nothing.
///
/// # Errors
///
/// [`StoreError::Unfit`] if the role does not exist, or the grants are not this role's to give.
pub async fn grant(address: PostgresAddress, role: &str) -> Result<(), StoreError> {
    let connector = Connector::new(address, PATIENCE);
    let work = async {
        let mut line = connector.connect(Session::Other, Phase::Start).await?;
        for statement in line.run(async |c, _| statements(c, role).await).await? {
            // Of a grant that this role cannot give the server only warns.
            let granted = line.run(async |c, _| {
                c.execute(sqlx::AssertSqlSafe(statement.clone())).await?;
                Ok(())
            });
            granted
                .await
                .map_err(|error| StoreError::Unfit(format!("{statement}: {error}")))?;
        }
        Ok(())
    };
    bounded(PATIENCE, work).await
}

/// What gives the role its rights on the tables.
async fn statements(connection: &mut PgConnection, role: &str) -> Result<Vec<String>, Failure> {
    // All rows, to the last: the server reports the first before it is done.
    let found: Vec<(bool, Option<String>, Option<bool>)> = sqlx::query_as(
        "SELECT r.name IS NOT NULL, n.nspname::text, has_schema_privilege(r.name, n.oid, 'USAGE') \
         FROM (SELECT max(rolname) FROM pg_roles WHERE rolname = $1) AS r(name) \
         LEFT JOIN pg_class AS c ON c.oid = to_regclass('fencepost_migrations') \
         LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace",
    )
    .bind(role)
    .fetch_all(connection)
    .await?;
    let (exists, schema, used) = only(found)?;
    let unfit =
        |why: String| Failure::Store(StoreError::Unfit(format!("--grant-to {role}: {why}")));
    let name = quoted(role);
    if !exists {
        return Err(unfit(format!(
            "there is no such role; create it first: CREATE ROLE {name} LOGIN"
        )));
    }
    let schema = schema.ok_or_else(|| unfit("there are no tables".to_owned()))?;
    let schema = quoted(&schema);
    // A right that the role has already might not be this one's to give.
    let usage = (used != Some(true)).then(|| format!("GRANT USAGE ON SCHEMA {schema} TO {name}"));
    let tables =
        GRANTS.map(|(table, rights)| format!("GRANT {rights} ON TABLE {schema}.{table} TO {name}"));
    Ok(usage.into_iter().chain(tables).collect())
}

/// A quoted SQL identifier (`PostgreSQL`, "Lexical Structure", 4.1.1).
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("orders"), "\"orders\"");
        assert_eq!(
            quoted("a\"; DROP TABLE marks; --"),
            "\"a\"\"; DROP TABLE marks; --\""
        );
    }
}
