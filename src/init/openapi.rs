//! Reads the operations of an `OpenAPI` document (2.0 and 3, JSON or YAML).

use std::io::Read;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::survey::{Survey, path_of};
use crate::printable;

/// The most bytes of a document.
const DOCUMENT: u64 = 32 << 20;
/// A segment that stands for all values of a parameter: a name, in the eyes of the survey.
const PARAMETER: &str = "x-000";

const ELSEWHERE: &str = "paths that are described in another place (`$ref`)";
/// Also those below a server with a variable in its path.
const BESIDE: &str =
    "operations with text beside a parameter, or a variable in front: no route can separate them";

/// Adds the operations of a document to the survey.
pub(super) fn read(input: impl Read, survey: &mut Survey) -> anyhow::Result<()> {
    let mut text = String::new();
    input.take(DOCUMENT + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= DOCUMENT, "it is longer than 32 MiB");
    let document: Value = if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).context("it is not valid JSON")?
    } else {
        let budget = serde_saphyr::budget! { max_events: 10_000_000, max_nodes: 10_000_000 };
        let options = serde_saphyr::options! { budget: budget, with_snippet: false };
        serde_saphyr::from_str_with_options(&text, options).context("it is not valid YAML")?
    };
    ensure!(
        document
            .get("openapi")
            .or(document.get("swagger"))
            .is_some(),
        "it is not an OpenAPI document: it has neither `openapi` nor `swagger` at its top"
    );
    let server = document.pointer("/servers/0/url");
    let base = server.unwrap_or(&document["basePath"]);
    let base = base.as_str().unwrap_or_default();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        let place = printable::line(path);
        let segments = path.split('/').map(|segment| match segment.as_bytes() {
            [b'{', name @ .., b'}'] if !name.contains(&b'{') => PARAMETER,
            _ => segment,
        });
        let segments = segments.collect::<Vec<_>>().join("/");
        if item.get("$ref").is_some() {
            survey.leave(ELSEWHERE, &place);
            continue;
        }
        for method in ["delete", "get", "patch", "post", "put"] {
            if item.get(method).is_none() {
                continue;
            }
            let target = match path_of(base).trim_matches('/') {
                "" => segments.clone(),
                base => format!("/{base}{segments}"),
            };
            if target.contains('{') {
                survey.leave(BESIDE, &place);
            } else {
                survey.add(&method.to_ascii_uppercase(), &target, None, &place);
            }
        }
    }
    Ok(())
}
