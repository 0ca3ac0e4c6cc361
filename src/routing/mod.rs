//! The rules of fencing: tokens, resource keys, and the rules of URL syntax that keep two spellings
//! of one thing from having two keys. Pure; imports `std` only.
//!
//! - [`token`]: a number, and the spellings it may have in a header.
//! - [`decision`]: that number against the mark.
//! - [`bounds`]: how far past the mark a number is accepted.
//! - [`identity`]: fields that identify a client, which no key may use.
//! - [`path`]: a request's path, decoded once, or refused as ambiguous.
//! - [`route`]: which route a path belongs to.
//! - [`template`]: how a route names a resource; [`key`] is the name, [`query`] one source of its
//!   parts, [`sample`] the way back from a name to a request.
//! - [`method`]: groups of methods.

pub mod bounds;
pub mod decision;
mod escape;
pub mod identity;
pub mod key;
pub mod method;
mod normal;
pub mod path;
pub mod query;
pub mod route;
pub mod sample;
pub mod template;
pub mod token;

pub use bounds::{Jump, Needs, TokenBounds};
pub use decision::{Decision, judge, stale_by};
pub use escape::percent_encoded;
pub use identity::names_a_peer;
pub use key::{KeyError, ResourceKey, Source};
pub(crate) use normal::{fold_case, is_address_or_localhost};
pub use path::{ANY_DESTINATION, Allow, Ambiguity, CheckedPath};
pub use query::query_value;
pub use route::{Captures, Pattern, PatternError, RouteConflict, Router};
pub use sample::Sample;
pub use template::{KeyTemplate, Origin, Skeleton, TemplateError};
pub use token::{Token, TokenError, TokenFormat};
