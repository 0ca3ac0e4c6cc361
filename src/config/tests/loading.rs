//! Tests of loading: the sources of values, and defaults.

use std::time::Duration;

use super::super::{
    HostPolicy, Listen, Loader, LogFormat, Mode, OrNone, Overrides, Reuse, SafeMethods, Size,
    StoreTarget, UpstreamUrl, describe, parse,
};
use super::{BASE, bad, good};
use crate::routing::{CheckedPath, KeyTemplate, Router};

#[test]
fn without_a_file_every_unsafe_request_is_fenced_by_its_path() {
    let mut overrides = Overrides::default();
    overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
    let (settings, warnings) = Loader {
        file: None,
        overrides,
    }
    .load()
    .expect("it is enough");
    assert_eq!(warnings, []);
    assert_eq!(settings.listen, Listen::Tcp("127.0.0.1:7080".into()));
    assert_eq!(
        settings.store.target,
        StoreTarget::Sqlite {
            path: "fencepost.db".into()
        }
    );
    let [route] = &settings.routes[..] else {
        panic!("one route")
    };
    assert_eq!(
        (route.path.as_str(), route.mode),
        ("/{*path}", Mode::Enforce)
    );
    assert!(route.methods.iter().eq(["DELETE", "PATCH", "POST", "PUT"]));
    let key = route.key.as_ref().expect("an enforcing route has a key");
    let (router, _) = Router::new([&route.path]);
    for (path, expected) in [("/", "/"), ("/a", "/a"), ("/a/b/", "/a/b")] {
        let path = CheckedPath::parse(path).expect("it is a path");
        assert_eq!(router.find(&path), Some(0));
        let key = key.render(&path, &mut |_| Ok(None));
        let key = key.expect("it yields a key");
        assert_eq!(key.as_str(), expected);
    }
}

#[test]
fn flags_name_the_implied_route() {
    let mut overrides = Overrides::default();
    overrides.set("upstream.url", "http://a", "--upstream");
    overrides.set("resource", "all", "--resource");
    overrides.set("mode", "observe", "--mode");
    let (settings, _) = parse("", &overrides).expect("it is enough");
    assert_eq!(settings.routes[0].mode, Mode::Observe);
    assert_eq!(
        settings.routes[0].key.as_ref().map(KeyTemplate::as_str),
        Some("all")
    );
    let problems = parse("routes: [{ path: /a, resource: a }]\n", &overrides)
        .expect_err("the file's routes say their own");
    assert_eq!(problems.errors_in_words().len(), 2, "{problems}");
    assert!(
        problems
            .to_string()
            .contains("--resource: resource: the file has routes"),
        "{problems}"
    );
}

#[test]
fn what_is_set_stands_above_the_file_and_a_fallback_below() {
    let mut overrides = Overrides::default();
    overrides.set("listen", "127.0.0.1:1", "--listen");
    overrides.set("store.url", "sqlite:flag.db", "FENCEPOST_STORE");
    overrides.fall_back("log.format", "text", "");
    overrides.fall_back("log.level", "debug", "");
    let text = "listen: 127.0.0.1:2\nlog: { level: warn }\nstore: { url_file: /x, namespace: n }\n";
    let (settings, _) = parse(&format!("{BASE}{text}"), &overrides).expect("it is good");
    assert_eq!(settings.listen, Listen::Tcp("127.0.0.1:1".into()));
    assert_eq!(
        settings.store.target,
        StoreTarget::Sqlite {
            path: "flag.db".into()
        }
    );
    assert_eq!(
        settings.store.namespace, "n",
        "the file's other fields stay"
    );
    assert_eq!(settings.log.format, LogFormat::Text);
    assert_eq!(settings.log.level.0.to_string(), "warn");
}

#[test]
fn an_empty_value_of_a_variable_is_told_by_its_name() {
    let mut overrides = Overrides::default();
    overrides.set("mode", "", "FENCEPOST_MODE");
    let problems = parse(BASE, &overrides).expect_err("it is no mode");
    assert!(
        problems.to_string().starts_with("error: FENCEPOST_MODE: "),
        "{problems}"
    );
}

#[test]
fn an_empty_file_and_one_of_comments_are_files() {
    for text in [
        "",
        "# nothing\n",
        "---\n",
        "\n  \n",
        "upstream:\n",
        "upstream: ~\nbody:\n",
    ] {
        let problems = bad(text);
        assert_eq!(problems.list[0].path, "upstream.url", "{problems}");
        assert_eq!(problems.errors_in_words().len(), 1, "{problems}");
    }
}

#[test]
fn an_empty_field_is_as_good_as_none() {
    let (left_out, _) = good(&format!("{BASE}routes: [{{ path: /a, resource: a }}]\n"));
    let (empty, _) = good(
        "listen:\nbarrier: { wait: , settle: ~ }\nstore: ~\nclaim: { path: }\nupstream: { url: \
         http://a:3000, timeout: }\nroutes: [{ path: /a, resource: a, mode: , idempotency: { key: \
         }, token: { format: } }]\n",
    );
    assert_eq!(format!("{empty:?}"), format!("{left_out:?}"));
    assert_eq!(bad(&format!("{BASE}zebra:\n")).list[0].path, "zebra");
    assert_eq!(
        bad(&format!("{BASE}claim: {{ pth: }}\n")).list[0].path,
        "claim.pth"
    );
}

