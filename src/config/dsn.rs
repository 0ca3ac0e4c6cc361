//! [`Dsn`]: a Postgres URL: the hosts, the user, and how far the connection is trusted.
//!
//! libpq's URLs name several hosts (`postgres://h1:5432,h2/db`) and ask for the one that can be
//! written to; the driver knows neither, so the list is read here. A store of marks always needs
//! the server that is read-write.
//!
//! Only the URL counts. No environment variable (`PGSSLMODE`, `PGPASSWORD`) and no password file
//! can change where the marks are, or weaken the connection.
//!
//! No message contains a part of the URL: if a password is not percent-encoded, any part may belong
//! to it.
//!
//! The server decides which tokens are stale, and so does anything that answers in its place. So
//! across a network the server is verified, unless the URL says otherwise. An unverified server
//! gets a password only if the name of the `sslmode` says so.

use std::net::IpAddr;
use std::path::PathBuf;

use super::units::Hidden;
use crate::routing::decoded;

const HINT: &str = "write postgres://user:password@host:5432/database, and percent-encode what is \
                    not plain in a part: a space is %20, / is %2F, ? is %3F, # is %23, @ is %40";
const PARAMETERS: &str = "invalid URL: it has a parameter that is not supported\n\
                          the parameters are sslmode, sslrootcert and \
                          target_session_attrs=read-write; user, password, hosts and database stand \
                          in front of the ?, percent-encoded; a client certificate goes into \
                          store.tls";

/// The parameters of a connection, except for the files that are read when it is made.
#[derive(Clone, Debug)]
pub struct Dsn {
    /// In the order named; at least one.
    pub hosts: Vec<Host>,
    pub user: Option<String>,
    /// Never empty.
    pub password: Option<Hidden>,
    pub database: Option<String>,
    pub root: Option<Root>,
    /// The `sslmode`, and true if `insecure-` is in front of it.
    mode: Option<(Protection, bool)>,
}

/// A server: a name, an address without brackets, or (with a slash first) the directory of its
/// socket. Empty: this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub port: u16,
}

/// The CAs that a server's certificate is verified by (`sslrootcert`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    System,
    File(PathBuf),
}

impl Host {
    /// Reads `host`, `host:port`, `[IPv6]:port`, or nothing.
    fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = match text.rsplit_once(':') {
            // Within the brackets of an IPv6 address a colon does not set off a port.
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (text, ""),
        };
        let name = decode(host)?;
        let inner = name.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        Ok(Self {
            name: inner.unwrap_or(&name).to_owned(),
            port: match port {
                "" => 5432,
                digits => digits.parse().map_err(|_| bad("a port is not a number"))?,
            },
        })
    }

    /// Returns true for a Unix socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }

    /// Returns true if the connection stays on this machine. An address that the kernel only treats
    /// as loopback (`0.0.0.0`), and any other name than `localhost`, does not count.
    fn is_local(&self) -> bool {
        let name = self.name.as_str();
        let loopback = || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        name.is_empty() || self.is_socket() || name.eq_ignore_ascii_case("localhost") || loopback()
    }
}

impl Dsn {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (_, authority, rest) = split_url(url)
            .filter(|(scheme, ..)| matches!(*scheme, "postgres" | "postgresql"))
            .ok_or_else(|| bad("it does not start with postgres://"))?;
        if authority.is_empty() && rest.is_empty() {
            return Err(bad("it ends after its scheme"));
        }
        let wrong = |c: char| c.is_whitespace() || c.is_control() || c == '#';
        if url.contains(wrong) {
            return Err(bad("it has a space, a line break or a # in it"));
        }
        if rest.contains('@') {
            // Otherwise, if a password is not encoded, its end would be taken for a host, and a
            // name server would be asked for it.
            return Err(bad("it has an @ after its first / or ?"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        if !hosts.is_empty() && hosts.split(',').any(str::is_empty) {
            return Err(bad("a host of its list is empty"));
        }
        let hosts: Result<Vec<Host>, String> = hosts.split(',').map(Host::parse).collect();
        let mut dsn = Self {
            hosts: hosts?,
            user: given(decode(user)?),
            password: given(decode(password)?).map(Hidden),
            database: given(decode(path.strip_prefix('/').unwrap_or(path))?),
            root: None,
            mode: None,
        };
        dsn.read_query(query)?;
        Ok(dsn)
    }

    fn read_query(&mut self, query: &str) -> Result<(), String> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            match name.as_str() {
                "sslmode" => self.mode = Some(ssl_mode(&value)?),
                "sslrootcert" if value == "system" => self.root = Some(Root::System),
                "sslrootcert" => self.root = given(value).map(|file| Root::File(file.into())),
                // libpq's way to ask for the server that a store of marks always needs.
                "target_session_attrs" if value == "read-write" => {}
                // The name is not shown: it may be the end of a password with a raw & in it.
                _ => return Err(PARAMETERS.to_owned()),
            }
        }
        Ok(())
    }
}

