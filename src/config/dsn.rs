//! [`Dsn`]: a Postgres URL: the hosts, the user, and how far the connection is trusted.
//!
//! libpq's URLs name several hosts (`postgres://h1:5432,h2/db`) and ask for the one that can be
//! written to; the driver knows neither, so the list is read here. A store of marks always needs
//! the server that is read-write, even if the URL asks for another one.
//!
//! Only the URL counts. No environment variable (`PGSSLMODE`, `PGPASSWORD`) and no password file
//! can change where the marks are, or weaken the connection.
//!
//! No message contains a part of the URL: if a password is not percent-encoded, any part may belong
//! to it.

mod protection;
mod ssl_mode;

use std::net::IpAddr;
use std::path::PathBuf;

pub use self::ssl_mode::Protection;
use self::ssl_mode::SslMode;
use super::yaml::Wrong;

/// libpq's parameters that change nothing about which server is meant or how well the way to it is
/// protected.
const IGNORED: [&str; 11] = [
    "application_name",
    "client_encoding",
    "connect_timeout",
    "fallback_application_name",
    "gssencmode",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "tcp_user_timeout",
];

/// libpq's other parameters, which may be named in a message.
const UNSUPPORTED: [&str; 17] = [
    "channel_binding",
    "gsslib",
    "krbsrvname",
    "max_protocol_version",
    "min_protocol_version",
    "passfile",
    "replication",
    "require_auth",
    "requirepeer",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcertmode",
    "sslcrl",
    "sslcrldir",
    "sslnegotiation",
    "sslpassword",
];

const HINT: &str = "write postgres://user:password@host:5432/database";
const ENCODE: &str = "percent-encode what is not plain in a user, password or name: a space is \
                      %20, / is %2F, ? is %3F, # is %23, @ is %40";
/// The parameters of a connection, except for the files that are read when it is made.
#[derive(Clone)]
pub struct Dsn {
    /// In the order named; at least one.
    pub hosts: Vec<Host>,
    pub user: Option<String>,
    /// Never empty.
    pub password: Option<String>,
    pub database: Option<String>,
    /// Settings of the session.
    pub options: Vec<(String, String)>,
    /// The IP addresses that replace all hosts (`hostaddr`), as they are written.
    pub moved_to: Option<String>,
    pub root: Option<Root>,
    /// The certificate that is shown, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub statement_cache: Option<usize>,
    mode: Option<SslMode>,
}

/// Without the password.
impl std::fmt::Debug for Dsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dsn")
            .field("hosts", &self.hosts)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
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
    pub fn parse(url: &str) -> Result<Self, Wrong> {
        let rest = ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme))
            .ok_or_else(|| bad("it does not start with postgres://"))?;
        if rest.is_empty() {
            return Err(bad("it ends after its scheme"));
        }
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(unclear("it has a space or a line break in it"));
        }
        if rest.contains('#') {
            return Err(unclear("it has a # in it"));
        }
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if rest.contains('@') {
            // Otherwise, if a password is not encoded, its end would be taken for a host, and a
            // name server would be asked for it.
            return Err(unclear("it has an @ after its first / or ?"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let mut dsn = Self {
            hosts: Vec::new(),
            user: given(decode(user)?),
            password: given(decode(password)?),
            database: given(decode(path.strip_prefix('/').unwrap_or(path))?),
            options: Vec::new(),
            moved_to: None,
            root: None,
            identity: None,
            statement_cache: None,
            mode: None,
        };
        let hosts = hosts.split(',').filter(|host| !host.is_empty());
        let mut places = hosts.map(place).collect::<Result<Vec<_>, _>>()?;
        dsn.read_query(query, &mut places)?;
        if places.is_empty() {
            places.push((String::new(), None));
        }
        let host = |(name, port): HostAndPort| Host {
            name,
            port: port.unwrap_or(5432),
        };
        dsn.hosts = places.into_iter().map(host).collect();
        Ok(dsn)
    }

    fn read_query(&mut self, query: &str, places: &mut Vec<HostAndPort>) -> Result<(), Wrong> {
        let (mut hosts, mut addresses, mut ports) = (None, None, None);
        let (mut cert, mut key) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            match name.as_str() {
                "host" => hosts = given(value),
                "hostaddr" => addresses = given(value),
                "port" => ports = given(value),
                "user" => self.user = given(value),
                "password" => self.password = given(value),
                "dbname" => self.database = given(value),
                "sslmode" | "ssl-mode" => self.mode = Some(SslMode::parse(&value)?),
                "sslrootcert" | "ssl-root-cert" | "ssl-ca" => {
                    self.root = given(value).map(|value| match value.as_str() {
                        "system" => Root::System,
                        _ => Root::File(value.into()),
                    });
                }
                "sslcert" | "ssl-cert" => cert = given(value),
                "sslkey" | "ssl-key" => key = given(value),
                "options" => self.options.extend(options(&value)?),
                "statement-cache-capacity" => {
                    let capacity = value.parse();
                    self.statement_cache = Some(
                        capacity.map_err(|_| bad("a statement-cache-capacity is not a number"))?,
                    );
                }
                "target_session_attrs" => {
                    let writable = ["any", "read-write", "primary", "prefer-primary"];
                    if !writable.contains(&value.as_str()) {
                        return Err(bad(
                            "target_session_attrs asks for a server that cannot be written to",
                        ));
                    }
                }
                name if IGNORED.contains(&name) => {}
                name => match name
                    .strip_prefix("options[")
                    .and_then(|n| n.strip_suffix(']'))
                {
                    Some(setting) => self.options.push((setting.to_owned(), value)),
                    None => return Err(unsupported(name)),
                },
            }
        }
        self.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            _ => return Err(bad("only one of sslcert and sslkey is given")),
        };
        if let Some(addresses) = &addresses
            && addresses
                .split(',')
                .any(|one| one.parse::<IpAddr>().is_err())
        {
            return Err(bad("a hostaddr is not an IP address"));
        }
        self.moved_to.clone_from(&addresses);
        // The driver verifies the host that it connects to. If there is an address, the certificate
        // must have it.
        relocate(places, addresses.or(hosts).as_deref(), ports.as_deref())
    }
}

