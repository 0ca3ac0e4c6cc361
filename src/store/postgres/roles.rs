//! Grants for the role that `serve` uses: no more than the protocol needs. The role changes no
//! schema and deletes no mark: a mark never goes down, and a stray `DELETE` would break the first
//! guarantee.

use std::time::Duration;

use sqlx::{Executor as _, PgConnection};

use super::connect::{Connector, Phase};
use super::errors::error_of;
use super::only;
use crate::config::settings::PostgresAddress;
use crate::store::{StoreError, rows};

/// The timeout for all of the grants.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tables, and the privileges on them.
const GRANTS: [(&str, &str); 6] = [
    ("namespaces", "SELECT, INSERT, UPDATE"),
    ("marks", "SELECT, INSERT, UPDATE"),
    ("epochs", "SELECT, INSERT, UPDATE, DELETE"),
    ("instances", "SELECT, INSERT, UPDATE, DELETE"),
    ("audit", "SELECT, INSERT"),
    ("fencepost_migrations", "SELECT"),
];

/// Grants `role` what `serve` needs, as the owner of the tables. Grants made by hand stay. Doing it
/// again changes nothing.
///
/// # Errors
///
/// [`StoreError::Unfit`] if the role does not exist, or the tables have another owner.
pub async fn grant(address: impl Into<PostgresAddress>, role: &str) -> Result<(), StoreError> {
    let connector = Connector::new(address.into(), PATIENCE, PATIENCE / 2);
    let work = async {
        let mut line = connector.connect(Phase::Start).await?;
        grant_all(line.bare(), role).await
    };
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or(Err(StoreError::Timeout(PATIENCE)))
}

/// The role, the database, the role's `search_path`, the first schema of that path that exists, and
/// whether the role may create tables.
type Path = (String, String, String, Option<String>, bool);

/// `current_schema` is the first schema of the path that the role may *use*.
const PATH: &str = "SELECT current_user::text, current_database()::text, \
     current_setting('search_path'), \
     COALESCE(current_schema()::text, (SELECT n.nspname::text \
         FROM unnest(string_to_array(current_setting('search_path'), ',')) \
             WITH ORDINALITY AS p(name, place) \
         JOIN pg_namespace AS n ON n.nspname::text = CASE trim(p.name, ' \"') \
             WHEN '$user' THEN current_user::text ELSE trim(p.name, ' \"') END \
         ORDER BY p.place LIMIT 1)), \
     COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false)";

/// Checks that the role of this connection may make the tables.
///
/// # Errors
///
/// [`StoreError::Unfit`] with the role and the statement that gives it the right.
pub(super) async fn may_make_tables(connection: &mut PgConnection) -> Result<(), StoreError> {
    let (role, database, path, schema, allowed): Path = only(
        sqlx::query_as(PATH)
            .fetch_all(connection)
            .await
            .map_err(error_of)?,
    )?;
    if allowed {
        return Ok(());
    }
    let Some(schema) = schema else {
        let first = path.split(',').map(|name| name.trim().trim_matches('"'));
        let first = first.into_iter().find(|name| !["", "$user"].contains(name));
        return Err(StoreError::Unfit(format!(
            "the tables are to be made, and the search_path of the role {role} ({path}) leads to no schema of the \
             database {database}; run there, as its owner: CREATE SCHEMA {} AUTHORIZATION {}; or name a schema that \
             exists: {}",
            quoted(first.unwrap_or(&role)),
            quoted(&role),
            set_path(&role, &database, "public")
        )));
    };
    Err(StoreError::Unfit(format!(
        "the tables are to be made or changed, and the role {role} has not the right to do that in the schema \
         {schema} of the database {database}; run there, as the schema's owner: GRANT USAGE, CREATE ON SCHEMA \
         {} TO {}",
        quoted(&schema),
        quoted(&role)
    )))
}