/// Scheme and authority of a URL, and what is behind them.
pub(super) fn split_url(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    Some((scheme, authority, behind))
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn decode(text: &str) -> Result<String, String> {
    match decoded(text, b'+') {
        Some(text) if !text.contains('\0') => Ok(text),
        _ => Err(bad("it has an escape that is broken, or not of text")),
    }
}

fn bad(why: &str) -> String {
    format!("invalid URL: {why}\n{HINT}")
}

impl Dsn {
    /// The protection of the connection to each of the URL's hosts. `ca_named` is true if
    /// `store.tls.ca_file` names CAs beside the URL.
    pub fn protections(&self, ca_named: bool) -> Result<Vec<Protection>, String> {
        if ca_named && self.root.is_some() {
            let why = "sslrootcert is given, and store.tls.ca_file too\nkeep one of them";
            return Err(why.to_owned());
        }
        let of = |host: &Host| self.protection(host, ca_named);
        self.hosts.iter().map(of).collect()
    }

    fn protection(&self, host: &Host, ca_named: bool) -> Result<Protection, String> {
        if host.is_socket() {
            return Ok(Protection::Plain);
        }
        let rooted = ca_named || self.root.is_some();
        let file = ca_named || matches!(self.root, Some(Root::File(_)));
        let Some((protection, forced)) = self.mode else {
            // A CA that is named is used, on this machine too.
            return Ok(if host.is_local() && !rooted {
                Protection::IfOffered
            } else {
                Protection::VerifiedFull
            });
        };
        let (why, hint) = match protection {
            Protection::VerifiedFull => return Ok(protection),
            // libpq does the same.
            Protection::Encrypted if file && !forced => return Ok(Protection::VerifiedCa),
            Protection::VerifiedCa if file => return Ok(protection),
            Protection::VerifiedCa => (
                "sslmode=verify-ca without a CA of your own would take the certificate of any \
                 server that has one from any CA of the system's",
                "name the CA (sslrootcert=FILE or store.tls.ca_file), or write sslmode=verify-full",
            ),
            _ if rooted => (
                "a CA is named, and sslmode says that nothing is verified by it",
                "write sslmode=verify-full, or leave sslmode out",
            ),
            _ if self.password.is_some() && !forced && !host.is_local() => (
                "this sslmode does not verify the server: anyone who answers in its place would \
                 get the password",
                "write sslmode=verify-full, or leave sslmode out, and name the server's CA \
                 (sslrootcert=FILE or store.tls.ca_file). To hand the password to whatever \
                 answers, say so: sslmode=insecure-prefer, insecure-require or insecure-disable",
            ),
            _ => return Ok(protection),
        };
        Err(format!("{why}\n{hint}"))
    }

    /// Returns true if an attacker between here and a host can read and change the store's answers.
    #[must_use]
    pub fn is_open_to_others(&self, ca_named: bool) -> bool {
        let Ok(protections) = self.protections(ca_named) else {
            return false;
        };
        let mut ways = self.hosts.iter().zip(protections);
        ways.any(|(host, way)| !host.is_local() && !way.is_verified())
    }
}

const SSLMODE_HINT: &str =
    "verify-full (the default across a network), verify-ca, require, prefer, allow or disable";

/// The protection of the connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: a socket, this machine, or by request.
    Plain,
    /// Encrypted where the server offers it. Nothing is verified.
    IfOffered,
    /// Encrypted. Nothing is verified.
    Encrypted,
    /// Encrypted, and the certificate is from a CA that is named.
    VerifiedCa,
    /// Encrypted, the certificate is from a CA that is named or one of the system's, and it has the
    /// host's name.
    VerifiedFull,
}

impl Protection {
    /// Returns true if nobody else can answer in the server's place.
    #[must_use]
    pub fn is_verified(self) -> bool {
        matches!(self, Self::VerifiedCa | Self::VerifiedFull)
    }
}

/// Reads an `sslmode`.
fn ssl_mode(value: &str) -> Result<(Protection, bool), String> {
    let insecure = value.strip_prefix("insecure-");
    let forced = insecure.is_some();
    let protection = match insecure.unwrap_or(value) {
        "disable" => Protection::Plain,
        // libpq tries without encryption first, which a server rarely refuses.
        "allow" if !forced => Protection::Plain,
        "prefer" => Protection::IfOffered,
        "require" => Protection::Encrypted,
        "verify-ca" if !forced => Protection::VerifiedCa,
        "verify-full" if !forced => Protection::VerifiedFull,
        _ => return Err(format!("unknown sslmode\n{SSLMODE_HINT}")),
    };
    Ok((protection, forced))
}

#[cfg(test)]
mod tests;
