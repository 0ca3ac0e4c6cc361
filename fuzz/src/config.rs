//! The configuration: every problem has a place inside the file, and what is accepted has no field
//! that the schema does not know, says the same as JSON, and can be served.

use std::sync::OnceLock;

use fencepost::config::{ConfigPlace, Mode, Overrides, Problems, Settings, Warning, parse, schema};
use fencepost::routing::Router;
use serde_json::Value;

use crate::{Seen, Verdict, hold, target};

target!("config", &parse);

/// The function under test.
pub type Parse = dyn Fn(&str, &Overrides) -> Result<(Settings, Vec<Warning>), Problems>;

pub fn check_of(parse: &Parse, data: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(data) else {
        return Ok(Seen::Refused);
    };
    let mut flags = Overrides::default();
    flags.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
    let mut seen = Seen::Refused;
    for overrides in [&Overrides::default(), &flags] {
        match parse(text, overrides) {
            Err(problems) => {
                hold!(
                    !problems.errors_in_words().is_empty(),
                    "refused, and no error is told"
                );
                for problem in &problems.list {
                    told(problem, text)?;
                }
                let again = parse(text, overrides).map(|_| ());
                hold!(
                    again == Err(problems.clone()),
                    "{problems}\nand then something else"
                );
            }
            Ok((settings, warnings)) => {
                seen = Seen::Accepted;
                for warning in &warnings {
                    told(warning, text)?;
                }
                accepted(parse, text, overrides, &settings)?;
            }
        }
    }
    Ok(seen)
}

/// A problem says where it is and what; and no password.
fn told(problem: &Warning, text: &str) -> Result<(), String> {
    let shown = problem.render(None);
    hold!(
        !problem.message.trim().is_empty(),
        "a problem without a word: {problem:?}"
    );
    match &problem.place {
        ConfigPlace::Line(line) => {
            // YAML 1.2, 5.4: a CR alone ends a line too.
            let lines = text.replace("\r\n", "\n").split(['\r', '\n']).count() as u64;
            hold!(
                (1..=lines).contains(line),
                "a file of {lines} lines: {shown}"
            );
        }
        ConfigPlace::Named(name) => hold!(!name.is_empty(), "a flag without a name: {shown}"),
        ConfigPlace::Nowhere => hold!(
            !problem.path.is_empty(),
            "a problem without a place: {shown}"
        ),
    }
    // Where it stands only as the password of a URL, it is printed nowhere.
    let secret = "sesame";
    let hidden = text.matches(secret).count() == text.matches("://u:sesame@h").count();
    hold!(
        !hidden || !shown.contains(secret),
        "a password is told: {shown}"
    );
    Ok(())
}

/// The schema, which takes longer to make than a file to read.
static SCHEMA: OnceLock<Value> = OnceLock::new();

fn accepted(
    parse: &Parse,
    text: &str,
    overrides: &Overrides,
    settings: &Settings,
) -> Result<(), String> {
    let (_, conflicts) = Router::new(settings.routes.iter().map(|route| &route.path));
    hold!(
        conflicts.is_empty(),
        "routes that nobody can tell apart: {conflicts:?}"
    );
    for route in &settings.routes {
        hold!(
            route.mode == Mode::Bypass || route.key.is_some(),
            "{} fences, by no key",
            route.path
        );
    }
    hold!(
        matches!(settings.stale_status.0, 409 | 412),
        "{} for stale tokens",
        settings.stale_status.0
    );

    // Read by somebody else, it has the same fields, and each is known.
    // `off` and `n` are words.
    let options = serde_saphyr::options! { strict_booleans: true };
    let value: Value = match serde_saphyr::from_str_with_options(text, options) {
        Ok(value) => value,
        // Skips comments.
        Err(_) if settings_are_default(text) => return Ok(()),
        Err(error) => return Err(format!("accepted, and no YAML to another reader: {error}")),
    };
    let root = SCHEMA.get_or_init(|| schema().to_value());
    let mut unknown = Vec::new();
    walk(root, root, &value, "", &mut unknown);
    hold!(
        unknown.is_empty(),
        "accepted, and the schema does not know {unknown:?}"
    );

    // JSON is YAML: written so, it means the same. Numbers that JSON writes in another way are left
    // out.
    let mut plain = true;
    as_written(&value, text, &mut plain);
    if plain && value.is_object() {
        let json = value.to_string();
        let again = parse(&json, overrides);
        let same = again
            .as_ref()
            .is_ok_and(|(other, _)| format!("{other:?}") == format!("{settings:?}"));
        hold!(same, "it means something else as {json}: {:?}", again.err());
    }
    Ok(())
}

fn settings_are_default(text: &str) -> bool {
    text.split(['\n', '\r'])
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
}

/// Gathers the fields that the schema has nowhere.
fn walk(root: &Value, schema: &Value, value: &Value, path: &str, unknown: &mut Vec<String>) {
    let mut schemas = Vec::new();
    alternatives(root, schema, &mut schemas);
    match value {
        Value::Object(members) => {
            for (name, inner) in members {
                let path = format!("{path}.{name}");
                let found = schemas
                    .iter()
                    .find_map(|schema| schema.get("properties")?.get(name));
                match found {
                    Some(schema) => walk(root, schema, inner, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schemas.iter().find_map(|schema| schema.get("items")) else {
                unknown.push(format!("{path}[]"));
                return;
            };
            for item in items {
                walk(root, schema, item, &format!("{path}[]"), unknown);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A schema, what it refers to, and what it is made of.
fn alternatives<'a>(root: &'a Value, schema: &'a Value, all: &mut Vec<&'a Value>) {
    all.push(schema);
    if let Some(name) = schema.get("$ref").and_then(Value::as_str)
        && let Some(target) = root.pointer(name.trim_start_matches('#'))
    {
        alternatives(root, target, all);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for inner in schema
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            alternatives(root, inner, all);
        }
    }
}

/// Returns whether each number stands in the text as JSON writes it.
fn as_written(value: &Value, text: &str, plain: &mut bool) {
    match value {
        Value::Number(number) => {
            let number = number.to_string();
            *plain &= !number.contains(['.', 'e']) && text.contains(&number);
            // `007` has `7` in it.
            *plain &= !text.contains(&format!("0{number}")) && !text.contains('+');
        }
        Value::Array(items) => items.iter().for_each(|item| as_written(item, text, plain)),
        Value::Object(members) => members
            .values()
            .for_each(|item| as_written(item, text, plain)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