/// The refusal of a missing or an old schema. The tables may be in a schema that the role's
/// `search_path` does not lead to.
pub(super) async fn behind(connection: &mut PgConnection) -> Result<StoreError, StoreError> {
    let elsewhere: Vec<String> = sqlx::query_scalar(
        "SELECT n.nspname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE c.relname = 'fencepost_migrations' AND c.relkind = 'r' \
             AND to_regclass('fencepost_migrations') IS NULL",
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(error_of)?;
    let Some(schema) = elsewhere.first() else {
        return Ok(rows::schema_behind());
    };
    let (role, database, path, ..): Path = only(
        sqlx::query_as(PATH)
            .fetch_all(connection)
            .await
            .map_err(error_of)?,
    )?;
    Ok(StoreError::Unfit(format!(
        "the tables are in the schema {schema} of the database {database}, to which the search_path of the role \
         {role} ({path}) does not lead, or which the role may not use; run there: GRANT USAGE ON SCHEMA {} TO {}; {}",
        quoted(schema),
        quoted(&role),
        set_path(&role, &database, schema)
    )))
}

/// The statement that outranks every other setting of a role's `search_path`, except that of
/// `options` in the URL.
fn set_path(role: &str, database: &str, schema: &str) -> String {
    format!(
        "ALTER ROLE {} IN DATABASE {} SET search_path = {}",
        quoted(role),
        quoted(database),
        quoted(schema)
    )
}

/// The schema of the tables, if there is such a role.
async fn schema_for(connection: &mut PgConnection, role: &str) -> Result<String, StoreError> {
    // All rows, to the last: the server reports the first before it is done.
    let found: Vec<(bool, Option<String>)> = sqlx::query_as(
        "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = $1), \
         (SELECT n.nspname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
          WHERE c.oid = to_regclass('fencepost_migrations'))",
    )
    .bind(role)
    .fetch_all(&mut *connection)
    .await
    .map_err(error_of)?;
    match found.as_slice() {
        [(true, Some(schema))] => Ok(schema.clone()),
        [(false, _)] => Err(StoreError::Unfit(format!(
            "--grant-to {role}: there is no such role; create it first: CREATE ROLE {} LOGIN",
            quoted(role)
        ))),
        _ => Err(StoreError::Unfit(
            "--grant-to: there are no tables".to_owned(),
        )),
    }
}

async fn grant_all(connection: &mut PgConnection, role: &str) -> Result<(), StoreError> {
    let schema = schema_for(connection, role).await?;
    let allowed: Vec<bool> = sqlx::query_scalar("SELECT has_schema_privilege($1, $2, 'USAGE')")
        .bind(role)
        .bind(&schema)
        .fetch_all(&mut *connection)
        .await
        .map_err(error_of)?;
    let mut statements = Vec::new();
    // A role that may use the schema already needs no grant, which this role might not be able to
    // give.
    if allowed != [true] {
        statements.push(format!(
            "GRANT USAGE ON SCHEMA {} TO {}",
            quoted(&schema),
            quoted(role)
        ));
    }
    for (table, verbs) in GRANTS {
        statements.push(format!(
            "GRANT {verbs} ON TABLE {}.{table} TO {}",
            quoted(&schema),
            quoted(role)
        ));
    }
    // If this role cannot give a grant, the server only warns.
    for statement in statements {
        connection
            .execute(sqlx::AssertSqlSafe(statement.clone()))
            .await
            .map_err(|error| StoreError::Unfit(format!("{statement}: {error}")))?;
    }
    let (mut tables, mut verbs) = (Vec::new(), Vec::new());
    for (table, of_table) in GRANTS {
        for verb in of_table.split(", ") {
            tables.push(table);
            verbs.push(verb);
        }
    }
    let missing: Vec<(String, String)> = sqlx::query_as(
        "SELECT g.name, g.verb FROM unnest($2::text[], $3::text[]) AS g(name, verb) \
         WHERE NOT has_table_privilege($1, quote_ident($4) || '.' || g.name, g.verb)",
    )
    .bind(role)
    .bind(&tables)
    .bind(&verbs)
    .bind(&schema)
    .fetch_all(&mut *connection)
    .await
    .map_err(error_of)?;
    let usable: Vec<bool> = sqlx::query_scalar("SELECT has_schema_privilege($1, $2, 'USAGE')")
        .bind(role)
        .bind(&schema)
        .fetch_all(connection)
        .await
        .map_err(error_of)?;
    if usable != [true] {
        return Err(StoreError::Unfit(format!(
            "--grant-to {role}: USAGE of the schema {schema} is not this role's to give; run GRANT USAGE ON SCHEMA \
             {} TO {} as its owner",
            quoted(&schema),
            quoted(role)
        )));
    }
    if let Some((table, verb)) = missing.first() {
        return Err(StoreError::Unfit(format!(
            "--grant-to {role}: {verb} on {table} is not this role's to give; run it as the owner of the tables"
        )));
    }
    Ok(())
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
