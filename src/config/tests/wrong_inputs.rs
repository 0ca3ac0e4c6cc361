//! Mistakes that people make with the file, by kind: each gets an answer that says what, where, and
//! what to do. `errors` and `warnings` have each check alone; this is the view of somebody who
//! types.

use super::{BASE, bad, good};

/// The text behind [`BASE`], and parts of the answer, the first of which is its line or place.
const REFUSED: &[(&str, &[&str])] = &[
    // Fields that do not exist, at each level.
    (
        "lisen: 127.0.0.1:1",
        &["line 2: lisen", "did you mean `listen`?"],
    ),
    (
        "store: { pasword: x }",
        &["line 2: store.pasword", "known here: url, url_file"],
    ),
    (
        "store: { lease_time: 5s }",
        &["store.lease_time", "known here"],
    ),
    ("limits: { inflight: 5 }", &["did you mean `in_flight`?"]),
    ("log: { levle: info }", &["did you mean `level`?"]),
    ("admin: { lissten: off }", &["did you mean `listen`?"]),
    (
        "tls: { cert: a.pem }",
        &["line 2: tls.cert", "known here: cert_file"],
    ),
    ("claim: { pth: /claim }", &["did you mean `path`?"]),
    ("shutdown: { deadlin: 5s }", &["did you mean `deadline`?"]),
    ("body: { bufer: 1MiB }", &["did you mean `buffer`?"]),
    (
        "routes: [{ path: /a, resorce: a }]",
        &["routes[0].resorce", "did you mean `resource`?"],
    ),
    (
        "routes: [{ path: /a, resource: a, token: { fromat: hex } }]",
        &["did you mean `format`?"],
    ),
    (
        "routes: [{ path: /a, resource: a, idempotency: { kee: x } }]",
        &["did you mean `key`?"],
    ),
    (
        "token_header: X-Lock",
        &["line 2: token_header", "unknown field"],
    ),
    (
        "routes: [{ path: /a, resource: a, token: { header: X-Lock } }]",
        &["token.header", "`routes.idempotency`"],
    ),
    // Empty fields count as left out: what follows from that is said.
    (
        "routes:\n  - path:\n    resource: a",
        &["routes[0].path", "a route needs a path"],
    ),
    // Fields at the wrong level.
    (
        "mode: observe",
        &["line 2: mode", "it is a field of `routes`"],
    ),
    (
        "resource: '{id}'",
        &["line 2: resource", "it is a field of `routes`"],
    ),
    (
        "url: sqlite:a",
        &["line 2: url", "it is a field of `store` and of `upstream`"],
    ),
    (
        "store: { listen: 127.0.0.1:1 }",
        &["store.listen", "`admin` and of the top level"],
    ),
    (
        "routes:\n- path: /a\nresource: a",
        &["line 4: resource", "indented"],
    ),
    (
        "routes:\n  path: /a\n  resource: a",
        &["line 2: routes", "expected a list, found a map"],
    ),
    // Types, units, ranges.
    (
        "upstream.timeout: 5s",
        &["unknown field `upstream.timeout`"],
    ),
    (
        "barrier: 5s",
        &["line 2: barrier", "expected a map of fields, found `5s`"],
    ),
    ("barrier: { settle: 5 }", &["barrier.settle", "is it 5s?"]),
    ("barrier: { settle: 5M }", &["is it 5m?"]),
    (
        "barrier: { wait: -1s }",
        &["barrier.wait", "250ms, 5s, 1m, 1h"],
    ),
    ("barrier: { settle: 0s }", &["must be greater than zero"]),
    ("body: { buffer: 1 mile }", &["512KiB, 1MiB"]),
    ("limits: { in_flight: many }", &["`many` is not a number"]),
    (
        "limits: { in_flight: 99999999999 }",
        &["99999999999 is too large"],
    ),
    ("stale_status: 418", &["must be 412 or 409, found 418"]),
    ("disclose: nope", &["expected true or false, found `nope`"]),
    ("listen_mode: 9", &["line 2: listen_mode", "unknown field"]),
    (
        "log: { level: verbose }",
        &["`verbose` is not a level", "error, warn, info"],
    ),
    (
        "listen: 7080",
        &["line 2: listen", "has no port", "127.0.0.1:7080"],
    ),
    (
        "listen: 127.0.0.1:99999",
        &["has no port between 0 and 65535"],
    ),
    ("listen: '*:7080'", &["has no host to listen on"]),
    ("listen: '[abc]:1'", &["has no host to listen on"]),
    (
        "listen: unix:/a\nclaim: { addresses: [10.0.0.0/8] }",
        &[
            "claim.addresses",
            "clients of a Unix socket have no address",
        ],
    ),
    // YAML.
    (
        "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2",
        &["line 3: listen", "the first one is in line 2"],
    ),
    ("\tlisten: 127.0.0.1:1", &["line 2:", "not valid YAML"]),
    ("barrier:\n\twait: 5s", &["line 3:", "not valid YAML"]),
    (
        "barrier: &b { wait: 5s }\nshutdown: { <<: *b }",
        &[
            "line 3:",
            "aliases (`*name`) are not read",
            "write the value itself",
        ],
    ),
    (
        "barrier:\r\n  wiat: 5s\r\n",
        &["line 3: barrier.wiat", "did you mean `wait`?"],
    ),
    // Routes.
    (
        "routes: [{ path: '/o/{id}', resource: 'o:{idd}' }]",
        &["`{idd}` is not known", "`{id}`"],
    ),
    (
        "routes: [{ path: '/o/{id}', resource: 'o:{id|upper}' }]",
        &["no filter `upper`", "`lower`"],
    ),
    (
        "routes: [{ path: '/o/{id', resource: o }]",
        &["a capture is a whole segment"],
    ),
    (
        "routes: [{ path: '/o/*', resource: o }]",
        &["`*` has no meaning here", "`{*rest}`"],
    ),
    (
        "routes: [{ path: o, resource: o }]",
        &["must start with `/`"],
    ),
    (
        "routes: [{ path: /o, resource: o, token: { format: octal } }]",
        &["decimal, hex"],
    ),
    (
        "routes: [{ path: /o, resource: o, methods: [FETCH ME] }]",
        &["is not a method"],
    ),
    (
        "routes: [{ path: /o, resource: o, methods: [get] }]",
        &["is a safe method"],
    ),
    (
        "routes: [{ path: '/o/{a}', resource: a }, { path: '/o/{b}', resource: b }]",
        &["routes[1].path", "routes[0]"],
    ),
    (
        "routes: [{ path: /o }]",
        &["routes[0].resource", "no resource key", "order:{id}"],
    ),
    ("routes: []", &["line 2: routes", "nothing is fenced"]),
    // The store, and secrets.
    (
        "store: { url: 'mysql://u:sesame@h/d' }",
        &["store.url", "unknown store type", "postgres://user@host"],
    ),
    ("store: { url: fencepost.db }", &["sqlite:fencepost.db"]),
    (
        "store: { url: 'sqlite::memory:' }",
        &["fence nothing after a restart"],
    ),
    (
        "store: { url: 'host=h password=sesame' }",
        &["unknown store type"],
    ),
    ("store: { password: sesame }", &["unknown field `password`"]),
    (
        "store: { url: 'postgres://h/d' }",
        &["store.namespace", "required"],
    ),
    (
        "store: { url: 'postgres://h/d?sslmode=on', namespace: a }",
        &["sslmode"],
    ),
    ("upstream: { url: 'http://u:sesame@a' }", &["upstream"]),
    // Files.
    (
        "tls: { cert_file: /nowhere, key_file: /nowhere }",
        &["tls.cert_file", "No such file"],
    ),
    (
        "tls: { cert_file: /tmp, key_file: /tmp }",
        &["Is a directory"],
    ),
    (
        "claim: { token_file: /nowhere }",
        &["claim.token_file", "No such file", "openssl rand"],
    ),
];

