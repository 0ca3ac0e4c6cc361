//! Addresses in the configuration: the listeners, the upstream, the store. Each function says what
//! is wrong, and after a line break what is expected. No message contains a password.
//!
//! `http` parses the host and port of a URL; the rest of a URL is read here. `http::Uri` silently
//! drops a fragment, does not distinguish `http://a` and `http://a/`, and says of most errors only
//! that the URL is invalid. An address to listen on is not a URL, and may be a name or a socket.
//!
//! [`admin_block`] is read from a file alone: a health check neither needs nor checks the rest.

use std::net::Ipv6Addr;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use http::uri::Authority;
use serde_json::Value;

use super::dsn::split_url;
use super::units::{Hidden, word};
use super::yaml::{Report, parse, wrong};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `host:port`; resolved when bound. Port 0 takes a free one.
    Tcp(String),
    Unix(PathBuf),
}

word!(Listen, listen);

/// The address that requests go to. It has no path: targets go upstream byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamUrl {
    /// `host` or `host:port`; empty: none is configured.
    Http(String),
    Https(String),
    /// HTTP/2 by prior knowledge, without TLS.
    H2c(String),
    Unix(PathBuf),
}

word!(UpstreamUrl, upstream);

/// The `Host` that the upstream sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPolicy {
    /// The client's.
    Preserve,
    /// The upstream URL's authority (`localhost` for a Unix socket).
    Rewrite,
    Literal(String),
}

word!(HostPolicy, host);

/// The place of the marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreTarget {
    Sqlite {
        path: PathBuf,
    },
    /// A DSN, or the file that holds one (read at each connect).
    Postgres(Secret),
}

word!(StoreTarget, store);

/// A secret given in place or in a file that is read when it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    Literal(Hidden),
    File(PathBuf),
}

const LISTEN_HINT: &str =
    "write host:port, such as 127.0.0.1:7080 or [::1]:7080, or unix:/run/fencepost/data.sock";

/// An address to listen on.
pub(super) fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Listen::Unix);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let is_address = bracketed.is_some_and(|h| h.parse::<Ipv6Addr>().is_ok());
    let mut bytes = host.bytes();
    let is_name = bytes.all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let fault = if port.parse::<u16>().is_err() {
        "has no port between 0 and 65535"
    } else if host.is_empty() || !is_name && !is_address {
        "has no host to listen on; 0.0.0.0 accepts connections from the network"
    } else {
        return Ok(Listen::Tcp(text.to_owned()));
    };
    wrong(text, fault, LISTEN_HINT)
}

/// Returns true if only this machine reaches it.
pub(super) fn is_local(listen: &Listen) -> bool {
    match listen {
        Listen::Unix(_) => true,
        Listen::Tcp(address) => {
            let host = address.rsplit_once(':').map_or("", |(host, _)| host);
            let is_name = host.eq_ignore_ascii_case("localhost");
            is_name || host == "[::1]" || host.starts_with("127.")
        }
    }
}

const UPSTREAM_HINT: &str =
    "write http://host:port, https://host, h2c://host:port or unix:/path/of.sock";

/// The address that requests go to.
pub(super) fn upstream(text: &str) -> Result<UpstreamUrl, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(UpstreamUrl::Unix);
    }
    let user = "names a user: the proxy passes on the credentials of the client";
    let [scheme, authority, behind] = url(text, &["http", "https", "h2c"], user, UPSTREAM_HINT)?;
    // Request targets go upstream byte for byte, so nothing can be put in front of them.
    if !matches!(behind, "" | "/") {
        let fault = "has a path, a query or a fragment: give scheme, host and port only";
        return wrong(text, fault, UPSTREAM_HINT);
    }
    let make = match scheme {
        "https" => UpstreamUrl::Https,
        "h2c" => UpstreamUrl::H2c,
        _ => UpstreamUrl::Http,
    };
    Ok(make(authority.to_owned()))
}

