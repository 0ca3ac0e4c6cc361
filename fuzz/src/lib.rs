//! The promises that fencepost's parsers must keep for any bytes at all.
//!
//! Each target is a function from bytes to a [`Verdict`]: whether the parser took them, or which
//! promise it broke. A target asks more than that nothing panics: it reads the same bytes by other
//! means (a second parser, written for its plainness; models of the servers that may stand behind
//! the proxy), spells them in other ways, and compares.
//!
//! The same functions run in two ways: under cargo-fuzz (`fuzz_targets/`, nightly, for as long as
//! one likes), and over the corpus and mutations of it in a test (`tests/corpus.rs`, stable, for
//! seconds). `docs/internals/fuzzing.md` says how. Each takes the function under test as an
//! argument, so that `tests/mutants` can hand it a broken one and see that it notices.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    reason = "a panic is a finding like any other"
)]

pub mod chunked;
pub mod config;
pub mod corpus;
pub mod headers;
pub mod json;
pub mod key;
pub mod message;
pub mod mutate;
pub mod path;
pub mod query;
pub mod request;
pub mod resource;
pub mod response;
pub mod route;
pub mod spell;
pub mod stream;
pub mod token;

/// The fate of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The parser took it, and everything promised of what it takes holds.
    Accepted,
    /// The parser refused it, rightly as far as can be told.
    Refused,
}

/// The fate of an input; or which promise is broken, in words.
pub type Verdict = Result<Seen, String>;

/// A target by its name, which is that of its binary and of its corpus.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub check: fn(&[u8]) -> Verdict,
    /// The words that a mutator inserts, in libFuzzer's form: see [`mutate::words`].
    pub dictionary: &'static str,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    token::TARGET,
    path::TARGET,
    route::TARGET,
    query::TARGET,
    key::TARGET,
    resource::TARGET,
    json::TARGET,
    headers::TARGET,
    config::TARGET,
    request::TARGET,
    response::TARGET,
    chunked::TARGET,
    stream::TARGET,
];

/// For the binaries of cargo-fuzz: panics if a promise is broken.
pub fn demand(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("there is no target {name}"));
    if let Err(broken) = (target.check)(data) {
        panic!("{name}: {broken}");
    }
}

/// Ends a check with a broken promise where the condition does not hold.
macro_rules! hold {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err(format!($($words)+));
        }
    };
}
pub(crate) use hold;

/// The target of a module: its `check_of`, over the function that is the proxy's own.
macro_rules! target {
    ($name:literal, $real:expr) => {
        pub const TARGET: $crate::Target = $crate::Target {
            name: $name,
            check: |data| check_of($real, data),
            dictionary: include_str!(concat!("../dictionaries/", $name, ".dict")),
        };
    };
}
pub(crate) use target;