#[test]
fn a_flag_puts_nothing_in_the_place_of_what_is_wrong() {
    let mut overrides = Overrides::default();
    overrides.set("upstream.url", "http://a", "--upstream");
    overrides.set("store.url", "sqlite:flag.db", "--store");
    for text in ["- routes\n", "hello\n", "store: hello\n", "store: [a]\n"] {
        let problems = parse(text, &overrides).expect_err("it is not what was meant");
        assert_eq!(problems.list[0].line(), Some(1), "{problems}");
    }
    assert!(parse("store: ~\nupstream:\n", &overrides).is_ok());
}

#[test]
fn a_file_that_is_no_map_is_told() {
    for text in ["hello\n", "- a\n", "a: b: c\n", "\t\n:"] {
        assert!(!bad(text).errors_in_words().is_empty(), "{text}");
    }
}

#[test]
fn routes_inherit_what_they_do_not_say() {
    let (settings, _) = good(
        "
upstream: { url: 'unix:/run/a.sock', timeout: 7s, host: rewrite }
safe_methods: required
barrier: { wait: 3s }
body: { buffer: 2KiB, max: 4KiB, timeout: 9s }
claim: off
routes:
  - { path: /a, resource: a }
  - { path: /b, resource: b, safe_methods: ignored, reuse: once, idempotency: off, upstream: { timeout: 8s },
      barrier: { wait: 4s, grace: 5s }, body: { max: none }, methods: [PUT, LOCK] }
",
    );
    assert_eq!(
        settings.upstream.url,
        UpstreamUrl::Unix("/run/a.sock".into())
    );
    assert_eq!(settings.upstream.host, HostPolicy::Rewrite);
    assert!(settings.claim().is_none());
    let [a, b] = &settings.routes[..] else {
        panic!("two routes")
    };
    assert_eq!(a.safe_methods, SafeMethods::Required);
    assert_eq!(a.upstream.timeout.0, Duration::from_secs(7));
    assert_eq!(
        (a.barrier.wait.0, a.barrier.grace.0),
        (Duration::from_secs(3), Duration::from_secs(10))
    );
    assert_eq!(a.body.buffer, Size(2048));
    assert_eq!(a.body.max, OrNone(Some(Size(4096))));
    let idempotency = a.idempotency().expect("on by default");
    assert_eq!(idempotency.header.0, "idempotency-key");
    assert_eq!(b.safe_methods, SafeMethods::Ignored);
    assert_eq!(b.reuse, Reuse::Once);
    assert!(b.idempotency().is_none());
    assert_eq!(b.upstream.timeout.0, Duration::from_secs(8));
    assert_eq!(
        (b.barrier.wait.0, b.barrier.grace.0),
        (Duration::from_secs(4), Duration::from_secs(5))
    );
    assert_eq!((b.body.buffer, b.body.max), (Size(2048), OrNone(None)));
    assert_eq!(b.body.timeout.0, Duration::from_secs(9));
    assert!(b.methods.contains("LOCK") && b.methods.len() == 2);
}

#[test]
fn aliases_and_tags_are_refused() {
    let problems = bad(&format!("{BASE}body: {{ max: 1 }}\nbarrier:\n  <<: b\n"));
    assert_eq!(problems.list[0].path, "barrier.<<", "{problems}");
    for text in [
        "barrier: { wait: &t 3s, grace: *t }",
        "barrier: !tagged { wait: 3s }",
        "--- # the first\nbarrier:\n--- # the second\nbarrier:",
    ] {
        let problems = bad(&format!("{text}\n"));
        let message = &problems.list[0].message;
        assert!(message.contains("not valid YAML"), "{text}: {problems}");
    }
}

#[test]
fn a_start_says_what_is_fenced_and_what_is_not() {
    let (settings, _) = good(
        "upstream: { url: http://a }\nstore: { url: 'postgres://u:pw@db/x', namespace: orders \
         }\nroutes:\n- { path: '/o/{id}', resource: 'o:{id}' }\n- { path: /w, resource: w, mode: \
         observe }\n- { path: /h, mode: bypass }\n",
    );
    assert_eq!(
        describe(&settings),
        [
            "fencing http://a behind 127.0.0.1:7080",
            "enforced: /o/{id} by key o:{id}",
            "NOT ENFORCED, observed only: /w by key w",
            "NOT ENFORCED, bypassed: /h",
            "marks in postgres://…@db/x, namespace orders (shared)",
        ]
    );
}

#[test]
fn the_digest_is_of_the_fields_and_not_of_their_order() {
    let digest = |text: &str| good(text).0.digest();
    let one = digest("upstream: { url: http://a, timeout: 5s }\ndisclose: false\n");
    assert_eq!(one.len(), 12);
    let same = digest("disclose: false\nupstream: { timeout: 5s, url: http://a }\n");
    assert_eq!(one, same);
    let other = digest("upstream: { url: http://a, timeout: 6s }\ndisclose: false\n");
    assert_ne!(one, other);
}
