//! Two roles: one that may change the schema, and migrates; one that serves, and may not.

use serde_json::json;
use sqlx::Connection as _;

use crate::support::postgres::Cluster;
use crate::support::proxy::fencepost;
use crate::support::run::run;
use crate::support::sql::shell;
use crate::support::store::{NOT_SETTLED, has_postgres};
use crate::support::{Config, Proxy, Store, Upstream, all_forwarded, or_return, put};

/// The roles `NAME_owner` and `NAME_runner`, and the database `NAME_db` of the first.
struct Roles(&'static str);

impl Roles {
    /// Makes them as docs/postgres.md says. Roles belong to the whole server, which tests share.
    async fn new(name: &'static str) -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        for statement in [
            format!("CREATE ROLE {name}_owner LOGIN"),
            format!("CREATE ROLE {name}_runner LOGIN CONNECTION LIMIT 20"),
            format!("CREATE DATABASE {name}_db OWNER {name}_owner"),
            format!("REVOKE CONNECT, TEMPORARY ON DATABASE {name}_db FROM PUBLIC"),
            format!("GRANT CONNECT ON DATABASE {name}_db TO {name}_runner"),
        ] {
            Cluster::shared().execute("postgres", &statement).await;
        }
        let roles = Self(name);
        let revoke = "REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
            REVOKE ALL ON SCHEMA public FROM PUBLIC";
        roles.execute(revoke).await;
        let grant = format!("GRANT ALL ON SCHEMA public TO {name}_owner");
        roles.execute(&grant).await;
        Some(roles)
    }

    /// One whose tables are there, and granted.
    async fn granted(name: &'static str) -> Option<Self> {
        let roles = Self::new(name).await?;
        roles.grant().await;
        Some(roles)
    }

    /// As the superuser, in the database.
    async fn execute(&self, statements: &str) {
        let database = format!("{}_db", self.0);
        Cluster::shared().execute(&database, statements).await;
    }

    fn url(&self, role: &str) -> String {
        let (name, port) = (self.0, Cluster::shared().port());
        format!("postgres://{name}_{role}@127.0.0.1:{port}/{name}_db")
    }

    fn runner(&self) -> String {
        format!("{}_runner", self.0)
    }

    async fn grant(&self) {
        let runner = self.runner();
        let done = format!("role {runner} may do what `serve` needs");
        migrate(&self.url("owner"), Some(&runner), 0, &[&done]).await;
    }

    /// A proxy's configuration, as the role that serves, without a right to migrate.
    fn config(&self, upstream: &Upstream) -> Config {
        let store = Store::at(&self.url("runner"));
        Config::new(upstream, &store).with("store: { migrate: false }")
    }

    /// The error that Postgres gives to the role that serves.
    async fn refusal(&self, statement: &str) -> String {
        let mut shell = shell(&self.url("runner")).await;
        let asked = sqlx::AssertSqlSafe(statement.to_owned());
        let refused = sqlx::raw_sql(asked).execute(&mut shell).await;
        shell.close().await.expect("the connection closes");
        refused.expect_err(statement).to_string()
    }
}

