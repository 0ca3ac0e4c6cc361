//! What is fenced, and by which number: tokens, resource keys, and the rules of URL syntax that
//! keep two spellings of one thing from having two keys. Pure; imports `std` only.
//!
//! SIGNATURES (the contract between helpers; bodies to be written):
//!
//! token.rs
//!   #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)] pub struct Token(i64), 0..=i64::MAX
//!     pub const MAX; pub const fn new(i64) -> Option<Self>; pub const fn get(self) -> i64; Display = canonical decimal
//!     pub fn gap_to(self, mark: Token) -> u64 (mark - self, saturating)
//!   #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)] pub enum TokenFormat { #[default] Decimal, Hex, AfterHash, PrefixHex16 }
//!     pub fn parse(self, raw: &[u8]) -> Result<Token, TokenError>     // raw header value, OWS (SP/HTAB only) around it allowed
//!   pub struct/enum TokenError: Display + std::error::Error, says what was wrong and what is expected
//!
//! path.rs
//!   #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)] pub struct Allow { semicolon, empty_segments, dot_segments, encoded_slash, backslash, ... : bool }
//!     pub const NAMES: &[&str]; pub fn set(&mut self, name: &str) -> bool (false: unknown name)
//!   pub struct CheckedPath { decoded segments, trailing slash, which oddities occurred }   // decoded exactly once
//!     pub fn parse(raw_path: &str) -> Result<CheckedPath, Ambiguity>   // hard errors always refused; soft oddities recorded
//!     pub fn oddity_not_in(&self, allow: Allow) -> Option<Ambiguity>
//!     pub fn segments(&self) -> &[String]
//!   pub enum/struct Ambiguity: Display (what, where in the path, what to do)
//!
//! route.rs
//!   #[derive(Clone, Debug)] pub struct Pattern: pub fn parse(&str) -> Result<Pattern, PatternError>; pub fn names(&self) -> impl Iterator<Item=&str>;
//!     as_str(); literal segments, `{name}` whole-segment captures, final `{*rest}` (zero or more segments)
//!   pub struct Router: pub fn new(patterns: Vec<Pattern>) -> Result<Router, Vec<RouteConflict>>   // RouteConflict { first: usize, second: usize, example path } Display
//!     pub fn find(&self, path: &CheckedPath) -> Option<(usize, Captures)>   // most specific wins
//!   pub struct Captures: pub fn get(&self, name: &str) -> Option<&str> (decoded text; `{*rest}` is handled as a list of segments internally)
//!
//! key.rs
//!   #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)] pub struct ResourceKey(Arc<str>): new(text) -> Result<_, KeyError> (1..=1024 bytes, no control characters (incl. NUL)); as_str; Display; Debug
//!   #[derive(Clone, Debug)] pub struct KeyTemplate: pub fn parse(template: &str, pattern: &Pattern) -> Result<KeyTemplate, TemplateError>; as_str()
//!     pub fn uses_json(&self) -> bool; pub fn parts(&self) -> impl Iterator<Item=&Source>
//!     pub fn render(&self, captures: &Captures, path: &CheckedPath, lookup: &mut dyn FnMut(&Source) -> Result<Option<String>, String>) -> Result<ResourceKey, KeyError>
//!     pub fn could_yield(&self, key: &str) -> bool
//!   pub enum Source { Path(String) /* {name}, {*rest} */, WholePath, Host, Header(String lower-case), Query(String), Json(Vec<String> member path) }
//!   pub fn query_value(raw_query: &str, name: &str) -> Result<Option<String>, String>  // percent-decoding, `+` is a space; given twice is an error; broken escapes are an error
//!
//! decision.rs
//!   pub enum Decision { Advanced, Current, Stale { mark: Token } }
//!   pub fn judge(mark: Option<Token>, token: Token) -> Decision   // absent or lower: Advanced; equal: Current; higher: Stale

pub mod decision;
pub mod key;
pub mod path;
pub mod route;
pub mod token;

pub use decision::{Decision, judge};
pub use key::{KeyError, KeyTemplate, ResourceKey, Source, TemplateError, query_value};
pub use path::{Allow, Ambiguity, CheckedPath};
pub use route::{Captures, Pattern, PatternError, RouteConflict, Router};
pub use token::{Token, TokenError, TokenFormat};
