//! The sample files under `config/`, the schema, and that they say the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::addresses::is_local;
use super::super::yaml::{self, Report};
use super::super::{Listen, Loader, Overrides, parse, schema};
use super::good;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

fn samples() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).expect("the samples are there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("it can be read").path())
        // The folders have other files: alerts, a dashboard.
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    files
}

/// The reference sample, with the fields shown behind `#:` given.
fn reference() -> String {
    let text = std::fs::read_to_string(folder().join("fencepost.yaml")).expect("it is there");
    text.replace("#: ", "")
}

fn tree(text: &str) -> Value {
    let mut report = Report::default();
    let tree = yaml::parse(text, &mut report).expect("it is YAML");
    assert!(!report.has_errors(), "{:?}", report.finish());
    tree
}

fn schema_json() -> Value {
    serde_json::to_value(schema()).expect("a schema is JSON")
}

#[test]
fn every_sample_loads() {
    for file in samples() {
        let (file, overrides) = (Some(file), Overrides::default());
        let loaded = Loader { file, overrides }.load();
        let (settings, _) = loaded.unwrap_or_else(|problems| panic!("{problems}"));
        assert!(!settings.routes.is_empty());
    }
}

/// A loopback address cannot be reached from outside a container.
#[test]
fn no_sample_puts_a_listener_on_the_loopback_of_a_container() {
    let mut overrides = Overrides::default();
    for (path, port) in [("listen", 7080), ("admin.listen", 7081)] {
        overrides.fall_back(path, format!("0.0.0.0:{port}"), "--default");
    }
    for file in samples() {
        let text = std::fs::read_to_string(&file).expect("it can be read");
        let (settings, _) = parse(&text, &overrides).expect("it is good");
        let admin = settings.admin.listen.0.as_ref();
        for listen in admin.into_iter().chain([&settings.listen]) {
            let is_socket = matches!(listen, Listen::Unix(_));
            assert!(is_socket || !is_local(listen), "{file:?}: {listen:?}");
        }
    }
}

#[test]
fn the_schema_accepts_every_sample() {
    let schema = schema_json();
    for file in samples() {
        let text = std::fs::read_to_string(&file).expect("it can be read");
        accepts(&schema, &schema, &tree(&text), "")
            .unwrap_or_else(|wrong| panic!("{}: {wrong}", file.display()));
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    let schema = schema_json();
    for text in [
        "zebra: 1\n",
        "barrier: { weit: 1s }\n",
        "barrier: { wait: soon }\n",
        "unmatched: pass\n",
        "stale_status: 400\n",
        "disclose: perhaps\n",
        "routes: [{ resource: a }]\n",
        "routes: [{ path: /a, mode: enforced }]\n",
        "claim: on\n",
    ] {
        assert!(
            accepts(&schema, &schema, &tree(text), "").is_err(),
            "{text}"
        );
    }
}

#[test]
fn the_reference_sample_has_every_field_of_the_schema_and_no_other() {
    let schema = schema_json();
    let mut fields = BTreeMap::new();
    fields_of(&schema, &schema, "", &mut fields);
    let tree = tree(&reference());
    let missing: Vec<_> = fields
        .keys()
        .filter(|path| node_at(&tree, path).is_none())
        .collect();
    assert!(missing.is_empty(), "the reference sample lacks {missing:?}");
    let mut surplus = Vec::new();
    paths_of(&tree, "", &mut surplus);
    surplus.retain(|path| !path.starts_with("routes[1]") && !fields.contains_key(path));
    assert!(surplus.is_empty(), "the schema lacks {surplus:?}");
}

#[test]
fn the_reference_sample_shows_the_defaults_of_the_schema() {
    let schema = schema_json();
    let mut fields = BTreeMap::new();
    fields_of(&schema, &schema, "", &mut fields);
    let tree = tree(&reference());
    let mut compared = 0;
    for (path, default) in fields
        .iter()
        .filter_map(|(path, default)| Some((path, default.as_ref()?)))
    {
        // The texts of a list are shown without quotes.
        let default = default.to_string().replace('"', "");
        let shown = text_at(&tree, path).unwrap_or_else(|| panic!("{path} has no value"));
        assert_eq!(shown, default, "{path}");
        compared += 1;
    }
    assert!(
        compared > 35,
        "only {compared} fields have a default in the schema"
    );
}

#[test]
fn the_defaults_shown_are_the_defaults_meant() {
    let text = std::fs::read_to_string(folder().join("fencepost.yaml")).expect("it is there");
    let (mut shown, _) = good(&text);
    let mut overrides = Overrides::default();
    overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
    let routes = "routes: [{ path: '/orders/{id}/{*rest}', name: orders, resource: 'order:{id}', \
                  methods: [POST, PUT, PATCH, DELETE] }, { path: /health, mode: bypass }]\n";
    let (meant, _) = parse(routes, &overrides).expect("it is good");
    for (shown, meant) in shown.routes.iter_mut().zip(&meant.routes) {
        assert_eq!(shown.token.bounds(), meant.token.bounds());
        shown.token = meant.token;
    }
    assert_eq!(format!("{:?}", shown.routes), format!("{:?}", meant.routes));
    shown.routes.clone_from(&meant.routes);
    assert_eq!(format!("{shown:?}"), format!("{meant:?}"));
}

#[test]
fn every_field_of_the_schema_is_described() {
    fn look(schema: &Value, path: &str) {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            for (name, field) in properties {
                let described = field.get("description").and_then(Value::as_str);
                assert!(
                    described.is_some_and(|text| text.len() > 10),
                    "{path}.{name}"
                );
            }
        }
    }
    let schema = schema_json();
    look(&schema, "");
    let parts = schema["$defs"].as_object().expect("the schema has parts");
    for (name, part) in parts {
        look(part, name);
    }
}

