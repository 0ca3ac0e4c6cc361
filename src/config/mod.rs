//! The configuration: one YAML file, environment variables and flags. Everything is checked before
//! anything starts, and every problem is reported at once.
//!
//! [`yaml`] reads the text into the fields of [`Settings`], whose checks report what does not go
//! together. [`Loader`] goes the whole way at the start, and again at each reload.

mod address_range;
mod addresses;
mod admin;
mod admin_address;
mod barrier;
mod bearer_tokens;
mod claim;
mod client_pattern;
mod der;
mod document;
pub mod dsn;
mod file;
mod idempotency;
mod judging;
mod limits;
mod loader;
mod log_level;
mod pem;
mod reload;
mod route;
mod route_table;
mod schema;
mod settings;
mod source_files;
mod store;
mod summary;
#[cfg(test)]
mod tests;
mod tls_settings;
mod units;
mod upstream;
mod yaml;

pub use address_range::AddressRange;
pub use addresses::{HostPolicy, Listen, Secret, StoreTarget, UpstreamUrl};
pub use admin::{
    ADMIN_LISTEN, AccessLog, AdminListen, AdminSettings, LogFormat, LogSettings, TracingSettings,
};
pub use admin_address::AdminAddress;
pub use barrier::{BarrierSettings, ShutdownSettings};
pub use bearer_tokens::{BearerTokens, bearer};
pub use claim::ClaimSettings;
pub use client_pattern::ClientPattern;
pub use document::ConfigDocument;
pub use idempotency::{ClientKey, IdempotencyPart, IdempotencySettings, IdempotencyTemplate};
pub use judging::{Mode, Reuse, SafeMethods};
pub use limits::{BodySettings, ClientShare, LimitSettings};
pub use loader::{Loader, Overrides, parse};
pub use log_level::LogLevel;
pub use pem::TlsIdentity;
pub use route::RouteSettings;
pub use route_table::{Finding, RouteTable, TableChange};
pub use schema::schema;
pub use settings::{Settings, Unmatched};
pub use source_files::Sources;
pub use store::{Create, PostgresAddress, StoreSettings, StoreTls};
pub use summary::{advice, describe, summary};
pub use tls_settings::{ClientAuth, TlsSettings, UpstreamTlsSettings};
pub use units::{Count, OrNone, Positive, Share, Size, Span, Time};
pub use upstream::{UnknownStatuses, UpstreamSettings};
pub use yaml::{ConfigPlace, ConfigProblem, Problems, Severity, Warning};
