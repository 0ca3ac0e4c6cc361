//! The configuration: one YAML file, the environment and flags, all of it checked before anything
//! starts, and every problem told at once.
//!
//! `text` → [`tree`] (lines kept) → [`read`] into the [`file`]'s fields → [`validate`] into
//! [`Settings`], which is all that the rest of the program sees. [`Loader`] does the whole way, and
//! again at each reload.

mod address_range;
mod addresses;
mod admin;
mod admin_place;
mod bearer_tokens;
mod body;
mod checks;
mod claim;
mod describe;
pub mod dsn;
mod file;
mod idempotency;
mod limits;
mod load;
mod parts;
mod peer;
mod pem;
mod problems;
mod read;
mod reload;
mod route;
mod route_file;
mod routes;
mod schema;
pub mod settings;
mod sources;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod tls_settings;
mod token;
mod tree;
mod units;
mod upstream;
mod validate;

pub use address_range::AddressRange;
pub use admin_place::AdminPlace;
pub use bearer_tokens::BearerTokens;
pub use describe::{advice, describe, summary};
pub use load::{Loader, Overrides, parse};
pub use peer::PeerPattern;
pub use pem::TlsIdentity;
pub use problems::{ConfigPlace, ConfigProblem, Problems, Severity, Warning};
pub use schema::schema;
pub use settings::*;
pub use sources::Sources;
pub use table::{DocumentError, Finding, RouteTable, TableChange};
pub use tls_settings::{ClientAuth, ClientCertificates, TlsSettings, UpstreamTlsSettings};
