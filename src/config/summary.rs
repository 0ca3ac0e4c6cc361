//! Descriptions of a configuration: its summary in one line, for the log at the start, without
//! secrets; advice about its keys; and the JSON Schema of the file, for editors and for programs
//! that write configurations.

use std::collections::BTreeSet;

use schemars::Schema;
use schemars::transform::transform_subschemas;
use serde_json::Value;

use super::addresses::StoreTarget;
use super::judging::Mode;
use super::settings::{LISTEN, Settings};
use super::tls::ClientAuth;
use super::yaml::at;

/// Says which routes are fenced by which key, where the marks are, and which routes do not enforce.
pub fn describe(settings: &Settings) -> Vec<String> {
    let written = |field: &str| at(&settings.document.0, field).and_then(Value::as_str);
    let upstream = written("upstream.url").unwrap_or_default();
    let listen = written("listen").unwrap_or(LISTEN);
    let tls = match (&settings.tls, settings.client_auth()) {
        (None, _) => "",
        (_, None) => " over TLS",
        (_, Some(ClientAuth::Optional)) => " over TLS, client certificates optional",
        (_, Some(ClientAuth::Required)) => " over TLS, client certificates required",
    };
    let mut lines = vec![format!("fencing {upstream} behind {listen}{tls}")];
    for (mode, words) in [
        (Mode::Enforce, "enforced"),
        (Mode::Observe, "NOT ENFORCED, observed only"),
        (Mode::Bypass, "NOT ENFORCED, bypassed"),
    ] {
        let routes = settings.routes.iter().filter(|route| route.mode == mode);
        let routes = routes.map(|route| match route.fenced_key() {
            Some(key) => format!("{} by key {}", route.path, key.as_str()),
            None => route.path.to_string(),
        });
        let routes: Vec<_> = routes.collect();
        if !routes.is_empty() {
            lines.push(format!("{words}: {}", routes.join(", ")));
        } else if mode == Mode::Enforce {
            lines.push("NOTHING IS ENFORCED".to_owned());
        }
    }
    let shared = match settings.store.target {
        StoreTarget::Sqlite { .. } => "this proxy only",
        StoreTarget::Postgres(_) => "shared",
    };
    let store = written("store.url").or(written("store.url_file"));
    let store = store.unwrap_or("sqlite:fencepost.db");
    let namespace = &settings.store.namespace;
    lines.push(format!(
        "marks in {store}, namespace {namespace} ({shared})"
    ));
    lines
}

/// Advice about keys that are valid, but may be wrong for an upstream that reads names differently.
pub fn advice(settings: &Settings) -> Vec<String> {
    let open = settings.routes.iter().filter_map(|route| {
        let captures = route.fenced_key()?.open_captures();
        let captures: BTreeSet<String> = captures.map(ToString::to_string).collect();
        let listed = Vec::from_iter(captures).join(", ");
        (!listed.is_empty()).then(|| format!("{listed} of {}", route.path))
    });
    let open: Vec<_> = open.collect();
    if open.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "advice: each spelling gets a key of its own in {}. To Rails, Django REST framework or an older \
         Spring, 7 and 7.json can be the same thing. With such an upstream, write {{id|plain}} in \
         the key, which accepts ASCII letters, digits, - and _, and refuses the rest",
        open.join("; ")
    )]
}

/// The schema (JSON Schema 2020-12) of the configuration file.
pub fn schema() -> Schema {
    let mut schema = schemars::schema_for!(Settings);
    adapt(&mut schema);
    schema
}

/// An optional field has no default to tell of.
fn adapt(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    transform_subschemas(&mut adapt, schema);
}