/// Scheme and authority of a URL with one of these schemes and without a user, and what is behind
/// them. `user`: the fault of one with a user.
pub(super) fn url<'a>(
    text: &'a str,
    schemes: &[&str],
    user: &str,
    hint: &str,
) -> Result<[&'a str; 3], String> {
    let fault = match split_url(text) {
        None => "has no scheme",
        Some((scheme, ..)) if !schemes.contains(&scheme) => "has an unknown scheme",
        Some((_, authority, _)) if authority.contains('@') => user,
        Some((_, authority, _)) if !is_authority(authority) => "has no valid host",
        Some((scheme, authority, behind)) => return Ok([scheme, authority, behind]),
    };
    wrong(text, fault, hint)
}

const HOST_HINT: &str = "write preserve, rewrite, or a literal host or host:port";

/// The `Host` that the upstream sees.
pub(super) fn host(text: &str) -> Result<HostPolicy, String> {
    match text {
        "preserve" => Ok(HostPolicy::Preserve),
        "rewrite" => Ok(HostPolicy::Rewrite),
        literal if is_authority(literal) => Ok(HostPolicy::Literal(literal.to_owned())),
        _ => wrong(text, "is not a host", HOST_HINT),
    }
}

const STORE_HINT: &str = "write sqlite:fencepost.db, sqlite:/var/lib/fencepost/marks.db or \
                          postgres://user@host/database";

/// The place of the marks. The text may hold a password. The check of the block reads the URL of a
/// Postgres.
pub(super) fn store(text: &str) -> Result<StoreTarget, String> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let secret = Secret::Literal(Hidden(text.to_owned()));
        return Ok(StoreTarget::Postgres(secret));
    }
    // The text is not shown: a URL that was meant for a server may hold its password.
    let wrong = |why: &str| Err(format!("{why}\n{STORE_HINT}"));
    let Some(path) = text.strip_prefix("sqlite:") else {
        return wrong("unknown store type");
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.ends_with('/') || path.contains("://") || path.contains('?') {
        return wrong("the path of a file is expected after `sqlite:`, without parameters");
    }
    if path.contains(":memory:") {
        return wrong("marks in memory fence nothing after a restart");
    }
    let path = PathBuf::from(path);
    Ok(StoreTarget::Sqlite { path })
}

fn socket_path(path: &str) -> Result<PathBuf, String> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') || path.ends_with('/') {
        let fault = "is not the absolute path of a socket";
        return wrong(path, fault, "write unix:/run/fencepost/data.sock");
    }
    if SocketAddr::from_pathname(path).is_err() {
        let fault = "is too long for a socket";
        return wrong(path, fault, "the kernel takes 107 bytes");
    }
    Ok(PathBuf::from(path))
}

/// A host, or a host and a port that is not 0. `Authority` takes an empty or a too large port for
/// none.
pub(super) fn is_authority(text: &str) -> bool {
    Authority::try_from(text).is_ok_and(|authority| {
        let host = authority.host();
        let whole = match authority.port_u16() {
            Some(port) => port > 0,
            None => host == text,
        };
        whole && !host.is_empty() && !text.contains('@')
    })
}

