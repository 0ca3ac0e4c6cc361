//! Two roles: one that may change the schema, and migrates; one that serves, and may not.

use std::process::Output;

use serde_json::json;

use crate::support::postgres::Cluster;
use crate::support::proxy::fencepost;
use crate::support::sql::{shell, sql};
use crate::support::store::{NOT_SETTLED, has_postgres};
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, or_return, put,
};

const PAGE: &str = include_str!("../../../docs/postgres.md");

/// One of the page's blocks of SQL.
fn block(number: usize) -> &'static str {
    let block = PAGE.split("```sql\n").nth(number + 1);
    block
        .and_then(|text| text.split("```").next())
        .expect("a block")
}

/// The URLs of the two, to a database of the first.
struct Roles {
    owner: String,
    runner: String,
}

impl Roles {
    /// Makes them by the page's SQL.
    async fn new(test: &str) -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        let cluster = Cluster::shared();
        // Roles belong to the whole server, which tests share.
        let url = |role: &str| {
            let port = cluster.port();
            format!("postgres://{test}_{role}@127.0.0.1:{port}/{test}_db")
        };
        let roles = Self {
            owner: url("owner"),
            runner: url("runner"),
        };
        let (server, database) = block(0)
            .split_once("\\connect fencepost\n")
            .expect("both parts");
        for statement in roles.named(server).lines() {
            cluster.execute("postgres", statement).await;
        }
        cluster
            .execute(&format!("{test}_db"), &roles.named(database))
            .await;
        Some(roles)
    }

    fn name(&self) -> &str {
        let (_, rest) = self.runner.split_once("//").expect("a URL");
        rest.split_once('@').expect("with a role").0
    }

    /// A statement of the page about these roles and their database.
    fn named(&self, statement: &str) -> String {
        let (_, database) = self.runner.rsplit_once('/').expect("a URL");
        let runner = self.name();
        let owner = runner.replace("_runner", "_owner");
        statement
            .replace("fencepost_owner", &owner)
            .replace("DATABASE fencepost", &format!("DATABASE {database}"))
            .replace("ROLE fencepost ", &format!("ROLE {runner} "))
            .replace("TO fencepost;", &format!("TO {runner};"))
    }

    /// Runs the page's statements as the owner.
    async fn run(&self, statements: &str) {
        let mut owner = shell(&self.owner).await;
        sql(&mut owner, &self.named(statements)).await;
    }

    /// Migrates, and grants what the page does.
    async fn grant(&self) {
        let (code, said) = self.migrate(&self.owner).await;
        assert_eq!(code, Some(0), "{said}");
        self.run(block(1)).await;
    }

    async fn migrate(&self, url: &str) -> (Option<i32>, String) {
        let mut command = fencepost();
        command
            .args(["migrate", "--namespace", "orders"])
            .env("FENCEPOST_STORE", url);
        let Output {
            status,
            stdout,
            stderr,
        } = tokio::task::spawn_blocking(move || command.output().expect("the program starts"))
            .await
            .expect("no panic");
        let text = [stdout, stderr].concat();
        (status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// The error that Postgres gives to this role.
    async fn refusal(&self, statement: &str) -> String {
        use sqlx::{ConnectOptions as _, Connection as _};
        let options: sqlx::postgres::PgConnectOptions = self.runner.parse().expect("a URL");
        let mut connection = options.connect().await.expect("it may log in");
        let asked = sqlx::AssertSqlSafe(statement.to_owned());
        let refused = sqlx::raw_sql(asked).execute(&mut connection).await;
        connection.close().await.expect("the connection closes");
        refused.expect_err(statement).to_string()
    }
}

#[tokio::test]
async fn the_role_that_serves_needs_no_ddl() {
    let roles = or_return!(Roles::new("needs_no_ddl").await);
    let store = Store::at(&roles.runner);
    let upstream = Upstream::start().await;
    let behind = Config::new(&upstream, &store).with("store: { migrate: false }");
    Proxy::refused_for(&behind, &["fencepost migrate"]).await;

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
        let gate = Gate::shut();
        upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
        let before = upstream.tokens(&format!("order:{n}")).len();
        let older = a.start_request(put(&path).token(41));
        eventually("41 to arrive", || async {
            (upstream.tokens(&format!("order:{n}")).len() > before).then_some(())
        })
        .await;
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
    let config = |store: &Store, upstream: &Upstream| {
        Config::new(upstream, store).with("store: { migrate: false }")
    };
    let (store, upstream) = (Store::at(&roles.runner), Upstream::start().await);
    let mut proxy = Proxy::start(&config(&store, &upstream)).await;
    proxy.forward(put("/orders/1").token(5)).await;
    proxy.stop().await;
    let database = "may_not_prune_db";
    let age = "UPDATE marks SET changed_at = now() - interval '60 days'";
    Cluster::shared().execute(database, age).await;
    let proxy = Proxy::start(&config(&store, &upstream)).await;
    let prune = json!({ "unchanged_for": "720h", "reason": "too many" });
    let refused = proxy.command("/v1/prune", &prune).await;
    assert_eq!(refused.status(), 409, "{}", refused.text());
    let grant = "GRANT DELETE ON TABLE marks TO may_not_prune_runner";
    assert!(refused.text().contains(grant), "{}", refused.text());
    assert!(
        refused.text().contains("REVOKE DELETE"),
        "{}",
        refused.text()
    );
    assert_eq!(proxy.token("order:1").await, Some(5));
    Cluster::shared().execute(database, grant).await;
    let done = proxy.command("/v1/prune", &prune).await;
    assert_eq!(done.json()["deleted"], 1, "{}", done.text());
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let roles = or_return!(Roles::new("may_not_migrate").await);
    // Without the right to make tables.
    let (code, said) = roles.migrate(&roles.runner).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("no schema has been selected")
            && said.contains("GRANT USAGE, CREATE ON SCHEMA"),
        "{said}"
    );
    let grant = "GRANT USAGE, CREATE ON SCHEMA public TO fencepost;";
    // That is what was missing.
    roles.run(grant).await;
    let (code, said) = roles.migrate(&roles.runner).await;
    assert_eq!(code, Some(0), "{said}");
}