/// A host and a port.
type HostAndPort = (String, Option<u16>);

fn place(text: &str) -> Result<HostAndPort, Wrong> {
    let (host, port) = match text.rsplit_once(':') {
        // Within the brackets of an IPv6 address a colon does not set off a port.
        Some((_, port)) if port.contains(']') => (text, None),
        Some((host, "")) => (host, None),
        Some((host, digits)) => (host, Some(port(digits)?)),
        None => (text, None),
    };
    Ok((unbracketed(&decode(host)?), port))
}

fn port(digits: &str) -> Result<u16, Wrong> {
    digits.parse().map_err(|_| bad("a port is not a number"))
}

fn unbracketed(host: &str) -> String {
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    inner.unwrap_or(host).to_owned()
}

/// Puts the hosts and ports of the query in place of those of the authority.
fn relocate(
    places: &mut Vec<HostAndPort>,
    hosts: Option<&str>,
    ports: Option<&str>,
) -> Result<(), Wrong> {
    if let Some(hosts) = hosts {
        // The ports of the authority still count.
        let old: Vec<_> = places.iter().map(|(_, port)| *port).collect();
        let hosts = hosts.split(',').enumerate();
        *places = hosts
            .map(|(at, host)| {
                let port = if old.len() == 1 { 0 } else { at };
                (unbracketed(host), old.get(port).copied().flatten())
            })
            .collect();
    }
    let Some(ports) = ports else {
        return Ok(());
    };
    let ports = ports.split(',').map(port).collect::<Result<Vec<_>, _>>()?;
    if places.is_empty() {
        places.push((String::new(), None));
    }
    if ports.len() != 1 && ports.len() != places.len() {
        return Err(bad("it names more or fewer ports than hosts"));
    }
    for (at, place) in places.iter_mut().enumerate() {
        place.1 = ports.get(at).or(ports.first()).copied();
    }
    Ok(())
}

/// The settings in a server's command line: `-c name=value`, `-cname=value`, `--name=value`. A
/// backslash escapes the next character.
fn options(text: &str) -> Result<Vec<(String, String)>, Wrong> {
    let wrong = || bad("its options have something in them that is not -c name=value");
    let mut words = vec![String::new()];
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, words.last_mut()) {
            ('\\', Some(word)) => word.extend(rest.next()),
            (c, _) if c.is_whitespace() => words.push(String::new()),
            (c, Some(word)) => word.push(c),
            (_, None) => {}
        }
    }
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => words.next().ok_or_else(wrong)?,
            Some(setting) => setting.to_owned(),
            None => return Err(wrong()),
        };
        let (name, value) = setting.split_once('=').ok_or_else(wrong)?;
        if !name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        {
            return Err(wrong());
        }
        found.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(found)
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn decode(text: &str) -> Result<String, Wrong> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(unclear("a % is not followed by two hexadecimal digits"));
        };
        bytes.extend(u8::try_from(high * 16 + low));
    }
    if bytes.contains(&0) {
        return Err(unclear("it has a NUL in it"));
    }
    String::from_utf8(bytes).map_err(|_| unclear("it is not UTF-8 when decoded"))
}

fn unsupported(name: &str) -> Wrong {
    match UNSUPPORTED.iter().find(|known| **known == name) {
        Some(name) => bad(&format!("the parameter {name} is not supported")),
        // Its name may be the end of a password that has a raw & in it.
        None => unclear("it has an unknown parameter"),
    }
}

fn bad(why: &str) -> Wrong {
    (format!("invalid URL: {why}"), HINT)
}

fn unclear(why: &str) -> Wrong {
    (format!("invalid URL: {why}"), ENCODE)
}

#[cfg(test)]
mod tests;
