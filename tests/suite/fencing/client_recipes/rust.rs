//! The recipe in Rust. It is compiled into the suite, so that it needs no build of its own, and runs
//! in a process of its own.

use std::process::Command;

use super::{obeys, sequence, text_of};
use crate::support::return_unless;
use crate::support::store::has_postgres;

mod nightly {
    include!("../../../../docs/clients/nightly.rs");

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
const FENCED: &str = include_str!("../../../../docs/clients/fenced.rs");
const NIGHTLY: &str = include_str!("../../../../docs/clients/nightly.rs");

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_recipe_obeys() {
    for (name, compiled) in [("fenced.rs", FENCED), ("nightly.rs", NIGHTLY)] {
        let shown = text_of("rust.md", name);
        assert_eq!(shown, compiled.trim_end(), "{name}");
    }
    return_unless!(has_postgres());
    let database = sequence().await;
    let mut suite = Command::new(std::env::current_exe().expect("a path"));
    suite.args(["--ignored", "--exact", "--nocapture"]);
    suite.arg("fencing::client_recipes::rust::nightly::the_program");
    obeys(suite.env("POSTGRES_URL", &database)).await;
}
