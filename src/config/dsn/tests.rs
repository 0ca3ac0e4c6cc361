//! Tests of URLs: the values that are read, the refusals, and their messages.

use super::*;

fn read(url: &str) -> Dsn {
    Dsn::parse(url, false).unwrap_or_else(|why| panic!("{url}: {why}"))
}

fn places(url: &str) -> Vec<(String, u16)> {
    let hosts = read(url).hosts;
    hosts.into_iter().map(|h| (h.name, h.port)).collect()
}

fn one(host: &str, port: u16) -> (String, u16) {
    (host.to_owned(), port)
}

/// The protection of the connection to each host.
fn modes(url: &str, ca_named: bool) -> Result<Vec<String>, String> {
    let hosts = Dsn::parse(url, ca_named)?.hosts.into_iter();
    Ok(hosts.map(|host| format!("{:?}", host.mode)).collect())
}

fn way(url: &str) -> Result<String, String> {
    modes(url, false).map(|modes| modes[0].clone())
}

#[test]
fn hosts_are_read_in_order() {
    assert_eq!(
        places("postgres://u:p@h1:1,h2:2/db"),
        [one("h1", 1), one("h2", 2)]
    );
    assert_eq!(
        places("postgresql://u@[::1]:7,[fe80::1]/db?sslmode=disable"),
        [one("::1", 7), one("fe80::1", 5432)]
    );
    assert_eq!(
        places("postgres://a/db?target_session_attrs=read-write"),
        [one("a", 5432)]
    );
    for list in [",", ",a", "a,", "a,,b", "u:p@,"] {
        let why = Dsn::parse(&format!("postgres://{list}/db"), false).expect_err(list);
        assert!(why.contains("a host of its list is empty"), "{why}");
    }
}

#[test]
fn sockets_are_directories() {
    assert_eq!(places("postgres://u@%2Ftmp%2Fx:6/db"), [one("/tmp/x", 6)]);
    assert_eq!(places("postgres:///db"), [one("", 5432)]);
}

#[test]
fn who_connects_and_to_what() {
    let url = "postgres://me:p%40s%2Fs%3F%23@h/marks";
    let dsn = read(url);
    assert_eq!(dsn.user.as_deref(), Some("me"));
    let password = dsn.password.as_ref().map(|password| &*password.0);
    assert_eq!(password, Some("p@s/s?#"));
    assert_eq!(dsn.database.as_deref(), Some("marks"));
    assert!(!format!("{dsn:?}").contains("p@s"), "{dsn:?}");
}

#[test]
fn other_parameters_are_refused() {
    for parameter in [
        "host=a",
        "hostaddr=10.0.0.1",
        "port=1",
        "user=u",
        "password=p",
        "dbname=d",
        "options=-c%20geqo%3Doff",
        "channel_binding=require",
        "sslcrl=a",
        "sslcert=a",
        "sslkey=a",
        "application_name=a",
        "target_session_attrs=any",
        "options[a",
        "options[geqo]=off",
    ] {
        let why = Dsn::parse(&format!("postgres://h/d?{parameter}"), false).expect_err(parameter);
        assert!(why.contains("is not supported"), "{why}");
        assert!(why.contains("the parameters are sslmode"), "{why}");
    }
}

#[test]
fn no_message_holds_a_piece_of_the_url() {
    for url in [
        "mysql://u:hunter2@h/db",
        "postgres://",
        "postgres://u:hunter2@h:hunter2/db",
        "postgres://u:12345/hunter2@h/db",
        "postgres://u:12345?hunter2@h/db",
        "postgres://u:hunt#er2@h/db",
        "postgres://u:hunt%er2@h/db",
        "postgres://u:hunt er2@h/db",
        "postgres://u:a?b&hunter2=x@h/db",
        "postgres://h/db?password=hunt&er2",
        "postgres://h/db?password=hunt&er2=hunter2",
        "postgres://u:hunter2@h/db?target_session_attrs=standby",
        "postgres://u:hunter2@h/db?sslpassword=hunter2",
        "postgres://u:hunter2@h/db?channel_binding=require",
        "postgres://u:hunter2@h/db?sslmode=hunter2",
        "postgres://u:hunter2@h/db?sslmode=allow",
        "postgres://u:hunter2@h/db?sslmode=insecure-verify-full",
        "postgres://u:hunter2@h/db?sslcert=hunter2",
        "postgres://u:hunter2@h/db?options=hunter2",
        "postgres://u:hunter2@h/db?hostaddr=hunter2",
        "postgres://u:hunter2@h%zz/db",
    ] {
        let said = Dsn::parse(url, false).expect_err(url);
        for piece in ["hunt", "er2", "1234"] {
            assert!(!said.contains(piece), "{url}: {said}");
        }
    }
}

