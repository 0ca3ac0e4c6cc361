//! The configuration from text to settings.

mod clients;
mod errors;
mod loading;
mod reload;
mod reporting;
mod routes;
mod samples;
mod warnings;
mod wrong_inputs;

use super::{ConfigProblem, Overrides, Problems, Settings, parse};

/// Parses text that has no errors.
fn good(text: &str) -> (Settings, Vec<ConfigProblem>) {
    parse(text, &Overrides::default()).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

/// Parses text that has errors.
fn bad(text: &str) -> Problems {
    match parse(text, &Overrides::default()) {
        Ok(_) => panic!("this has an error:\n{text}"),
        Err(problems) => problems,
    }
}

/// A file in which everything is right.
const BASE: &str = "upstream: { url: http://a:3000 }\n";

/// Reads a table with a case on each line: fields, a part of the message, and the path where it is
/// not that of the last field. Returns the fields as YAML, the path, and the part.
fn cases(table: &'static str) -> Vec<(String, String, &'static str)> {
    let lines = table.lines().filter(|line| !line.is_empty());
    let case = |line: &'static str| {
        let mut columns = line.split(" | ");
        let (Some(fields), Some(part)) = (columns.next(), columns.next()) else {
            panic!("{line}: fields and a part of the message")
        };
        let (_, last) = fields.rsplit_once("; ").unwrap_or(("", fields));
        let (own, _) = last.split_once(": ").expect("a field and its value");
        let own = own.replacen("route.", "routes[0].", 1);
        let path = columns.next().map_or(own, str::to_owned);
        (written(fields), path, part)
    };
    lines.map(case).collect()
}

/// `a.b: 1; a.c: 2` as YAML, each field on its line. `route` is a route at `/a`.
fn written(fields: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for field in fields.split("; ") {
        let (path, value) = field.split_once(": ").expect("a field and its value");
        let steps: Vec<&str> = path.split('.').collect();
        let blocks = &steps[..steps.len() - 1];
        let same = blocks.iter().zip(&open).take_while(|(a, b)| a == b).count();
        for (depth, block) in blocks.iter().enumerate().skip(same) {
            lines.push(match *block {
                "route" => "routes:\n- path: /a\n  resource: a".to_owned(),
                block => format!("{}{block}:", "  ".repeat(depth)),
            });
        }
        let (indent, name) = ("  ".repeat(blocks.len()), steps[blocks.len()]);
        lines.push(format!("{indent}{name}: {value}"));
        open = blocks.to_vec();
    }
    lines.join("\n")
}
