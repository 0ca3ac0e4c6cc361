//! Reads access logs line by line: the common and the combined format, and whatever else has the
//! line of the request in quotes; or JSON.

use std::io::{BufRead, Read as _};

use anyhow::ensure;
use serde_json::Value;

use super::survey::Survey;
use crate::printable;

/// The most bytes of a line that are read.
const LINE: u64 = 64 << 10;

/// Places in a JSON line: those of nginx, Envoy, Caddy, Traefik, API gateways and the Elastic Common
/// Schema. The first that a line has counts.
const METHOD: &str =
    "/request_method /method /request/method /RequestMethod /httpMethod /http/request/method";
const TARGET: &str =
    "/request_uri /path /request/uri /RequestPath /uri /url /url/original /url/path";
const STATUS: &str = "/status /response_code /DownstreamStatus /http/response/status_code";
/// Places of the line of a request, or of the line of another log.
const NESTED: &str = "/request /log /message /msg";

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
    let find = |places: &str| {
        let mut values = places.split(' ').filter_map(|place| line.pointer(place));
        values.find_map(|value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(code) => Some(code.to_string()),
            _ => None,
        })
    };
    let status = find(STATUS).and_then(|status| status.parse().ok());
    if let (Some(method), Some(target)) = (find(METHOD), find(TARGET)) {
        return Some((method, target, status));
    }
    let (method, target, inner) = logged(&find(NESTED)?)?;
    Some((method, target, status.or(inner)))
}
