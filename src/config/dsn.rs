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

use sqlx::postgres::PgSslMode;

use super::units::Hidden;
use crate::routing::decoded;

const HINT: &str = "write postgres://user:password@host:5432/database, and percent-encode what is \
                    not plain in a part: a space is %20, / is %2F, ? is %3F, # is %23, @ is %40";
const PARAMETERS: &str = "invalid URL: it has a parameter that is not supported\n\
                          the parameters are sslmode, sslrootcert and \
                          target_session_attrs=read-write; user, password, hosts and database stand \
                          in front of the ?, percent-encoded; a client certificate goes into \
                          store.tls";
const SSLMODE_HINT: &str =
    "verify-full (the default across a network), verify-ca, require, prefer or disable";
const ANY_CA: &str = "sslmode=verify-ca without a CA of your own would take the certificate of any \
                      server that has one from any CA of the system's\n\
                      name the CA (sslrootcert=FILE or store.tls.ca_file), or write \
                      sslmode=verify-full";
const UNUSED_CA: &str = "a CA is named, and sslmode says that nothing is verified by it\n\
                         write sslmode=verify-full, or leave sslmode out";
const UNVERIFIED: &str = "this sslmode does not verify the server: anyone who answers in its place \
                          would get the password\n\
                          write sslmode=verify-full, or leave sslmode out, and name the server's CA \
                          (sslrootcert=FILE or store.tls.ca_file). To hand the password to whatever \
                          answers, say so: sslmode=insecure-prefer, insecure-require or \
                          insecure-disable";

/// The parameters of a connection, except for the files that are read when it is made.
#[derive(Clone, Debug)]
pub struct Dsn {
    /// In the order named; at least one.
    pub hosts: Vec<Host>,
    pub user: Option<String>,
    /// Never empty.
    pub password: Option<Hidden>,
    pub database: Option<String>,
    /// `sslrootcert`: the file of the CAs that a server's certificate is verified by, or `system`.
    pub root: Option<String>,
}

/// A server: a name, an address without brackets, or (with a slash first) the directory of its
/// socket. Empty: this machine.
#[derive(Clone, Debug)]
pub struct Host {
    pub name: String,
    pub port: u16,
    /// The protection of the connection. `Prefer` and `Require` verify nothing.
    pub mode: PgSslMode,
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
            mode: PgSslMode::VerifyFull,
        })
    }

    /// Returns true for a Unix socket.
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

    /// Returns true if nobody else can answer in the server's place.
    pub fn is_verified(&self) -> bool {
        matches!(self.mode, PgSslMode::VerifyCa | PgSslMode::VerifyFull)
    }
}

impl Dsn {
    /// Reads a URL. `ca_named` is true if `store.tls.ca_file` names CAs beside it.
    pub fn parse(url: &str, ca_named: bool) -> Result<Self, String> {
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
        };
        let mode = dsn.read_query(query)?;
        dsn.protect(mode, ca_named)?;
        Ok(dsn)
    }

    /// Returns the `sslmode`, and true if `insecure-` is in front of it.
    fn read_query(&mut self, query: &str) -> Result<Option<(PgSslMode, bool)>, String> {
        let mut mode = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            match name.as_str() {
                "sslmode" => mode = Some(ssl_mode(&value)?),
                "sslrootcert" => self.root = given(value),
                // libpq's way to ask for the server that a store of marks always needs.
                "target_session_attrs" if value == "read-write" => {}
                // The name is not shown: it may be the end of a password with a raw & in it.
                _ => return Err(PARAMETERS.to_owned()),
            }
        }
        Ok(mode)
    }

    /// Decides the protection of each connection.
    fn protect(&mut self, mode: Option<(PgSslMode, bool)>, ca_named: bool) -> Result<(), String> {
        if ca_named && self.root.is_some() {
            let why = "sslrootcert is given, and store.tls.ca_file too\nkeep one of them";
            return Err(why.to_owned());
        }
        let rooted = ca_named || self.root.is_some();
        let file = rooted && self.root.as_deref() != Some("system");
        for host in &mut self.hosts {
            let is_local = host.is_local();
            let chosen = match mode {
                _ if host.is_socket() => Ok(PgSslMode::Disable),
                // A CA that is named is used, on this machine too.
                None if is_local && !rooted => Ok(PgSslMode::Prefer),
                None | Some((PgSslMode::VerifyFull, _)) => Ok(PgSslMode::VerifyFull),
                // libpq does the same with `require`.
                Some((PgSslMode::VerifyCa, _) | (PgSslMode::Require, false)) if file => {
                    Ok(PgSslMode::VerifyCa)
                }
                Some((PgSslMode::VerifyCa, _)) => Err(ANY_CA),
                _ if rooted => Err(UNUSED_CA),
                Some((_, false)) if self.password.is_some() && !is_local => Err(UNVERIFIED),
                Some((mode, _)) => Ok(mode),
            };
            host.mode = chosen.map_err(str::to_owned)?;
        }
        Ok(())
    }

    /// Returns true if an attacker between here and a host can read and change the store's answers.
    pub fn is_open_to_others(&self) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.any(|host| !host.is_local() && !host.is_verified())
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

/// Reads an `sslmode`.
fn ssl_mode(value: &str) -> Result<(PgSslMode, bool), String> {
    let insecure = value.strip_prefix("insecure-");
    let forced = insecure.is_some();
    let mode = match insecure.unwrap_or(value) {
        "disable" => PgSslMode::Disable,
        "prefer" => PgSslMode::Prefer,
        "require" => PgSslMode::Require,
        "verify-ca" if !forced => PgSslMode::VerifyCa,
        "verify-full" if !forced => PgSslMode::VerifyFull,
        _ => return Err(format!("unknown sslmode\n{SSLMODE_HINT}")),
    };
    Ok((mode, forced))
}

#[cfg(test)]
mod tests;
