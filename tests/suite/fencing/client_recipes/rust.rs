//! The recipe in Rust. It is compiled into the suite, so that it needs no build of its own, and runs
//! in a process of its own.

use std::process::Command;

use super::{obeys, text_of};
use crate::support::postgres::Cluster;
use crate::support::sql::{shell, sql};
use crate::support::store::has_postgres;
use crate::support::{return_unless, soon};

mod nightly {
    include!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/docs/clients/nightly.rs"
    ));

    /// Run by [`super::the_rust_recipe_obeys`].
    #[test]
    #[ignore = "another test runs it"]
    fn the_program() -> Answer<()> {
        // reqwest is built without a provider here, as fencepost has its own.
        let _ = rustls::crypto::ring::default_provider().install_default();
        main()
    }
}

/// The files that are compiled above.
const FILES: [(&str, &str); 2] = [
    (
        "fenced.rs",
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/docs/clients/fenced.rs"
        )),
    ),
    (
        "nightly.rs",
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/docs/clients/nightly.rs"
        )),
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_recipe_obeys() {
    for (name, file) in FILES {
        assert_eq!(format!("{}\n", text_of("rust.md", name)), file, "{name}");
    }
    return_unless!(has_postgres());
    let cluster = Cluster::shared();
    let database = cluster.create_database().await;
    let name = database.rsplit('/').next().expect("its name");
    cluster.execute(name, "CREATE SEQUENCE orders_fence").await;
    obeys(|url| {
        let suite = std::env::current_exe().expect("a path");
        let mut command = Command::new(suite);
        command.args(["--ignored", "--exact", "--nocapture"]);
        command.arg("fencing::client_recipes::rust::nightly::the_program");
        command
            .env("FENCEPOST_URL", url)
            .env("POSTGRES_URL", &database);
        command
    })
    .await;
}

/// The lease of the recipe, which Postgres itself does not know.
#[tokio::test]
async fn a_session_that_is_idle_for_too_long_loses_the_lock() {
    return_unless!(has_postgres());
    let url = Cluster::shared().create_database().await;
    let mut former = shell(&url).await;
    let mut next = shell(&url).await;
    for statement in [
        "SELECT pg_advisory_lock(7)",
        "SET idle_session_timeout = '50ms'",
    ] {
        sql(&mut former, statement).await;
    }
    soon("the lock", sql(&mut next, "SELECT pg_advisory_lock(7)")).await;
    let lost = sqlx::query("SELECT 1").execute(&mut former).await;
    assert!(lost.is_err(), "the former session has ended");
}
