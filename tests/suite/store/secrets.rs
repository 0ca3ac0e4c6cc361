//! The way to Postgres: a password goes to the server that it is for, and nowhere else; and what an
//! error says of a URL.

mod fake;
mod postgres;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use self::fake::FakePostgres;
use crate::support::proxy::fencepost;
use crate::support::run::run;
use crate::support::tls::{Ca, Files, server};

/// The password that must not be heard.
const SECRET: &str = "sesame";
const USER: &str = "u:sesame";

/// An address that leads to this machine, and is none of those that count as such.
const ELSEWHERE: &str = "0.0.0.0";

/// Runs `fencepost migrate` on a store, with more of an environment.
async fn migrate(url: &str, environment: &[(&str, &Path)]) -> (bool, String) {
    let mut command = fencepost();
    command.args(["migrate", "--namespace", "orders"]);
    command.env("FENCEPOST_STORE", url);
    command.envs(environment.iter().copied());
    let ended = run(command).await;
    (ended.code == Some(0), ended.text())
}

#[tokio::test]
async fn a_password_never_goes_to_a_server_that_is_not_verified() {
    let (ca, own, files) = (Ca::new("a stranger's CA"), Ca::new("the CA"), Files::new());
    let own = format!("sslrootcert={}", files.put("own.crt", own.pem()).display());
    let pair = ca.server(&[ELSEWHERE]);
    for encrypted in [false, true] {
        let fake = FakePostgres::start(encrypted.then(|| server(&pair, None, &[]))).await;
        for parameters in [
            "",
            "sslmode=disable",
            "sslmode=prefer",
            "sslmode=require",
            "sslmode=verify-ca",
            "sslmode=verify-full",
            &format!("sslmode=require&{own}"),
            &format!("sslmode=verify-ca&{own}"),
            &own,
        ] {
            let (done, said) = migrate(&fake.url(USER, ELSEWHERE, parameters), &[]).await;
            assert!(!done && !said.contains(SECRET), "{parameters}: {said}");
            assert_eq!(fake.heard(), [""; 0], "{parameters}: {said}");
            assert!(
                said.contains("sslrootcert=FILE"),
                "a hint, {parameters}: {said}"
            );
        }
        // It is this server that would have taken it.
        let forced = if encrypted { "require" } else { "prefer" };
        let forced = format!("sslmode=insecure-{forced}");
        let (_, said) = migrate(&fake.url(USER, ELSEWHERE, &forced), &[]).await;
        assert_eq!(fake.heard(), [SECRET], "{said}");
    }
}

#[tokio::test]
async fn verify_ca_trusts_only_the_ca_that_is_named() {
    let (public, own, files) = (Ca::new("a public CA"), Ca::new("the CA"), Files::new());
    let system = files.put("system.crt", public.pem());
    let system = [("SSL_CERT_FILE", system.as_path())];
    let named = format!("sslrootcert={}", files.put("own.crt", own.pem()).display());
    let verify_ca = format!("sslmode=verify-ca&{named}");
    let verify_full = format!("sslmode=verify-full&{named}");
    // The signer, the name, the parameters, and whether the password is sent.
    for (ca, name, parameters, trusted) in [
        (&public, ELSEWHERE, &*verify_ca, false),
        (&public, ELSEWHERE, &verify_full, false),
        (&public, ELSEWHERE, &named, false),
        (&own, "db.example", &verify_ca, true),
        (&own, "db.example", &named, false),
        (&own, ELSEWHERE, &named, true),
        (&own, ELSEWHERE, "", false),
        (&public, "db.example", "", false),
        (&public, ELSEWHERE, "", true),
        (&public, ELSEWHERE, "sslrootcert=system", true),
    ] {
        let fake = FakePostgres::start(Some(server(&ca.server(&[name]), None, &[]))).await;
        let (done, said) = migrate(&fake.url(USER, ELSEWHERE, parameters), &system).await;
        assert!(!done && !said.contains(SECRET), "{parameters}: {said}");
        let expected = if trusted { &[SECRET][..] } else { &[] };
        assert_eq!(fake.heard(), expected, "{name} {parameters}: {said}");
    }
}

#[tokio::test]
async fn no_variable_and_no_password_file_says_where_the_marks_are() {
    let files = Files::new();
    let passwords = files.put(".pgpass", &format!("*:*:*:*:{SECRET}\n"));
    std::fs::set_permissions(&passwords, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let fake = FakePostgres::start(None).await;
    let own = fake.url("u", "127.0.0.1", "");
    let home = passwords.parent().expect("a directory");
    for (name, value) in [
        ("PGPASSWORD", Path::new(SECRET)),
        ("PGPASSFILE", &passwords),
        ("HOME", home),
        ("PGHOST", Path::new("nowhere.example")),
        ("PGHOSTADDR", Path::new("192.0.2.1")),
        ("PGPORT", Path::new("1")),
        ("PGUSER", Path::new("somebody")),
        ("PGDATABASE", Path::new("other")),
        ("PGSSLMODE", Path::new("verify-full")),
    ] {
        let (done, said) = migrate(&own, &[(name, value)]).await;
        assert!(!done, "{said}");
        assert_eq!(fake.users(), ["u/db"], "{name}: {said}");
    }
    let heard = fake.heard();
    assert!(heard.iter().all(String::is_empty), "{heard:?}");
    let far = fake.url(USER, ELSEWHERE, "");
    let (_, said) = migrate(&far, &[("PGSSLMODE", Path::new("disable"))]).await;
    assert_eq!(fake.heard(), heard, "{said}");
    // A mode that cannot be kept is refused.
    for name in ["PGOPTIONS", "PGSSLCERT", "PGSSLKEY"] {
        let (_, said) = migrate(&own, &[(name, Path::new("-c"))]).await;
        assert!(said.contains(name) && said.contains("unset it"), "{said}");
        assert_eq!(fake.heard(), heard, "{said}");
    }
}

#[tokio::test]
async fn an_error_holds_no_piece_of_a_malformed_url() {
    let files = Files::new();
    let config = |name: &str, store: &str| {
        let store = format!("store: {{ namespace: a, {store} }}");
        let text = format!("{{ upstream: {{ url: 'http://a' }}, {store} }}");
        files.put(name, &text).display().to_string()
    };
    for url in [
        "postgres://u:12345/hunter2@0.0.0.0/db",
        "postgres://u:12345?hunter2@0.0.0.0/db",
        "postgres://u:a?b&hunter2=x@0.0.0.0/db",
        "postgres://u:hunt#er2@0.0.0.0/db",
        "postgres://u:hunt%er2@0.0.0.0/db",
        "postgres://u@0.0.0.0/db?password=a&hunter2",
        "postgres://u:x@0.0.0.0/db?sslmode=hunter2",
        "postgresql:/u:hunter2@0.0.0.0/db",
    ] {
        let url_file = files.put("url", url);
        let by_file = config("file.yaml", &format!("url_file: {}", url_file.display()));
        let in_place = config("in-place.yaml", &format!("url: \"{url}\""));
        for (arguments, variable) in [
            (&["migrate", "--config", &by_file][..], None),
            (&["check", &in_place], None),
            (&["migrate", "--namespace", "orders"], Some(url)),
        ] {
            let mut command = fencepost();
            command.args(arguments);
            command.envs(variable.map(|url| ("FENCEPOST_STORE", url)));
            let ended = run(command).await;
            let said = ended.text();
            assert_ne!(ended.code, Some(0), "{url}: {said}");
            for piece in ["hunt", "er2", "12345"] {
                assert!(!said.contains(piece), "{url}: {said}");
            }
        }
    }
}
