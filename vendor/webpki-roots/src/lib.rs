//! Mozilla's root certificates, left out.
//!
//! The database driver (`sqlx-core`) adds these to the roots that it is given. A certificate of any public CA
//! would then pass `sslmode=verify-ca`, whatever name is on it, beside those of the CA that was named. The
//! driver has no switch for it. With this crate in place of the real one, it trusts what it is given alone.
//! Nothing else of the program uses the crate; `marks::postgres::options` fails to compile with the real one.
#![no_std]

use pki_types::TrustAnchor;

/// None.
pub const TLS_SERVER_ROOTS: &[TrustAnchor<'static>] = &[];
