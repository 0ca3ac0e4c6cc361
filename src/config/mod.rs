//! The configuration: one YAML file, environment variables and flags. Everything is checked before
//! anything starts, and every problem is reported at once.
//!
//! [`yaml`] reads the text into the fields of [`Settings`], whose checks report what does not go
//! together. [`Loader`] goes the whole way at the start, and again at each reload.

mod addresses;
mod admin;
mod clients;
pub mod dsn;
mod judging;
mod limits;
mod lints;
mod loader;
mod route;
mod route_table;
mod settings;
mod store;
mod summary;
#[cfg(test)]
mod tests;
mod tls;
mod units;
mod upstream;
mod yaml;

pub use addresses::{HostPolicy, Listen, Secret, StoreTarget, UpstreamUrl, admin_block};
pub use admin::{
    ADMIN_LISTEN, AccessLog, AdminSettings, LogFormat, LogLevel, LogSettings, TracingSettings,
};
pub use clients::{AddressRange, BearerTokens, ClaimSettings, ClientPattern, bearer};
pub use judging::{
    ClientKey, FieldName, IdempotencySettings, KeyScope, LookUp, Mode, OutcomeSettings, Reuse,
    SafeMethods, UnknownOutcome, Unmatched,
};
pub use limits::{BarrierSettings, BodySettings, ClientShare, LimitSettings, ShutdownSettings};
pub use loader::{Loader, Overrides, parse};
pub use route::RouteSettings;
pub use route_table::{Finding, RouteTable, TableChange};
pub use settings::Settings;
pub use store::{Create, PostgresAddress, StoreSettings, StoreTls};
pub use summary::{advice, describe, schema};
pub use tls::{ClientAuth, TlsIdentity, TlsSettings, UpstreamTlsSettings, pem};
pub use units::{Count, Hidden, OrNone, Positive, Share, Size, Span, Time};
pub use upstream::{UnknownStatuses, UpstreamSettings};
pub use yaml::{ConfigPlace, ConfigProblem, Problems, Severity, Sources, Warning};
