//! The hosts that proxies before this one name: `X-Forwarded-Host`, and `host=` in `Forwarded` (RFC
//! 7239, 5.3). An upstream that uses them must not see another host than the one in the key.

use super::fields::{FieldError, pair};
use super::names::FORWARDED_HOST;
use crate::http1::Fields;
use crate::http1::names::FORWARDED;
use crate::routing::host_name;

/// Checks that every host in these fields is `host`, compared as in keys: without case, port and
/// final dot.
pub fn are_all(fields: &Fields, host: &str) -> Result<(), FieldError> {
    let own = host_name(host).ok();
    let differs = |name: &str| FieldError::Malformed {
        name: name.into(),
        wanted: "the host that the request is for",
    };
    for name in [FORWARDED_HOST, FORWARDED] {
        for line in fields.get_all(name) {
            let line = std::str::from_utf8(line).ok();
            let hosts = line.and_then(|line| hosts(name, line));
            let hosts = hosts.ok_or_else(|| differs(name))?;
            if !hosts
                .iter()
                .all(|host| own.is_some() && host_name(host).ok() == own)
            {
                return Err(differs(name));
            }
        }
    }
    Ok(())
}

/// The hosts of one line; `None` if it cannot be read.
fn hosts(name: &str, line: &str) -> Option<Vec<String>> {
    if name == FORWARDED_HOST {
        let members = line.split(',').map(|member| member.trim_matches(BLANK));
        return Some(members.map(str::to_owned).collect());
    }
    let mut hosts = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',', ';']);
        if rest.is_empty() {
            return Some(hosts);
        }
        let (name, value, behind) = pair(rest)?;
        if name.eq_ignore_ascii_case("host") {
            hosts.push(value);
        }
        rest = behind.trim_start_matches(BLANK);
        if !(rest.is_empty() || rest.starts_with([',', ';'])) {
            return None;
        }
    }
}

const BLANK: [char; 2] = [' ', '\t'];

#[cfg(test)]
mod tests {
    use super::*;

    fn same(name: &'static str, lines: &[&str]) -> bool {
        let mut fields = Fields::default();
        for line in lines {
            fields.append(name, line);
        }
        are_all(&fields, "App.test:8080").is_ok()
    }

    #[test]
    fn every_element_of_every_line_is_the_host() {
        for (name, lines) in [
            ("x-forwarded-host", &[] as &[&str]),
            ("x-forwarded-host", &["app.test"]),
            ("x-forwarded-host", &["APP.test.:443, app.test"]),
            ("x-forwarded-host", &["app.test", "app.test:1"]),
            ("forwarded", &["for=192.0.2.1"]),
            ("forwarded", &["for=192.0.2.1;host=app.test;proto=https"]),
            (
                "forwarded",
                &[r#"Host="app.test:80", for="[::1]:9";HOST=App.Test"#],
            ),
            ("forwarded", &["host=app.test:80"]),
            ("forwarded", &["for=a", r#"by=b; host="app\.test""#]),
            ("forwarded", &[""]),
        ] {
            assert!(same(name, lines), "{name}: {lines:?}");
        }
        for (name, lines) in [
            ("x-forwarded-host", &["other.test"] as &[&str]),
            ("x-forwarded-host", &["app.test, other.test"]),
            ("x-forwarded-host", &["other.test, app.test"]),
            ("x-forwarded-host", &["app.test", "other.test"]),
            ("x-forwarded-host", &[""]),
            ("x-forwarded-host", &["app.test,"]),
            ("x-forwarded-host", &["app.test other.test"]),
            ("x-forwarded-host", &["\u{e9}.test"]),
            ("forwarded", &["host=other.test"]),
            ("forwarded", &["host=app.test, host=other.test"]),
            ("forwarded", &["host=app.test", "host=other.test"]),
            ("forwarded", &["host=app.test;host=other.test"]),
            ("forwarded", &[r#"for="a;b";host="other.test""#]),
            ("forwarded", &[r#"host="""#]),
            // Text that only some readers take for a host.
            ("forwarded", &[r#"for="a;host=app.test"#]),
            ("forwarded", &["host = app.test"]),
            ("forwarded", &["host"]),
            ("forwarded", &["app.test"]),
            ("forwarded", &[r#"for=a"b";host=app.test"#]),
            ("forwarded", &["for=a b;host=app.test"]),
        ] {
            assert!(!same(name, lines), "{name}: {lines:?}");
        }
    }

    #[test]
    fn what_is_no_host_is_equal_to_nothing() {
        let mut fields = Fields::default();
        assert!(are_all(&fields, "a b").is_ok());
        fields.insert("x-forwarded-host", "a b");
        assert!(are_all(&fields, "a b").is_err());
    }
}
