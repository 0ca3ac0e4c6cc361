//! Two roles: one that may change the schema, and migrates; one that serves, and may not.

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::postgres::Cluster;
use crate::support::proxy::fencepost;
use crate::support::run::run;
use crate::support::sql::{shell, sql};
use crate::support::store::{NOT_SETTLED, has_postgres};
use crate::support::{Config, Proxy, Store, Upstream, all_forwarded, or_return, put};

const PAGE: &str = include_str!("../../../docs/postgres.md");

/// One of the page's blocks of SQL.
fn block(number: usize) -> &'static str {
    let block = PAGE.split("```sql\n").nth(number + 1).expect("a block");
    block.split("```").next().expect("its text")
}

/// An owner, a runner and a database, named for this test: roles belong to the whole server, which
/// tests share.
struct Roles(&'static str);

impl Roles {
    /// Makes them by the page's SQL.
    async fn new(test: &'static str) -> Option<Self> {
        has_postgres().then_some(())?;
        let (roles, cluster) = (Self(test), Cluster::shared());
        let (server, database) = block(0)
            .split_once("\\connect fencepost\n")
            .expect("both parts");
        for statement in roles.named(server).lines() {
            cluster.execute("postgres", statement).await;
        }
        roles.execute(&roles.named(database)).await;
        Some(roles)
    }

    fn url(&self, role: &str) -> String {
        let (test, port) = (self.0, Cluster::shared().port());
        format!("postgres://{test}_{role}@127.0.0.1:{port}/{test}_db")
    }

    /// The store of the one that serves.
    fn store(&self) -> Store {
        Store::at(&self.url("runner"))
    }

    /// The configuration of a proxy that may not migrate.
    fn config(&self, upstream: &Upstream) -> Config {
        Config::new(upstream, &self.store()).with("store: { migrate: false }")
    }

    /// A statement of the page about these roles and their database.
    fn named(&self, statement: &str) -> String {
        let test = self.0;
        statement
            .replace("fencepost_owner", &format!("{test}_owner"))
            .replace("DATABASE fencepost", &format!("DATABASE {test}_db"))
            .replace("ROLE fencepost ", &format!("ROLE {test}_runner "))
            .replace("TO fencepost;", &format!("TO {test}_runner;"))
    }

    /// Runs statements as the superuser.
    async fn execute(&self, statements: &str) {
        let database = format!("{}_db", self.0);
        Cluster::shared().execute(&database, statements).await;
    }

    /// Runs the page's statements as the owner.
    async fn run(&self, statements: &str) {
        let mut owner = shell(&self.url("owner")).await;
        sql(&mut owner, &self.named(statements)).await;
    }

    /// Migrates, and grants what the page does.
    async fn grant(&self) {
        self.migrate("owner", Ok(())).await;
        self.run(block(1)).await;
    }

    /// Migrates as this role, which is done, or fails with a text that has all of this.
    async fn migrate(&self, role: &str, wanted: Result<(), &[&str]>) {
        let mut command = fencepost();
        command.args(["migrate", "--namespace", "orders"]);
        command.env("FENCEPOST_STORE", self.url(role));
        let ended = run(command).await;
        let said = ended.text();
        let says = wanted.err().unwrap_or_default();
        assert_eq!(ended.code, Some(i32::from(wanted.is_err())), "{said}");
        assert!(says.iter().all(|text| said.contains(text)), "{said}");
    }

    /// The error that Postgres gives to the one that serves.
    async fn refusal(&self, statement: &str) -> String {
        let mut runner = shell(&self.url("runner")).await;
        let asked = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        let refused = asked.execute(&mut runner).await;
        runner.close().await.expect("the connection closes");
        refused.expect_err(statement).to_string()
    }
}

#[tokio::test]
async fn the_role_that_serves_needs_no_ddl() {
    let roles = or_return!(Roles::new("needs_no_ddl").await);
    let (store, upstream) = (roles.store(), Upstream::start().await);
    Proxy::refused_for(&roles.config(&upstream), &["fencepost migrate"]).await;

    for _again in 0..2 {
        roles.grant().await;
    }

    // Everything that a proxy does, with either setting: nothing is left to migrate.
    for (n, migrate) in [(0, false), (1, true)] {
        let config = Config::new(&upstream, &store).with(&format!(
            "{{ upstream: {{ undelivered: 500ms }}, store: {{ migrate: {migrate}, lease: 2s }}, \
                barrier: {{ wait: 25s, settle: 1s }} }}"
        ));
        let (mut a, mut b) = (Proxy::start(&config).await, Proxy::start(&config).await);
        let path = format!("/orders/{n}");
        let (older, gate) = a.held(&upstream, put(&path).token(41)).await;
        let newer = b.start_request(put(&path).token(42));
        b.waiting(&format!("order:{n}"), 1).await;
        gate.open();
        all_forwarded([older, newer]).await;
        a.stale(put(&path).token(41)).await;
        // The other one records that it has settled.
        a.kill9();
        store.until(NOT_SETTLED, 1).await;
        b.stop().await;
        assert_eq!(store.number(NOT_SETTLED).await, 0);
        assert_eq!(store.number(&store.open_epochs("true")).await, 0);
        let mut c = Proxy::start(&config).await;
        let lower = json!({ "token": "5", "reason": "the counter was reset", "actor": "t" });
        let override_it = format!("/v1/marks/order%3A{n}/override");
        let answer = c.command(&override_it, &lower).await;
        assert_eq!(answer.status(), 200, "{}", answer.json());
        c.forward(put(&path).token(6)).await;
        c.stop().await;
    }
}

#[tokio::test]
async fn the_role_that_serves_can_harm_no_mark_and_no_schema() {
    let roles = or_return!(Roles::new("can_harm_no_mark").await);
    roles.grant().await;
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
    let roles = or_return!(Roles::new("may_not_prune").await);
    roles.grant().await;
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
    assert_eq!(refused.status(), 409, "{}", refused.text());
    let grant = "GRANT DELETE ON TABLE marks TO may_not_prune_runner";
    for says in [grant, "REVOKE DELETE"] {
        assert!(refused.text().contains(says), "{}", refused.text());
    }
    assert_eq!(proxy.token("order:1").await, Some(5));
    roles.execute(grant).await;
    let done = proxy.command("/v1/prune", &prune).await;
    assert_eq!(done.json()["deleted"], 1, "{}", done.text());
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let roles = or_return!(Roles::new("may_not_migrate").await);
    // Without the right to make tables.
    let grant = "GRANT USAGE, CREATE ON SCHEMA";
    let refused = Err(&["no schema has been selected", grant][..]);
    roles.migrate("runner", refused).await;
    // That is what was missing.
    roles.run(&format!("{grant} public TO fencepost;")).await;
    roles.migrate("runner", Ok(())).await;
}

/// Before the owner has granted what serving needs.
#[tokio::test]
async fn a_role_without_its_rights_is_told_where_they_stand() {
    let roles = or_return!(Roles::new("has_no_rights").await);
    roles.migrate("owner", Ok(())).await;
    let usage = block(1).lines().next().expect("the first grant");
    roles.run(usage).await;
    let where_they_stand = "docs/postgres.md, \"Two roles\"";
    let refused = Err(&["permission denied", where_they_stand][..]);
    roles.migrate("runner", refused).await;
}

/// Neither schema nor right is at fault if the role's `search_path` leads nowhere, or past the
/// tables.
#[tokio::test]
async fn a_search_path_without_a_schema_is_named() {
    let roles = or_return!(Roles::new("path_leads_nowhere").await);
    let set = "ALTER ROLE path_leads_nowhere_owner SET search_path = fence, \"$user\"";
    roles.execute(set).await;
    let refused = Err(&["leads to no schema"][..]);
    roles.migrate("owner", refused).await;
    let create = "CREATE SCHEMA fence AUTHORIZATION path_leads_nowhere_owner";
    roles.execute(create).await;
    roles.migrate("owner", Ok(())).await;
    let there = block(1).replace("SCHEMA public", "SCHEMA fence");
    roles.run(&there).await;

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
        let set = |how: &str| format!("ALTER TABLE {table} SET {how}");
        store.execute(&set("UNLOGGED")).await;
        Proxy::refused_for(&config, &["is UNLOGGED", &set("LOGGED")]).await;
        store.execute(&set("LOGGED")).await;
    }
    Proxy::start(&config).await;
}