/// Runs `migrate`, which has to end with this code and to say all of this.
async fn migrate(url: &str, grant_to: Option<&str>, code: i32, says: &[&str]) {
    let mut command = fencepost();
    command.args(["migrate", "--namespace", "orders"]);
    command.env("FENCEPOST_STORE", url);
    if let Some(role) = grant_to {
        command.args(["--grant-to", role]);
    }
    let ended = run(command).await;
    let said = ended.text();
    assert_eq!(ended.code, Some(code), "{said}");
    for word in says {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

#[tokio::test]
async fn the_role_that_serves_needs_no_ddl() {
    let roles = or_return!(Roles::new("needs_no_ddl").await);
    let store = Store::at(&roles.url("runner"));
    let upstream = Upstream::start().await;
    let config = roles.config(&upstream);
    Proxy::refused_for(&config, &["fencepost migrate"]).await;
    for _again in 0..2 {
        roles.grant().await;
    }

    // Everything that a proxy does.
    let config = config.with("{ store: { lease: 2s }, barrier: { wait: 25s, settle: 1s } }");
    let config = config.with("upstream: { undelivered: 500ms }");
    let (mut a, mut b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    let (older, gate) = a.held(&upstream, put("/orders/0").token(41)).await;
    let newer = b.start_request(put("/orders/0").token(42));
    b.waiting("order:0", 1).await;
    gate.open();
    all_forwarded([older, newer]).await;
    a.stale(put("/orders/0").token(41)).await;
    // The other one records that it has settled.
    a.kill9();
    store.until(NOT_SETTLED, 1).await;
    b.stop().await;
    assert_eq!(store.number(NOT_SETTLED).await, 0);
    assert_eq!(store.number(&store.open_epochs("true")).await, 0);
    let mut c = Proxy::start(&config).await;
    let lower = json!({ "token": "5", "reason": "the counter was reset", "actor": "t" });
    let answer = c.command("/v1/marks/order%3A0/override", &lower).await;
    assert_eq!(answer.status(), 200, "{}", answer.json());
    c.forward(put("/orders/0").token(6)).await;
    c.stop().await;
    // With the other setting too: nothing is left to migrate.
    let proxy = Proxy::start(&config.with("store: { migrate: true }")).await;
    proxy.forward(put("/orders/0").token(7)).await;
}

#[tokio::test]
async fn the_role_that_serves_can_harm_no_mark_and_no_schema() {
    let roles = or_return!(Roles::granted("can_harm_no_mark").await);
    for statement in [
        "DELETE FROM marks",
        "TRUNCATE marks",
        "DROP TABLE marks",
        "ALTER TABLE marks DROP COLUMN era",
        "CREATE TABLE other (n int)",
        "DELETE FROM audit",
        "UPDATE audit SET reason = ''",
        "DELETE FROM namespaces",
        "UPDATE fencepost_migrations SET success = false",
    ] {
        let said = roles.refusal(statement).await;
        assert!(
            said.contains("permission denied") || said.contains("must be owner"),
            "{statement}: {said}"
        );
    }
}

/// A prune needs a right that the role does not keep.
#[tokio::test]
async fn a_prune_says_which_right_it_needs() {
    let roles = or_return!(Roles::granted("may_not_prune").await);
    let upstream = Upstream::start().await;
    let config = roles.config(&upstream);
    let mut proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/1").token(5)).await;
    proxy.stop().await;
    let age = "UPDATE marks SET changed_at = now() - interval '60 days'";
    roles.execute(age).await;
    let proxy = Proxy::start(&config).await;
    let prune = json!({ "unchanged_for": "720h", "reason": "too many" });
    let refused = proxy.command("/v1/prune", &prune).await;
    let (status, said) = (refused.status(), refused.text());
    let grant = "GRANT DELETE ON TABLE marks TO may_not_prune_runner";
    let told = said.contains(grant) && said.contains("REVOKE DELETE");
    assert!(status == 409 && told, "{status} {said}");
    assert_eq!(proxy.token("order:1").await, Some(5));
    roles.execute(grant).await;
    let done = proxy.command("/v1/prune", &prune).await;
    assert_eq!(done.json()["deleted"], 1, "{}", done.text());
}

#[tokio::test]
async fn what_cannot_be_granted_is_said() {
    let roles = or_return!(Roles::new("cannot_be_granted").await);
    let (owner, runner) = (roles.url("owner"), roles.url("runner"));
    // Without the right to make tables.
    let missing = "GRANT USAGE, CREATE ON SCHEMA";
    let says = ["no schema has been selected", missing];
    migrate(&runner, None, 1, &says).await;
    // That is what was missing.
    let grant = format!("{missing} public TO cannot_be_granted_runner");
    roles.execute(&grant).await;
    migrate(&runner, None, 0, &[]).await;
    roles
        .execute(
            "DROP OWNED BY cannot_be_granted_runner; \
             GRANT CONNECT ON DATABASE cannot_be_granted_db TO cannot_be_granted_runner",
        )
        .await;
    let create = r#"CREATE ROLE "nobody here" LOGIN"#;
    migrate(&owner, Some("nobody here"), 1, &[create]).await;
    // The tables are the owner's: the server's role has nothing to give.
    roles.grant().await;
    roles
        .execute("CREATE ROLE cannot_be_granted_third LOGIN")
        .await;
    migrate(
        &runner,
        Some("cannot_be_granted_third"),
        1,
        &["no privileges were granted"],
    )
    .await;
    let sqlite = Store::sqlite();
    migrate(&sqlite.url(), Some("x"), 1, &["SQLite has no roles"]).await;
}

/// Before Postgres 15 `public` is the superuser's, who let the owner use it.
#[tokio::test]
async fn a_schema_of_somebody_else_is_granted_only_with_the_option() {
    let roles = or_return!(Roles::new("elsewhere").await);
    let (owner, runner) = (roles.url("owner"), roles.runner());
    roles.execute("ALTER SCHEMA public OWNER TO postgres").await;
    let says = r#"GRANT USAGE ON SCHEMA "public" TO "elsewhere_runner""#;
    migrate(&owner, Some(&runner), 1, &[says]).await;
    let option = "GRANT ALL ON SCHEMA public TO elsewhere_owner WITH GRANT OPTION";
    roles.execute(option).await;
    roles.grant().await;
}

/// Neither schema nor right is at fault if the role's `search_path` leads nowhere, or past the
/// tables.
#[tokio::test]
async fn a_search_path_without_a_schema_is_named() {
    let roles = or_return!(Roles::new("path_leads_nowhere").await);
    let set = "ALTER ROLE path_leads_nowhere_owner SET search_path = fence, \"$user\"";
    roles.execute(set).await;
    migrate(&roles.url("owner"), None, 1, &["leads to no schema"]).await;
    let create = "CREATE SCHEMA fence AUTHORIZATION path_leads_nowhere_owner";
    roles.execute(create).await;
    roles.grant().await;

    // The role that serves does not find those tables.
    let upstream = Upstream::start().await;
    let config = roles.config(&upstream);
    Proxy::refused_for(&config, &["search_path does not lead to it"]).await;
    let lead = "ALTER ROLE path_leads_nowhere_runner IN DATABASE path_leads_nowhere_db \
        SET search_path = fence";
    roles.execute(lead).await;
    let proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/1").token(5)).await;
}

/// Its rows are in no log of the server: the counterpart of a file in memory.
#[tokio::test]
async fn a_table_that_a_crash_empties_is_refused() {
    let store = or_return!(Store::postgres().await);
    let (_upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
    proxy.stop().await;
    for table in ["marks", "instances"] {
        let unlogged = format!("ALTER TABLE {table} SET UNLOGGED");
        store.execute(&unlogged).await;
        let logged = format!("ALTER TABLE {table} SET LOGGED");
        Proxy::refused_for(&config, &["is UNLOGGED", &logged]).await;
        store.execute(&logged).await;
    }
    Proxy::start(&config).await;
}
