//! The version of this program, and the commit that it was built from.

/// As in `Cargo.toml`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first digits of the commit's hash; `unknown` in a debug build, or outside of its repository.
pub const COMMIT: &str = env!("FENCEPOST_BUILD_COMMIT");

/// Both, for people.
pub const VERSION_AND_COMMIT: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("FENCEPOST_BUILD_COMMIT"),
    ")"
);