/// Follows a `$ref`.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => {
            let pointer = reference
                .strip_prefix('#')
                .expect("references stay in the schema");
            root.pointer(pointer).expect("references lead somewhere")
        }
        None => schema,
    }
}

fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    schema
        .get("anyOf")
        .or_else(|| schema.get("oneOf"))
        .and_then(Value::as_array)
}

/// Every field by its path, with its default.
fn fields_of(
    root: &Value,
    schema: &Value,
    path: &str,
    fields: &mut BTreeMap<String, Option<Value>>,
) {
    let schema = resolve(root, schema);
    for alternative in alternatives(schema).into_iter().flatten() {
        fields_of(root, alternative, path, fields);
    }
    if let Some(items) = schema.get("items") {
        fields_of(root, items, &format!("{path}[0]"), fields);
    }
    for (name, field) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let path = yaml::member(path, name);
        fields_of(root, field, &path, fields);
        fields.insert(path, field.get("default").cloned());
    }
}

fn paths_of(tree: &Value, path: &str, paths: &mut Vec<String>) {
    for (key, value) in tree.as_object().into_iter().flatten() {
        let path = yaml::member(path, key);
        paths_of(value, &path, paths);
        paths.push(path);
    }
    for (i, item) in tree.as_array().into_iter().flatten().enumerate() {
        paths_of(item, &format!("{path}[{i}]"), paths);
    }
}

fn node_at<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    let path = path.replace("[0]", "/0").replace('.', "/");
    tree.pointer(&format!("/{path}"))
}

fn text_at(tree: &Value, path: &str) -> Option<String> {
    match node_at(tree, path)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let texts: Option<Vec<_>> = items.iter().map(Value::as_str).collect();
            Some(format!("[{}]", texts?.join(",")))
        }
        _ => None,
    }
}

/// Checks as much of JSON Schema as the schema uses; scalars are texts that any type may read.
fn accepts(root: &Value, schema: &Value, node: &Value, path: &str) -> Result<(), String> {
    let schema = resolve(root, schema);
    if let Some(alternatives) = alternatives(schema) {
        let wrong: Vec<_> = alternatives
            .iter()
            .filter_map(|alternative| accepts(root, alternative, node, path).err())
            .collect();
        return if wrong.len() < alternatives.len() {
            Ok(())
        } else {
            Err(wrong.join(" or "))
        };
    }
    let is = |name: &str| match schema.get("type") {
        Some(Value::String(only)) => only == name,
        Some(Value::Array(types)) => types.iter().any(|one| one == name),
        _ => true,
    };
    match node {
        Value::Null if is("null") => Ok(()),
        Value::String(text) => {
            let typed = is("string")
                || is("integer") && text.parse::<i64>().is_ok()
                || is("boolean") && matches!(text.as_str(), "true" | "false");
            let listed = match schema.get("enum").and_then(Value::as_array) {
                Some(values) => values.iter().any(|value| same(value, text)),
                None => schema.get("const").is_none_or(|value| same(value, text)),
            };
            // Patterns are what durations and sizes have: a digit to begin with, or `none`.
            let shaped = schema.get("pattern").is_none()
                || text == "none"
                || text.starts_with(|c: char| c.is_ascii_digit());
            (typed && listed && shaped)
                .then_some(())
                .ok_or_else(|| format!("{path}: {text}"))
        }
        Value::Array(items) if is("array") => items.iter().enumerate().try_for_each(|(i, item)| {
            accepts(root, &schema["items"], item, &format!("{path}[{i}]"))
        }),
        Value::Object(members) if is("object") => {
            let required = schema.get("required").and_then(Value::as_array);
            for name in required.into_iter().flatten().filter_map(Value::as_str) {
                if !members.contains_key(name) {
                    return Err(format!("{path}: {name} is missing"));
                }
            }
            members.iter().try_for_each(|(key, value)| {
                match schema.get("properties").and_then(|all| all.get(key)) {
                    Some(field) => accepts(root, field, value, &format!("{path}.{key}")),
                    None if schema.get("additionalProperties") == Some(&Value::Bool(false)) => {
                        Err(format!("{path}: {key} is not known"))
                    }
                    None => Ok(()),
                }
            })
        }
        _ => Err(format!("{path}: another type is wanted")),
    }
}

fn same(value: &Value, text: &str) -> bool {
    value
        .as_str()
        .map_or_else(|| *value.to_string() == *text, |value| value == text)
}
