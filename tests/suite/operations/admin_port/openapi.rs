//! The admin API does what its `OpenAPI` document says: schemathesis, a public tool, makes requests of
//! it, right ones and wrong ones, and compares each answer with it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::python::python;
use crate::support::skip::lacks;
use crate::support::{Config, Proxy, Store, Upstream, put};

/// All but the comparison of `Allow`: `GET …/advance` is the view of a mark whose key ends so, and
/// the document has only what is meant.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,\
    positive_data_acceptance,missing_required_header,use_after_free,\
    ensure_resource_availability,ignored_auth,object_level_authorization";

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_is_what_its_document_says() {
    let Some(python) = python("the_admin_api_is_what_its_document_says") else {
        return;
    };
    let schemathesis = python.with_file_name("schemathesis");
    if !schemathesis.is_file() {
        lacks("the_admin_api_is_what_its_document_says", "python-tools");
        return;
    }
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite())).await;
    // Something is there to be listed.
    for token in [5, 6] {
        proxy
            .send(put("/orders/7").token(token))
            .await
            .assert_forwarded();
    }
    proxy
        .send(put("/orders/7").token(4))
        .await
        .assert_problem(412, "stale-token");
    let secret = std::fs::read_to_string(proxy.token_file()).expect("its token");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/admin/schemathesis.toml");
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(schemathesis);
    command
        .arg("--config-file")
        .arg(config)
        .arg("run")
        .arg(format!("http://{}/v1/openapi.json", proxy.admin()))
        .args([
            "--header",
            &format!("Authorization: Bearer {}", secret.trim()),
        ])
        .args([
            "--checks",
            CHECKS,
            "--max-examples",
            "30",
            "--seed",
            "1",
            "--no-color",
        ])
        .args([
            "--generation-database",
            "none",
            "--suppress-health-check",
            "all",
        ])
        // No cache of its own beside the project's files.
        .current_dir(dir.path());
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("no panic").expect("schemathesis runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("Tested: 17"),
        "each operation was tried: {said}"
    );
}

/// The document names each endpoint that there is, and the version of the program.
#[tokio::test]
async fn the_document_names_all_endpoints() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite())).await;
    let answer = proxy.ask("/v1/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let document: Value = answer.json();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let paths = document["paths"].as_object().expect("paths");
    for path in super::access::READS {
        let pattern = if path.starts_with("/v1/marks/") {
            "/v1/marks/{resource}"
        } else {
            path
        };
        assert!(paths.contains_key(pattern), "{path} is not in the document");
    }
    for verb in ["advance", "override", "resolve"] {
        assert!(
            paths.contains_key(&format!("/v1/marks/{{resource}}/{verb}")),
            "{verb}"
        );
    }
}
