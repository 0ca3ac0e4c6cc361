//! Problems are reported all at once, in the order of the file, and without secrets.

use super::{BASE, bad, good};
use crate::config::{ConfigPlace, Overrides, parse};

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_file() {
    let text = "\
listen: 7080
upstream:
  url: http://a/b
  timeout: 40s
store:
  urll: sqlite:a
barrier:
  settle: 0s
routes:
  - path: /a/{id}
    resorce: a
    methods: [GET, put]
  - path: /b
    path: /c
    resource: 'b:{id}'
    mode: observe
bogus: 1
";
    let problems = bad(text);
    let told: Vec<_> = problems
        .list
        .iter()
        .map(|p| (p.line(), p.path.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (Some(1), "listen"),
            (Some(3), "upstream.url"),
            (Some(6), "store.urll"),
            (Some(8), "barrier.settle"),
            (Some(11), "routes[0].resorce"),
            (Some(12), "routes[0].methods[0]"),
            (Some(12), "routes[0].methods[1]"),
            (Some(14), "routes[1].path"),
            (Some(15), "routes[1].resource"),
            (Some(16), "routes[1].mode"),
            (Some(17), "bogus"),
        ],
        "{problems}"
    );
    assert_eq!(problems.errors_in_words().len(), 10, "{problems}");
}

#[test]
fn what_is_missing_has_the_line_of_what_it_is_missing_from() {
    let problems = bad("upstream: { url: http://a }\nroutes:\n  - path: /a\n    reuse: once\n");
    assert_eq!(problems.list[0].path, "routes[0].resource");
    assert_eq!(problems.list[0].line(), Some(3));
}

/// A file that is right by itself, the field that a flag sets, its value, and the field that does
/// not go with it.
const CONFLICTS: &str = "
trusted_proxies: [10.0.0.1] | listen | unix:/a | trusted_proxies
upstream: { timeout: 9s } | barrier.settle | 8s | upstream.timeout
routes: [{ path: /a, resource: a, upstream: { timeout: 9s } }] | barrier.settle | 8s | routes[0].upstream.timeout
upstream: { url: 'https://a', http2: true } | upstream.url | http://a | upstream.http2
upstream: { url: 'https://a', tls: {} } | upstream.url | http://a | upstream.tls
admin: { tls: {} } | admin.listen | unix:/a | admin.tls
admin: { listen: '10.0.0.1:9' } | admin.token_file | /a | admin.listen
store: { url: 'sqlite:a' } | store.url | postgres://u@h/d | store.namespace
store: { namespace: a, timeout: 9s } | store.url | postgres://u@h/d | store.timeout
store: { url: 'postgres://u@h/d', namespace: a, tls: { ca_file: /a } } | store.url | sqlite:a | store.tls
";

#[test]
fn a_flag_that_does_not_go_with_the_file_is_told_by_its_name() {
    for case in CONFLICTS.trim().lines() {
        let columns: Vec<_> = case.split(" | ").collect();
        let [file, field, value, path] = columns[..] else {
            panic!("{case}")
        };
        let problem = |value: Option<&str>| {
            let mut overrides = Overrides::default();
            overrides.fall_back("upstream.url", "http://a", "");
            if let Some(value) = value {
                overrides.set(field, value, "--flag");
            }
            let list = match parse(file, &overrides) {
                Ok((_, warnings)) => warnings,
                Err(problems) => problems.list,
            };
            list.into_iter().find(|problem| problem.path == path)
        };
        let conflict = problem(Some(value)).expect(case);
        let before = problem(None);
        assert!(
            before.is_none_or(|before| before.message != conflict.message),
            "{case}"
        );
        let flag = ConfigPlace::Named("--flag".to_owned());
        assert_eq!(conflict.place, flag, "{case}");
    }
}

#[test]
fn keys_that_are_no_names_are_told_as_they_are() {
    for (text, path, message) in [
        (
            "store:\n  url: sqlite:a\nstore.url: b",
            "\"store.url\"",
            "unknown field `store.url`",
        ),
        (
            "\n\nstore: { url \"postgres://u:sesame@h/d\" }",
            "store.\"url \\\"postgres://…@h/d\\\"\"",
            "unknown field `url \"postgres://…@h/d\"`",
        ),
    ] {
        let problems = bad(&format!("{BASE}{text}"));
        let [problem] = &problems.list[..] else {
            panic!("one problem: {problems}")
        };
        assert_eq!((problem.path.as_str(), problem.line()), (path, Some(4)));
        assert_eq!(problem.message, message);
    }
}

#[test]
fn a_list_is_not_taken_for_the_fields_in_their_order() {
    for (text, path) in [
        ("- 127.0.0.1:1\n- [http://a]\n", ""),
        ("upstream: [http://a]\n", "upstream"),
        ("upstream: { url: http://a }\nbarrier: [5s]\n", "barrier"),
        (
            "upstream: { url: http://a }\nroutes: [[a, /a]]\n",
            "routes[0]",
        ),
    ] {
        let problems = bad(text);
        assert_eq!(problems.list[0].path, path, "{problems}");
        assert!(
            problems.list[0]
                .message
                .contains("a map of fields, found a list"),
            "{problems}"
        );
    }
}

#[test]
fn no_secret_is_ever_shown() {
    for text in [
        "store: { url: 'postgres://u:sesame@h/d' }",
        "store: { url: 'mysql://u:sesame@h/d' }",
        "store: { url: 'host=h password=sesame' }",
        "store: { url: 'postgres://u:ses ame sesame@h/d', namespace: a }",
        "store: { url: [ 'postgres://u:sesame@h/d' ] }",
        "store: 'postgres://u:sesame@h/d'",
        "store: 'host=h password=sesame'",
        "store: { urll: 'postgres://u:sesame@h/d' }",
        "upstream: { url: 'http://u:sesame@h' }",
        "store: { url: 'postgres://u:sesame@h/d', url: 'postgres://u:sesame@h/d' }",
        "store:\n  url: postgres://u:sesame@h/d: x\n",
        "store:\n  url: \"postgres://u:sesame@h/d\n",
    ] {
        let problems = bad(&format!("listen: bad\n{text}\n"));
        assert!(
            !format!("{problems} {problems:?}").contains("sesame"),
            "{problems:?}"
        );
    }
    let (settings, _) = good(&format!(
        "{BASE}store: {{ url: 'postgres://u:sesame@h/d', namespace: a }}\n"
    ));
    assert!(!format!("{settings:?}").contains("sesame"));
    let described = crate::config::describe(&settings).join("; ");
    assert!(!described.contains("sesame"));
}