/// Texts with a warning, and parts of it.
const WARNED: &[(&str, &[&str])] = &[
    (
        "routes: [{ path: '/o/:id', resource: o }]",
        &["routes[0].path", "`{id}` takes any one segment"],
    ),
    (
        "routes: [{ path: '/o/{id}', resource: o }]",
        &["have one key"],
    ),
    (
        "routes: [{ path: /o, resource: o, mode: observe }]",
        &["observe refuses nothing"],
    ),
];

fn holds(text: &str, answer: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            answer.contains(part),
            "{part:?} is not in the answer to {text:?}:\n{answer}"
        );
    }
    assert!(!answer.contains("sesame"), "{text:?}: {answer}");
}

#[test]
fn each_gets_an_answer_with_its_place_and_what_to_do() {
    for (text, parts) in REFUSED {
        holds(text, &bad(&format!("{BASE}{text}\n")).to_string(), parts);
    }
    for (text, parts) in WARNED {
        let (_, warnings) = good(&format!("{BASE}{text}\n"));
        let answer: Vec<_> = warnings
            .iter()
            .map(|warning| warning.render(None))
            .collect();
        holds(text, &answer.join("\n"), parts);
    }
}

/// The word in the place of a block is no value of a field in it.
#[test]
fn off_is_offered_for_the_block_only() {
    let text = bad(&format!(
        "{BASE}tracing: {{ otlp: 'http://c:4318', sample: 2 }}\n"
    ))
    .to_string();
    assert!(!text.contains("or off"), "{text}");
    let text = bad(&format!("{BASE}tracing: 7\n")).to_string();
    assert!(text.contains("off or"), "{text}");
}

#[test]
fn other_spellings_of_the_same_file_are_read() {
    for text in [
        "\u{feff}upstream: { url: http://a:3000 }\n",
        "upstream:\r\n  url: http://a:3000\r\n",
        r#"{"upstream": {"url": "http://a:3000"}, "stale_status": 412}"#,
        "--- # a document\nupstream: { url: http://a:3000 }\n...\n",
    ] {
        let (settings, warnings) = good(text);
        assert_eq!(
            settings.upstream.url,
            crate::config::UpstreamUrl::Http("a:3000".into())
        );
        assert_eq!(warnings, [], "{text:?}");
    }
}