#[test]
fn across_a_network_the_server_is_verified() {
    for host in [
        "h",
        "10.0.0.1",
        "[::2]",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "localhost.example",
    ] {
        let found = way(&format!("postgres://u:p@{host}/db"));
        assert_eq!(found.as_deref(), Ok("VerifyFull"), "{host}");
    }
    for host in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", ""] {
        let found = way(&format!("postgres://u:p@{host}/db"));
        assert_eq!(found.as_deref(), Ok("Prefer"), "{host}");
    }
    let socket = "postgres://u:p@%2Frun/db?sslmode=verify-full&sslrootcert=a";
    assert_eq!(way(socket).as_deref(), Ok("Disable"), "as libpq has it");
    let many = modes("postgres://u:p@h,localhost/db", false);
    let each = ["VerifyFull", "Prefer"].map(str::to_owned);
    assert_eq!(many, Ok(each.into()));
}

#[test]
fn a_password_goes_to_whatever_answers_only_on_request() {
    for (mode, without) in [
        ("disable", "Disable"),
        ("prefer", "Prefer"),
        ("require", "Require"),
    ] {
        for secret in ["u:p@h/db?", "u:p@h?"] {
            let hint = way(&format!("postgres://{secret}sslmode={mode}")).expect_err(mode);
            assert!(hint.contains("sslmode=insecure-prefer"), "{hint}");
        }
        for fine in ["u@h/db", "u:@h/db", "u:p@localhost/db"] {
            let found = way(&format!("postgres://{fine}?sslmode={mode}"));
            assert_eq!(found.as_deref(), Ok(without));
        }
        let forced = format!("postgres://u:p@h/db?sslmode=insecure-{mode}");
        assert_eq!(way(&forced).as_deref(), Ok(without));
        assert!(read(&forced).is_open_to_others());
    }
    let mixed = way("postgres://u:p@localhost,h/db?sslmode=prefer");
    assert!(mixed.is_err(), "one of them is far away");
}

#[test]
fn a_named_ca_is_never_left_unused() {
    let at = |rest: &str| way(&format!("postgres://u:p@{rest}"));
    assert_eq!(
        at("localhost/db?sslrootcert=ca").as_deref(),
        Ok("VerifyFull")
    );
    assert_eq!(
        at("h/db?sslmode=require&sslrootcert=ca").as_deref(),
        Ok("VerifyCa")
    );
    assert_eq!(
        at("h/db?sslmode=verify-ca&sslrootcert=ca").as_deref(),
        Ok("VerifyCa")
    );
    assert_eq!(at("h/db?sslrootcert=system").as_deref(), Ok("VerifyFull"));
    for wrong in [
        "h/db?sslmode=verify-ca",
        "h/db?sslmode=verify-ca&sslrootcert=system",
        "h/db?sslmode=require&sslrootcert=system",
        "h/db?sslmode=insecure-require&sslrootcert=ca",
        "localhost/db?sslmode=prefer&sslrootcert=ca",
    ] {
        assert!(at(wrong).is_err(), "{wrong}");
    }
    let named = modes("postgres://u:p@h/db?sslmode=verify-ca", true);
    assert_eq!(named, Ok(vec!["VerifyCa".to_owned()]));
    assert!(modes("postgres://u:p@h/db?sslrootcert=ca", true).is_err());
}