/// The block `admin` of a file, as it is written; null: there is none. An error says what is wrong
/// with the file.
pub fn admin_block(file: &Path) -> Result<Value, String> {
    let (text, file) = (std::fs::read_to_string(file), file.display());
    let text = text.map_err(|error| format!("{file} cannot be read: {error}"))?;
    let fault = "is not a valid configuration";
    let tree = parse(&text, &mut Report::default());
    let tree = tree.ok_or_else(|| format!("{file} {fault}; `fencepost check {file}` says why"))?;
    Ok(tree["admin"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses() {
        for good in ["127.0.0.1:7080", "[::1]:0", "localhost:1", "0.0.0.0:65535"] {
            assert_eq!(listen(good), Ok(Listen::Tcp(good.into())));
        }
        assert_eq!(
            listen("unix:/run/a.sock"),
            Ok(Listen::Unix("/run/a.sock".into()))
        );
        for bad in [
            "7080",
            ":7080",
            "h:",
            "h:70000",
            "::1:80",
            "a b:80",
            "unix:a.sock",
            "unix:",
            "",
        ] {
            assert!(listen(bad).is_err(), "{bad}");
        }
        assert!(listen(&format!("unix:/{}", "x".repeat(200))).is_err());
    }

    #[test]
    fn upstream_urls() {
        assert_eq!(
            upstream("http://a:3000"),
            Ok(UpstreamUrl::Http("a:3000".into()))
        );
        assert_eq!(upstream("http://a/"), Ok(UpstreamUrl::Http("a".into())));
        assert_eq!(
            upstream("https://a.b"),
            Ok(UpstreamUrl::Https("a.b".into()))
        );
        assert_eq!(
            upstream("h2c://[::1]:50051"),
            Ok(UpstreamUrl::H2c("[::1]:50051".into()))
        );
        assert_eq!(
            upstream("unix:/run/app.sock"),
            Ok(UpstreamUrl::Unix("/run/app.sock".into()))
        );
        for bad in [
            "a:3000",
            "ftp://a",
            "http://",
            "http://a/b",
            "http://a?b",
            "http://u:p@a",
            "http://a:",
            "http://a:0",
            "http://a:99999",
            "http://a#b",
            "HTTP//a",
            "unix:app.sock",
            "",
        ] {
            assert!(upstream(bad).is_err(), "{bad}");
        }
        let message = upstream("http://u:sesame@a").expect_err("it names a user");
        assert!(!message.contains("sesame"), "{message}");
    }

    #[test]
    fn hosts() {
        assert_eq!(host("preserve"), Ok(HostPolicy::Preserve));
        assert_eq!(host("a.b:80"), Ok(HostPolicy::Literal("a.b:80".into())));
        assert!(host("a b").is_err() && host("").is_err() && host("u@h").is_err());
    }

    #[test]
    fn store_urls() {
        for (text, path) in [
            ("sqlite:fencepost.db", "fencepost.db"),
            ("sqlite:/var/a.db", "/var/a.db"),
            ("sqlite:///var/a.db", "/var/a.db"),
            ("sqlite://a.db", "a.db"),
        ] {
            assert_eq!(
                store(text),
                Ok(StoreTarget::Sqlite { path: path.into() }),
                "{text}"
            );
        }
        let many = "postgresql://u:p@h1:5432,h2/db?target_session_attrs=read-write";
        assert_eq!(
            store(many),
            Ok(StoreTarget::Postgres(Secret::Literal(Hidden(many.into()))))
        );
        for bad in [
            "sqlite:",
            "sqlite::memory:",
            "sqlite:a?mode=memory",
            "sqlite:postgres://u:sesame@h/d",
            "sqlite://postgres://u:sesame@h/d",
            "mysql://a",
            "host=db",
        ] {
            assert!(store(bad).is_err(), "{bad}");
        }
        for url in ["mysql://u:sesame@h", "sqlite:postgres://u:sesame@h/d"] {
            let message = store(url).expect_err("it is not known");
            assert!(!message.contains("sesame"), "{message}");
        }
    }

    #[test]
    fn only_the_admin_block_is_looked_at() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |text: &str| {
            std::fs::write(file.path(), text).expect("it is ours");
            admin_block(file.path())
        };
        for (text, listen, tls) in [
            ("", None, false),
            ("admin:", None, false),
            ("admin: { listen: off }", Some("off"), false),
            (
                "admin: { listen: 'unix:/run/a' }",
                Some("unix:/run/a"),
                false,
            ),
            ("admin: { tls: { cert_file: a } }", None, true),
            ("admin: { listen: '[::]:9', tls: }", Some("[::]:9"), false),
            ("lisen: 7\nadmin: { listen: a:1 }", Some("a:1"), false),
        ] {
            let admin = read(text).expect("it is YAML");
            let found = (admin["listen"].as_str(), admin["tls"].is_object());
            assert_eq!(found, (listen, tls), "{text}");
        }
        assert!(read("admin: [").is_err());
    }
}
