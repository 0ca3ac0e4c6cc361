//! Reads access logs line by line: the common and the combined format, and whatever else has the
//! line of the request in quotes; or JSON, with the field names of nginx, Envoy, Caddy, Traefik and
//! others.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, Read as _};

use anyhow::ensure;
use serde_json::Value;

use super::survey::Survey;
use crate::printable;

/// The most bytes of a line that are read.
const LINE: u64 = 64 << 10;

/// Names of JSON fields, without case and signs. The first one that a line has counts.
const METHOD: &str = "requestmethod httpmethod method verb";
const TARGET: &str = "requesturi requestpath requesturl target uri path url";
const STATUS: &str = "status statuscode responsecode downstreamstatus";
/// Fields with the line of a request, or with the line of another log.
const NESTED: &str = "request requestline log message msg";

const NO_REQUEST: &str = "lines without a request that can be read";

/// A method, a target and a status, as a line shows them.
type Logged = (String, String, Option<u16>);

/// Adds the requests of a log to the survey.
pub(super) fn read(mut log: impl BufRead, survey: &mut Survey) -> anyhow::Result<()> {
    ensure!(
        !log.fill_buf()?.starts_with(b"\x1f\x8b"),
        "it is compressed with gzip: zcat FILE | fencepost init --access-log - …"
    );
    let (mut line, mut number, mut start) = (Vec::new(), 0_u64, String::new());
    while log.by_ref().take(LINE).read_until(b'\n', &mut line)? > 0 {
        if line.last() != Some(&b'\n') {
            log.skip_until(b'\n')?;
        }
        number += 1;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_start_matches('\u{feff}').trim();
        if start.is_empty() {
            start = text.chars().take(60).collect();
        }
        let place = format_args!("line {number}");
        match logged(text) {
            None => survey.leave(NO_REQUEST, place),
            Some((method, target, status)) => survey.add(&method, &target, status, place),
        }
        line.clear();
    }
    ensure!(
        survey.requests > 0,
        "none of its {number} lines has a request. It begins with `{}`. Expected are lines like \
         `… \"PUT /orders/7 HTTP/1.1\" 200 …`, or JSON with a method and a path",
        printable::line(&start)
    );
    survey.merge_names();
    Ok(())
}

/// The request of a line, if there is one: `PUT /orders/7 HTTP/1.1`, alone or in quotes.
pub(super) fn logged(line: &str) -> Option<Logged> {
    if line.starts_with('{') {
        return logged_json(&serde_json::from_str(line).ok()?);
    }
    let mut pieces = line.split('"').peekable();
    while let Some(piece) = pieces.next() {
        let words: Vec<_> = piece.trim().split(' ').collect();
        if let [method, target, version] = words[..]
            && version.starts_with("HTTP/")
        {
            let status = pieces
                .peek()
                .and_then(|rest| rest.split_whitespace().next());
            let status = status.and_then(|status| status.parse().ok());
            return Some((method.to_owned(), target.to_owned(), status));
        }
    }
    None
}

fn logged_json(line: &Value) -> Option<Logged> {
    // Of two fields with one name, the outer one counts.
    let (mut fields, mut open) = (HashMap::new(), VecDeque::from([line]));
    while let Some(value) = open.pop_front() {
        for (name, value) in value.as_object().into_iter().flatten() {
            let letters = name.chars().filter(char::is_ascii_alphanumeric);
            let name: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
            match value {
                Value::String(text) => _ = fields.entry(name).or_insert_with(|| text.clone()),
                Value::Number(code) => _ = fields.entry(name).or_insert_with(|| code.to_string()),
                inner => open.push_back(inner),
            }
        }
    }
    let find = |names: &str| names.split(' ').find_map(|name| fields.get(name)).cloned();
    let status = find(STATUS).and_then(|status| status.parse().ok());
    if let (Some(method), Some(target)) = (find(METHOD), find(TARGET)) {
        return Some((method, target, status));
    }
    let (method, target, inner) = logged(&find(NESTED)?)?;
    Some((method, target, status.or(inner)))
}
