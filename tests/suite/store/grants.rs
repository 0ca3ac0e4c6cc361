//! Two roles: one that may change the schema, and migrates; one that serves, and may not.

use std::process::Output;

use serde_json::json;

use crate::support::postgres::Cluster;
use crate::support::proxy::fencepost;
use crate::support::store::{NOT_SETTLED, has_postgres};
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, or_return, put,
};

/// The URLs of the two, to a database of the first.
struct Roles {
    owner: String,
    runner: String,
}

impl Roles {
    /// Makes them as docs/postgres.md says.
    async fn new(test: &str) -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        let cluster = Cluster::shared();
        // Roles belong to the whole server, which tests share.
        let (owner, runner) = (format!("{test}_owner"), format!("{test}_runner"));
        let database = format!("{test}_db");
        for statement in [
            format!("CREATE ROLE {owner} LOGIN"),
            format!("CREATE ROLE {runner} LOGIN CONNECTION LIMIT 20"),
            format!("CREATE DATABASE {database} OWNER {owner}"),
        ] {
            cluster.execute("postgres", &statement).await;
        }
        for statement in [
            format!("REVOKE CONNECT, TEMPORARY ON DATABASE {database} FROM PUBLIC"),
            format!("GRANT CONNECT ON DATABASE {database} TO {runner}"),
        ] {
            cluster.execute("postgres", &statement).await;
        }
        cluster
            .execute(&database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC")
            .await;
        cluster
            .execute(&database, &format!("GRANT ALL ON SCHEMA public TO {owner}"))
            .await;
        let url = |role: &str| format!("postgres://{role}@127.0.0.1:{}/{database}", cluster.port());
        Some(Self {
            owner: url(&owner),
            runner: url(&runner),
        })
    }

    fn name(&self) -> &str {
        let (_, rest) = self.runner.split_once("//").expect("a URL");
        rest.split_once('@').expect("with a role").0
    }

    async fn migrate(&self, url: &str, role: Option<&str>) -> (Option<i32>, String) {
        let mut command = fencepost();
        command
            .args(["migrate", "--namespace", "orders"])
            .env("FENCEPOST_STORE", url);
        if let Some(role) = role {
            command.args(["--grant-to", role]);
        }
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
        let (code, said) = roles.migrate(&roles.owner, Some(roles.name())).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(
            said.contains(&format!("role {} may do what `serve` needs", roles.name())),
            "{said}"
        );
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
    let (code, said) = roles.migrate(&roles.owner, Some(roles.name())).await;
    assert_eq!(code, Some(0), "{said}");
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
    let (code, said) = roles.migrate(&roles.owner, Some(roles.name())).await;
    assert_eq!(code, Some(0), "{said}");
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
async fn what_cannot_be_granted_is_said() {
    let roles = or_return!(Roles::new("cannot_be_granted").await);
    // Without the right to make tables.
    let (code, said) = roles.migrate(&roles.runner, None).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("no schema has been selected")
            && said.contains("GRANT USAGE, CREATE ON SCHEMA"),
        "{said}"
    );
    let grant = "GRANT USAGE, CREATE ON SCHEMA public TO cannot_be_granted_runner";
    // That is what was missing.
    let database = "cannot_be_granted_db";
    Cluster::shared().execute(database, grant).await;
    let (code, said) = roles.migrate(&roles.runner, None).await;
    assert_eq!(code, Some(0), "{said}");
    let undone = format!(
        "DROP OWNED BY {runner}; GRANT CONNECT ON DATABASE {database} TO {runner}",
        runner = roles.name()
    );
    Cluster::shared().execute(database, &undone).await;
    let (code, said) = roles.migrate(&roles.owner, Some("nobody here")).await;
    assert_eq!(code, Some(1));
    assert!(
        said.contains(r#"CREATE ROLE "nobody here" LOGIN"#),
        "{said}"
    );
    // The tables are the owner's: the server's role has nothing to give.
    let (code, said) = roles.migrate(&roles.owner, Some(roles.name())).await;
    assert_eq!(code, Some(0), "{said}");
    let third = "CREATE ROLE cannot_be_granted_third LOGIN";
    Cluster::shared().execute("postgres", third).await;
    let (code, said) = roles
        .migrate(&roles.runner, Some("cannot_be_granted_third"))
        .await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("no privileges were granted") || said.contains("permission denied"),
        "{said}"
    );
    // The schema is somebody else's (before Postgres 15 `public` is the superuser's), who let the
    // owner use it.
    let (owner, _) = roles.owner.rsplit_once('/').expect("a URL");
    let elsewhere = format!("{owner}/cannot_be_granted_elsewhere");
    for (database, statement) in [
        ("postgres", "CREATE DATABASE cannot_be_granted_elsewhere"),
        (
            "cannot_be_granted_elsewhere",
            "REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT ALL ON SCHEMA public TO cannot_be_granted_owner",
        ),
    ] {
        Cluster::shared().execute(database, statement).await;
    }
    let (code, said) = roles.migrate(&elsewhere, Some(roles.name())).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("GRANT USAGE ON SCHEMA \"public\" TO \"cannot_be_granted_runner\""),
        "{said}"
    );
    let option = "GRANT ALL ON SCHEMA public TO cannot_be_granted_owner WITH GRANT OPTION";
    Cluster::shared()
        .execute("cannot_be_granted_elsewhere", option)
        .await;
    let (code, said) = roles.migrate(&elsewhere, Some(roles.name())).await;
    assert_eq!(code, Some(0), "{said}");
    let sqlite = Store::sqlite();
    let (code, said) = roles.migrate(&sqlite.url(), Some("x")).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("SQLite has no roles"), "{said}");
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
    let (code, said) = roles.migrate(&roles.owner, None).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("leads to no schema"), "{said}");
    let create = format!("CREATE SCHEMA fence AUTHORIZATION {owner}");
    cluster.execute(database, &create).await;
    let (code, said) = roles.migrate(&roles.owner, Some(runner)).await;
    assert_eq!(code, Some(0), "{said}");

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
