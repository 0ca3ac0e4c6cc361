//! The rules of fencing: tokens, resource keys, and the rules of URL syntax that keep two spellings
//! of one thing from having two keys. Pure; imports `std` only. An error is a text for whoever has
//! sent the request or written the configuration.
//!
//! - [`token`]: a number, the spellings it may have in a header, its comparison with the mark, and
//!   how far past the mark it is accepted.
//! - [`path`]: a request's path, decoded once, or refused as ambiguous.
//! - [`route`]: which route a path belongs to.
//! - [`template`]: how a route names a resource; [`key`] is the name, with the sources of its parts,
//!   [`normal`] has their forms, [`sample`] is the way back from a name to a request.
//! - [`names`]: methods, and fields that identify a client, which no key may use.

mod key;
mod names;
mod normal;
mod path;
mod route;
mod sample;
mod template;
mod token;

pub use key::{ResourceKey, Source, query_value};
pub use names::{DEFAULT_METHODS, NAMING_OTHERS, SAFE_METHODS, WITH_DESTINATION, names_a_peer};
pub use normal::percent_encoded;
pub(crate) use normal::{fold_case, is_address_or_localhost};
pub use path::{ANY_DESTINATION, Allow, Ambiguity, CheckedPath};
pub use route::{Pattern, RouteConflict, Router};
pub use template::{KeyForm, KeyTemplate};
pub use token::{Decision, Jump, Needs, Token, TokenBounds, TokenFormat, judge, stale_by};
