//! Trust in the connection to a server: `sslmode`, and what it means for a password.
//!
//! The server decides which tokens are stale, and so does anything that answers in its place. So
//! across a network the server is verified, unless the URL says otherwise. An unverified server
//! gets a password only if the name of the `sslmode` says so.

use super::ssl_mode::{Protection, SslMode};
use super::{Dsn, Host, Root};
use crate::config::yaml::Wrong;

impl Dsn {
    /// The protection of the connection to each of the URL's hosts. `ca_named` is true if
    /// `store.tls.ca_file` names CAs beside the URL.
    pub fn protections(&self, ca_named: bool) -> Result<Vec<Protection>, Wrong> {
        if ca_named && self.root.is_some() {
            return Err((
                "sslrootcert is given, and store.tls.ca_file too".to_owned(),
                "keep one of them",
            ));
        }
        let of = |host: &Host| self.protection(host, ca_named);
        self.hosts.iter().map(of).collect()
    }

    fn protection(&self, host: &Host, ca_named: bool) -> Result<Protection, Wrong> {
        if host.is_socket() {
            return Ok(Protection::Plain);
        }
        let rooted = ca_named || self.root.is_some();
        let file = ca_named || matches!(self.root, Some(Root::File(_)));
        let Some(SslMode { protection, forced }) = self.mode else {
            // A CA that is named is used, on this machine too.
            return Ok(if host.is_local() && !rooted {
                Protection::IfOffered
            } else {
                Protection::VerifiedFull
            });
        };
        match protection {
            Protection::VerifiedFull => return Ok(protection),
            // libpq does the same.
            Protection::Encrypted if file && !forced => return Ok(Protection::VerifiedCa),
            Protection::VerifiedCa if file => return Ok(protection),
            Protection::VerifiedCa => {
                return Err((
                    "sslmode=verify-ca without a CA of your own would take the certificate of any \
                     server that has one from any CA of the system's"
                        .to_owned(),
                    "name the CA (sslrootcert=FILE or store.tls.ca_file), or write \
                     sslmode=verify-full",
                ));
            }
            _ if rooted => {
                return Err((
                    "a CA is named, and sslmode says that nothing is verified by it".to_owned(),
                    "write sslmode=verify-full, or leave sslmode out",
                ));
            }
            _ => {}
        }
        if self.password.is_some() && !forced && !host.is_local() {
            return Err((
                "this sslmode does not verify the server: anyone who answers in its place would \
                 get the password"
                    .to_owned(),
                "write sslmode=verify-full, or leave sslmode out, and name the server's CA \
                 (sslrootcert=FILE or store.tls.ca_file). To hand the password to whatever \
                 answers, say so: sslmode=insecure-prefer, insecure-require or insecure-disable",
            ));
        }
        Ok(protection)
    }

    /// Returns true if an attacker between here and a host can read and change the store's answers.
    #[must_use]
    pub fn is_open_to_others(&self, ca_named: bool) -> bool {
        let Ok(protections) = self.protections(ca_named) else {
            return false;
        };
        let mut ways = self.hosts.iter().zip(protections);
        ways.any(|(host, protection)| {
            !host.is_local()
                && !matches!(
                    protection,
                    Protection::VerifiedCa | Protection::VerifiedFull
                )
        })
    }
}
