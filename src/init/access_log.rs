//! Reads access logs line by line: the common and the combined format, and whatever else has the
//! line of the request in quotes; or JSON, with the field names of nginx, Envoy, Caddy, Traefik and
//! others.

use std::collections::HashMap;
use std::io::{BufRead, Read as _};

use anyhow::ensure;
use serde_json::Value;

use super::survey::Survey;
use crate::printable;

/// The most bytes of a line that are read.
const LINE: u64 = 64 << 10;

/// Names of JSON fields, without case and signs. The outermost that a line has counts, and of these
/// the first.
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
    ensure!(number > 0, "it is empty");
    ensure!(
        survey.requests > 0,
        "none of its {number} lines has a request. It begins with `{}`. Expected are lines like \
         `… \"PUT /orders/7 HTTP/1.1\" 200 …`, or JSON with a method and a path",
        printable::line(&start)
    );
    survey.merge_names();
    Ok(())
}

/// The request of a line, if there is one: `PUT /orders/7 HTTP/1.1`, alone, or in quotes with a
/// status behind it.
pub(super) fn logged(line: &str) -> Option<Logged> {
    if line.starts_with('{') {
        return logged_json(&serde_json::from_str(line).ok()?);
    }
    let mut is_escaped = false;
    let pieces = line.split(|letter| {
        let is_end = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        is_end
    });
    let pieces: Vec<_> = pieces.collect();
    if let [alone] = pieces[..] {
        return request(alone, None);
    }
    let mut quoted = pieces.windows(2).skip(1).step_by(2);
    quoted.find_map(|piece| {
        let status = piece[1].split_whitespace().next()?.parse().ok()?;
        request(piece[0], Some(status))
    })
}

fn request(text: &str, status: Option<u16>) -> Option<Logged> {
    let words: Vec<_> = text.trim().split(' ').collect();
    match words[..] {
        [method, target, version] if version.starts_with("HTTP/") => {
            Some((method.to_owned(), target.to_owned(), status))
        }
        _ => None,
    }
}

fn logged_json(line: &Value) -> Option<Logged> {
    let (mut levels, mut open) = (Vec::new(), vec![line]);
    while !open.is_empty() {
        let (mut fields, mut inner) = (HashMap::new(), Vec::new());
        for (name, value) in open.into_iter().filter_map(Value::as_object).flatten() {
            let letters = name.chars().filter(char::is_ascii_alphanumeric);
            let name: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
            match value {
                Value::String(text) => _ = fields.entry(name).or_insert_with(|| text.clone()),
                Value::Number(code) => _ = fields.entry(name).or_insert_with(|| code.to_string()),
                deeper => inner.push(deeper),
            }
        }
        levels.push(fields);
        open = inner;
    }
    let find = |names: &'static str| {
        let levels = levels.iter();
        levels.flat_map(move |fields| names.split(' ').filter_map(|name| fields.get(name)))
    };
    let status = find(STATUS).find_map(|status| status.parse().ok());
    if let (Some(method), Some(target)) = (find(METHOD).next(), find(TARGET).next()) {
        return Some((method.clone(), target.clone(), status));
    }
    let (method, target, inner) = find(NESTED).find_map(|line| logged(line))?;
    Some((method, target, status.or(inner)))
}
