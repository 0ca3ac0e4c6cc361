//! The configuration from text to settings.

mod loading;
mod problems;
mod samples;

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
