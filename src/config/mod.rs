//! The configuration: one YAML file, environment variables and flags. Everything is checked before
//! anything starts, and every problem is reported at once.
//!
//! [`yaml`] reads the text into the fields of [`file`], whose checks make [`Settings`] of them. The
//! rest of the program sees only those. [`Loader`] goes the whole way at the start, and again at
//! each reload.

mod address_range;
mod addresses;
mod admin_address;
mod bearer_tokens;
mod client_pattern;
mod der;
mod document;
pub mod dsn;
mod file;
mod loader;
mod log_level;
mod pem;
mod reload;
mod route_table;
mod schema;
pub mod settings;
mod source_files;
mod summary;
#[cfg(test)]
mod tests;
mod tls_settings;
mod tracing_settings;
mod yaml;

pub use address_range::AddressRange;
pub use admin_address::AdminAddress;
pub use bearer_tokens::{BearerTokens, bearer};
pub use client_pattern::ClientPattern;
pub use document::ConfigDocument;
pub use loader::{Loader, Overrides, parse};
pub use log_level::LogLevel;
pub use pem::TlsIdentity;
pub use route_table::{Finding, RouteTable, TableChange};
pub use schema::schema;
pub use settings::*;
pub use source_files::Sources;
pub use summary::{advice, describe, summary};
pub use tls_settings::{ClientAuth, TlsSettings, UpstreamTlsSettings};
pub use tracing_settings::TracingSettings;
pub use yaml::{ConfigPlace, ConfigProblem, Problems, Severity, Warning};