/// Before the owner has granted what serving needs.
#[tokio::test]
async fn a_role_without_its_rights_is_told_where_they_stand() {
    let roles = or_return!(Roles::new("has_no_rights").await);
    let (code, said) = roles.migrate(&roles.owner).await;
    assert_eq!(code, Some(0), "{said}");
    let usage = block(1).lines().next().expect("the first grant");
    roles.run(usage).await;
    let (code, said) = roles.migrate(&roles.runner).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("permission denied") && said.contains("docs/postgres.md, \"Two roles\""),
        "{said}"
    );
}

/// Neither schema nor right is at fault if the role's `search_path` leads nowhere, or past the
/// tables.
#[tokio::test]
async fn a_search_path_without_a_schema_is_named() {
    let roles = or_return!(Roles::new("path_leads_nowhere").await);
    let (cluster, database) = (Cluster::shared(), "path_leads_nowhere_db");
    let (owner, runner) = ("path_leads_nowhere_owner", roles.name());
    let set = format!("ALTER ROLE {owner} SET search_path = fence, \"$user\"");
    cluster.execute("postgres", &set).await;
    let (code, said) = roles.migrate(&roles.owner).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("leads to no schema"), "{said}");
    let create = format!("CREATE SCHEMA fence AUTHORIZATION {owner}");
    cluster.execute(database, &create).await;
    let (code, said) = roles.migrate(&roles.owner).await;
    assert_eq!(code, Some(0), "{said}");
    let there = block(1).replace("SCHEMA public", "SCHEMA fence");
    roles.run(&there).await;

    // The role that serves does not find those tables.
    let (store, upstream) = (Store::at(&roles.runner), Upstream::start().await);
    let config = Config::new(&upstream, &store).with("store: { migrate: false }");
    let (status, said) = Proxy::refused(&config).await;
    assert!(
        !status.success() && said.contains("search_path does not lead to it"),
        "{said}"
    );
    let lead = format!("ALTER ROLE {runner} IN DATABASE {database} SET search_path = fence");
    cluster.execute(database, &lead).await;
    let proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/1").token(5)).await;
}

/// Its rows are in no log of the server: the counterpart of a file in memory.
#[tokio::test]
async fn a_table_that_a_crash_empties_is_refused() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store);
    let mut proxy = Proxy::start(&config).await;
    proxy.stop().await;
    for table in ["marks", "instances"] {
        store
            .execute(&format!("ALTER TABLE {table} SET UNLOGGED"))
            .await;
        let (status, said) = Proxy::refused(&config).await;
        let logged = format!("ALTER TABLE {table} SET LOGGED");
        assert!(
            !status.success() && said.contains("is UNLOGGED") && said.contains(&logged),
            "{said}"
        );
        store.execute(&logged).await;
    }
    Proxy::start(&config).await;
}
