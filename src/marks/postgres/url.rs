//! A connection URL taken apart into one set of options per host.
//!
//! libpq's URLs name several hosts (`postgres://h1:5432,h2/db`) and ask for the one that can be
//! written to; sqlx knows neither, so the list is read here. A marks store always wants the server
//! that is read-write, whatever the URL says.

use sqlx::postgres::PgConnectOptions;

use crate::marks::store::StoreError;

/// libpq's parameters that change nothing about which server is meant or how well the way to it is
/// protected, and that sqlx does not know.
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

/// What is handed on to sqlx.
const KNOWN: [&str; 15] = [
    "dbname",
    "hostaddr",
    "options",
    "password",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// Reads a URL into the options for each host, in the order named; at least one.
///
/// # Errors
///
/// [`StoreError::Unfit`], never with the URL's text in it, which may hold a password.
pub(super) fn parse(url: &str) -> Result<Vec<PgConnectOptions>, StoreError> {
    let (scheme, rest) = url
        .split_once("://")
        .filter(|(scheme, _)| ["postgres", "postgresql"].contains(scheme))
        .ok_or_else(|| bad("it does not start with postgres://"))?;
    let authority_ends = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(authority_ends);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let mut places: Vec<Place> = hosts
        .split(',')
        .filter(|host| !host.is_empty())
        .map(place)
        .collect::<Result<_, _>>()?;

    let mut kept = Vec::new();
    let mut query_hosts: Option<String> = None;
    let mut query_ports: Option<String> = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name)?;
        match name.as_str() {
            "host" => query_hosts = Some(decode(value)?),
            "port" => query_ports = Some(decode(value)?),
            "target_session_attrs" => {
                if !["any", "read-write", "primary", "prefer-primary"].contains(&value) {
                    return Err(bad(
                        "target_session_attrs asks for a server that cannot be written to",
                    ));
                }
            }
            name if IGNORED.contains(&name) => {}
            name if KNOWN.contains(&name) || name.starts_with("options[") => kept.push(pair),
            name => return Err(bad(&format!("the parameter {name} is not supported"))),
        }
    }
    if let Some(hosts) = query_hosts {
        // The ports that stand in the authority still count.
        let ports: Vec<_> = places.iter().map(|(_, port)| *port).collect();
        let hosts = hosts.split(',').enumerate();
        places = hosts
            .map(|(at, host)| {
                let port = if ports.len() == 1 { 0 } else { at };
                (host.to_owned(), ports.get(port).copied().flatten())
            })
            .collect();
    }
    if let Some(ports) = query_ports {
        let ports: Vec<u16> = ports
            .split(',')
            .map(|port| port.parse().map_err(|_| bad("a port is not a number")))
            .collect::<Result<_, _>>()?;
        if places.is_empty() {
            places.push((String::new(), None));
        }
        if ports.len() != 1 && ports.len() != places.len() {
            return Err(bad("it names more or fewer ports than hosts"));
        }
        for (at, place) in places.iter_mut().enumerate() {
            place.1 = ports.get(at).or(ports.first()).copied();
        }
    }
    if places.is_empty() {
        places.push((String::new(), None));
    }
    let build = |(host, port): Place| -> Result<PgConnectOptions, StoreError> {
        let default = || PgConnectOptions::new_without_pgpass().get_host().to_owned();
        let host = if host.is_empty() { default() } else { host };
        let named = match &host {
            socket if socket.starts_with('/') => "localhost".to_owned(),
            v6 if v6.contains(':') && !v6.starts_with('[') => format!("[{v6}]"),
            host => host.clone(),
        };
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let options: PgConnectOptions =
            format!("{scheme}://{user}{named}{port}{path}?{}", kept.join("&"))
                .parse()
                .map_err(|error: sqlx::Error| bad(&error.to_string()))?;
        Ok(if host.starts_with('/') {
            options.socket(host)
        } else {
            options
        })
    };
    places.into_iter().map(build).collect()
}

/// A host (a directory, where it starts with a slash) and a port.
type Place = (String, Option<u16>);

fn place(text: &str) -> Result<Place, StoreError> {
    let (host, port) = match text.rsplit_once(':') {
        // Within the brackets of an IPv6 address a colon does not set off a port.
        Some((_, port)) if port.contains(']') => (text, None),
        Some((host, "")) => (host, None),
        Some((host, port)) => (
            host,
            Some(port.parse().map_err(|_| bad("a port is not a number"))?),
        ),
        None => (text, None),
    };
    Ok((decode(host)?, port))
}

fn decode(text: &str) -> Result<String, StoreError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(bad("a % is not followed by two hexadecimal digits"));
        };
        bytes.extend(u8::try_from(high * 16 + low));
    }
    String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8 when decoded"))
}

fn bad(why: &str) -> StoreError {
    StoreError::Unfit(format!(
        "store.url is not a Postgres URL that fencepost can use: {why}; write \
         postgres://user:password@host:5432/database"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(url: &str) -> Vec<(String, u16)> {
        parse(url)
            .expect("a good URL")
            .iter()
            .map(|options| {
                let host = options.get_socket().map_or_else(
                    || options.get_host().to_owned(),
                    |path| path.display().to_string(),
                );
                (host, options.get_port())
            })
            .collect()
    }

    fn one(host: &str, port: u16) -> (String, u16) {
        (host.to_owned(), port)
    }

    #[test]
    fn hosts_are_read_in_order() {
        assert_eq!(
            places("postgres://u:p@h1:1,h2:2/db"),
            [one("h1", 1), one("h2", 2)]
        );
        assert_eq!(
            places("postgresql://u@[::1]:7,[fe80::1]:5432/db?sslmode=disable"),
            [one("[::1]", 7), one("[fe80::1]", 5432)]
        );
        assert_eq!(
            places("postgres:///db?host=a,b&port=1,2&target_session_attrs=read-write"),
            [one("a", 1), one("b", 2)]
        );
        assert_eq!(
            places("postgres:///db?host=a,b&port=9"),
            [one("a", 9), one("b", 9)]
        );
    }

    #[test]
    fn sockets_are_directories() {
        assert_eq!(
            places("postgres:///db?host=/tmp/x&port=6"),
            [one("/tmp/x", 6)]
        );
        assert_eq!(places("postgres://u@%2Ftmp%2Fx:6/db"), [one("/tmp/x", 6)]);
        assert_eq!(
            places("postgres://u@localhost:6/db?host=/tmp/x"),
            [one("/tmp/x", 6)]
        );
    }

    #[test]
    fn user_and_database_survive_the_taking_apart() {
        let all = parse("postgres://me:p%40ss@h1,h2/marks?sslmode=require").expect("a good URL");
        for options in all {
            assert_eq!(options.get_username(), "me");
            assert_eq!(options.get_database(), Some("marks"));
        }
    }

    #[test]
    fn a_refusal_says_why_and_never_the_password() {
        for url in [
            "mysql://u:hunter2@h/db",
            "postgres://u:hunter2@h:port/db",
            "postgres://u:hunter2@h/db?target_session_attrs=standby",
            "postgres://u:hunter2@h/db?sslpassword=hunter2",
            "postgres://u:hunter2@h/db?channel_binding=require",
            "postgres://u:hunter2@h%zz/db",
            "postgres://u:hunter2@a b/db",
            "postgres:///db?host=a,b&port=1,2,3",
        ] {
            let said = parse(url).expect_err(url).to_string();
            assert!(said.contains("store.url"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
