//! The way to Postgres: a password goes to the server that it is for, and nowhere else; and what an
//! error says of a URL.

mod fake;
mod postgres;

use std::path::Path;
use std::process::Command;

use self::fake::FakePostgres;
use crate::support::proxy::fencepost;
use crate::support::tls::{Ca, Files, server};

/// The password that must not be heard.
const SECRET: &str = "sesame";

/// An address that leads to this machine, and is none of those that count as such.
const ELSEWHERE: &str = "0.0.0.0";

/// Runs `fencepost migrate` on a store, with more of an environment.
async fn migrate(url: &str, environment: &[(&str, &Path)]) -> (bool, String) {
    let mut command = fencepost();
    command
        .args(["migrate", "--namespace", "orders"])
        .env("FENCEPOST_STORE", url)
        .envs(environment.iter().copied());
    run(command).await
}

async fn run(mut command: Command) -> (bool, String) {
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("no panic")
        .expect("the program starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

#[tokio::test]
async fn a_password_never_goes_to_a_server_that_is_not_verified() {
    let (ca, own, files) = (Ca::new("a stranger's CA"), Ca::new("the CA"), Files::new());
    let own = files.put("own.crt", own.pem());
    let own = own.display();
    let pair = ca.server(&[ELSEWHERE]);
    for encrypted in [false, true] {
        let fake = FakePostgres::start(encrypted.then(|| server(&pair, None, &[]))).await;
        let url = |parameters: &str| {
            format!(
                "postgres://u:{SECRET}@{ELSEWHERE}:{}/db?{parameters}",
                fake.port()
            )
        };
        for parameters in [
            String::new(),
            "sslmode=disable".into(),
            "sslmode=prefer".into(),
            "sslmode=require".into(),
            "sslmode=verify-ca".into(),
            "sslmode=verify-full".into(),
            format!("sslmode=require&sslrootcert={own}"),
            format!("sslmode=verify-ca&sslrootcert={own}"),
            format!("sslrootcert={own}"),
        ] {
            let (done, said) = migrate(&url(&parameters), &[]).await;
            assert!(!done, "{parameters}: {said}");
            assert_eq!(fake.heard(), [""; 0], "{parameters}: {said}");
            assert!(!said.contains(SECRET), "{parameters}: {said}");
            assert!(
                said.contains("sslrootcert=FILE"),
                "a hint, {parameters}: {said}"
            );
        }
        // It is this server that would have taken it.
        let forced = if encrypted { "require" } else { "prefer" };
        let (_, said) = migrate(&url(&format!("sslmode=insecure-{forced}")), &[]).await;
        assert_eq!(fake.heard(), [SECRET], "{said}");
    }
}

#[tokio::test]
async fn verify_ca_trusts_only_the_ca_that_is_named() {
    let (public, own, files) = (Ca::new("a public CA"), Ca::new("the CA"), Files::new());
    let system = files.put("system.crt", public.pem());
    let system = [("SSL_CERT_FILE", system.as_path())];
    let named = files.put("own.crt", own.pem());
    let named = format!("sslrootcert={}", named.display());
    // The signer, the name, the parameters, and whether the password is sent.
    for (ca, name, parameters, trusted) in [
        (
            &public,
            ELSEWHERE,
            format!("sslmode=verify-ca&{named}"),
            false,
        ),
        (
            &public,
            ELSEWHERE,
            format!("sslmode=verify-full&{named}"),
            false,
        ),
        (&public, ELSEWHERE, named.clone(), false),
        (
            &own,
            "db.example",
            format!("sslmode=verify-ca&{named}"),
            true,
        ),
        (&own, "db.example", named.clone(), false),
        (&own, ELSEWHERE, named.clone(), true),
        (&own, ELSEWHERE, String::new(), false),
        (&public, "db.example", String::new(), false),
        (&public, ELSEWHERE, String::new(), true),
        (&public, ELSEWHERE, "sslrootcert=system".into(), true),
    ] {
        let fake = FakePostgres::start(Some(server(&ca.server(&[name]), None, &[]))).await;
        let url = format!(
            "postgres://u:{SECRET}@{ELSEWHERE}:{}/db?{parameters}",
            fake.port()
        );
        let (done, said) = migrate(&url, &system).await;
        let expected = if trusted { &[SECRET][..] } else { &[] };
        assert!(
            !done && fake.heard() == expected,
            "{name} {parameters}: {said}"
        );
        assert!(!said.contains(SECRET), "{parameters}: {said}");
    }
}

#[tokio::test]
async fn no_variable_and_no_password_file_says_where_the_marks_are() {
    let files = Files::new();
    let passwords = files.put(".pgpass", &format!("*:*:*:*:{SECRET}\n"));
    std::fs::set_permissions(
        &passwords,
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .expect("it is ours");
    let fake = FakePostgres::start(None).await;
    let own = format!("postgres://u@127.0.0.1:{}/db", fake.port());
    let far = format!("postgres://u:{SECRET}@{ELSEWHERE}:{}/db", fake.port());
    let home = passwords.parent().expect("a directory").to_owned();
    for (name, value) in [
        ("PGPASSWORD", Path::new(SECRET)),
        ("PGPASSFILE", &passwords),
        ("HOME", &home),
        ("PGHOST", Path::new("nowhere.example")),
        ("PGHOSTADDR", Path::new("192.0.2.1")),
        ("PGPORT", Path::new("1")),
        ("PGUSER", Path::new("somebody")),
        ("PGDATABASE", Path::new("other")),
        ("PGSSLMODE", Path::new("verify-full")),
    ] {
        let (done, said) = migrate(&own, &[(name, value)]).await;
        assert!(!done, "{said}");
        assert_eq!(fake.heard(), [""], "{name}: {said}");
        assert_eq!(fake.users(), ["u/db"], "{name}: {said}");
        fake.forget();
    }
    let (_, said) = migrate(&far, &[("PGSSLMODE", Path::new("disable"))]).await;
    assert_eq!(fake.heard(), [""; 0], "{said}");
    // A mode that cannot be kept is refused.
    for name in ["PGOPTIONS", "PGSSLCERT", "PGSSLKEY"] {
        let (_, said) = migrate(&own, &[(name, Path::new("-c"))]).await;
        assert!(said.contains(name) && said.contains("unset it"), "{said}");
        assert_eq!(fake.heard(), [""; 0], "{said}");
    }
}

#[tokio::test]
async fn an_error_holds_no_piece_of_a_malformed_url() {
    let files = Files::new();
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
        let file = files.put("url", url);
        let config = files.put(
            "fencepost.yaml",
            &format!(
                "{{ upstream: {{ url: 'http://a' }}, store: {{ namespace: a, url_file: {} }} }}",
                file.display()
            ),
        );
        let mut by_file = fencepost();
        by_file.args(["migrate", "--config"]).arg(&config);
        let in_place = format!(
            "{{ upstream: {{ url: 'http://a' }}, store: {{ namespace: a, url: \"{url}\" }} }}"
        );
        let mut check = fencepost();
        check
            .arg("check")
            .arg(files.put("in-place.yaml", &in_place));
        for command in [by_file, check] {
            let (done, said) = run(command).await;
            assert!(!done, "{url}: {said}");
            for piece in ["hunt", "er2", "12345"] {
                assert!(!said.contains(piece), "{url}: {said}");
            }
        }
        let (done, said) = migrate(url, &[]).await;
        assert!(
            !done && !said.contains("hunt") && !said.contains("12345"),
            "{said}"
        );
    }
}
