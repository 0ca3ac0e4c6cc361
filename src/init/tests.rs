//! Tests of reading logs and documents, and of the routes that are guessed from them.

use std::collections::BTreeSet;

use super::access_log::{self, logged};
use super::survey::{Survey, identifier};
use super::{guess, openapi};
use crate::config::{self, Overrides};

#[test]
fn identifiers_are_told_from_words() {
    for (segment, sign) in [
        ("7", Some("<number>")),
        ("20261128", Some("<number>")),
        ("123e4567-e89b-12d3-a456-426614174000", Some("<hex>")),
        ("507f1f77bcf86cd799439011", Some("<hex>")),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", Some("<name>")),
        ("PROJ-7", Some("<name>")),
        ("inv_0042", Some("<name>")),
        ("ann@example.com", Some("<text>")),
        ("photo0042.jpg", Some("<text>")),
        ("orders", None),
        ("line-items", None),
        ("v1", None),
        ("v1.41", None),
        ("oauth2", None),
        ("deadbeef", None),
        ("wp-login.php", None),
        ("resetPassword", None),
        ("Ann Smith", Some("<text>")),
        ("a=b", Some("<text>")),
    ] {
        assert_eq!(identifier(segment, ""), sign, "{segment}");
    }
    assert_eq!(identifier(&"x".repeat(65), ""), Some("<name>"));
    assert_eq!(identifier("2", "/rest/api"), None, "a version: /rest/api/2");
    assert_eq!(identifier("2026-10-01", "/reports"), Some("<name>"));
    assert_eq!(identifier("1000", "/api"), Some("<number>"));
}

#[test]
fn lines_of_many_servers_are_read() {
    for (line, method, target, status) in [
        (
            r#"::1 - - [10/Oct/2026:13:55:36 +0000] "PUT /orders/7 HTTP/1.1" 200 23"#,
            "PUT",
            "/orders/7",
            Some(200),
        ),
        // Envoy's own format, and one with a quoted field in front.
        (
            r#"[2026-10-10T13:55:36Z] "PUT /orders/7 HTTP/2" 204 - 0 23"#,
            "PUT",
            "/orders/7",
            Some(204),
        ),
        (
            r#""10.0.0.1" "PUT /orders/7?a=b HTTP/1.1" 200"#,
            "PUT",
            "/orders/7?a=b",
            Some(200),
        ),
        // nginx.
        (
            r#"{"request_method":"PUT","uri":"/index.php","request_uri":"/orders/7","status":"200"}"#,
            "PUT",
            "/orders/7",
            Some(200),
        ),
        (
            r#"{"request":"PUT /orders/7 HTTP/1.1","status":200}"#,
            "PUT",
            "/orders/7",
            Some(200),
        ),
        // Envoy, Caddy, Traefik, ECS.
        (
            r#"{"method":"PUT","path":"/orders/7","response_code":404}"#,
            "PUT",
            "/orders/7",
            Some(404),
        ),
        (
            r#"{"msg":"handled","request":{"method":"PUT","uri":"/orders/7"},"status":201}"#,
            "PUT",
            "/orders/7",
            Some(201),
        ),
        (
            r#"{"RequestMethod":"PUT","RequestPath":"/orders/7","DownstreamStatus":200}"#,
            "PUT",
            "/orders/7",
            Some(200),
        ),
        (
            r#"{"http":{"request":{"method":"PUT"}},"log":{"file":{"path":"/a"}},"url":{"path":"/orders/7"}}"#,
            "PUT",
            "/orders/7",
            None,
        ),
        // Escapes, and what looks like a request, in other fields.
        (
            r#"::1 - "a\" \"PUT /x HTTP/1.1\" 200" [x] "PUT /orders/7 HTTP/1.1" 200 9 "-" "GET /y HTTP/1.1""#,
            "PUT",
            "/orders/7",
            Some(200),
        ),
        (
            r#"{"httpMethod":"PUT","path":"/orders/7","status":"done"}"#,
            "PUT",
            "/orders/7",
            None,
        ),
        // A container's log around one of these.
        (
            r#"{"log":"::1 - - [x] \"PUT /orders/7 HTTP/1.1\" 200 23\n","stream":"stdout"}"#,
            "PUT",
            "/orders/7",
            Some(200),
        ),
    ] {
        let found = Some((method.to_owned(), target.to_owned(), status));
        assert_eq!(logged(line), found, "{line}");
    }
    for line in [
        "",
        "x",
        "{",
        "{}",
        "[1]",
        r#""GET /""#,
        r#"::1 "-" "PUT /orders/7 HTTP/1.1""#,
        r#"{"log":"{}"}"#,
        r#"a "\x16\x03" 400"#,
    ] {
        assert_eq!(logged(line), None, "{line}");
    }
}

/// The file for these writes. It passes the checks of the configuration.
fn file(survey: &Survey) -> String {
    let text = guess::file("\"http://a\"", Some("log"), survey).expect("written");
    let checked = config::parse(&text, &Overrides::default());
    checked.unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    text
}

/// Asserts that the file for these writes has these lines. Returns it.
fn assert_guess(writes: &[&str], lines: &[&str]) -> String {
    let mut survey = Survey::default();
    for (place, write) in writes.iter().enumerate() {
        let (method, target) = write.split_once(' ').expect("a method and a target");
        survey.add(method, target, None, place);
    }
    survey.merge_names();
    let text = file(&survey);
    for line in lines {
        assert!(text.contains(line), "{writes:?}: {line}\n{text}");
    }
    text
}

#[test]
fn writes_become_routes() {
    let names: Vec<String> = ('a'..='z')
        .map(|letter| format!("PUT /users/{letter}x"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let kinds: Vec<String> = ('a'..='z')
        .map(|letter| format!("PUT /api/{letter}x/7"))
        .collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let owners: Vec<String> = ('a'..='z')
        .map(|letter| format!("PUT /api/users/{letter}x/orders/7"))
        .collect();
    let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
    let actions: Vec<String> = ('a'..='z')
        .map(|letter| format!("POST /do/{letter}"))
        .collect();
    let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
    for (writes, lines) in [
        (
            &["PUT /orders/7", "PUT /orders/8", "DELETE /orders/8/"][..],
            &[
                "  # 1 DELETE, 2 PUT under /orders/<number>\n  - path: \"/orders/{id}/{*rest}\"\n    \
                 resource: \"orders:{id|int}\"\n    mode: observe\n",
            ][..],
        ),
        // The first identifier names the resource.
        (
            &["POST /v1/tenants/5/orders/a-1"],
            &["- path: \"/v1/tenants/{id}/{*rest}\"\n    resource: \"v1/tenants:{id|int}\""],
        ),
        // Of two forms of identifiers, the filters take both.
        (
            &["PUT /o/7", "PUT /o/0a1b2c3d"],
            &["under /o/<hex>", "\"o:{id|lower|plain}\""],
        ),
        (
            &["PUT /o/7", "PUT /o/a@b"],
            &["under /o/<text>", "\"o:{id}\""],
        ),
        // A path of its own, and an action.
        (
            &["PUT /config", "POST /config"],
            &[
                "# 1 POST, 1 PUT under /config\n  # No identifier was seen, so each path has its own key.",
                "\n  - path: \"/config\"\n    resource: \"{path}\"",
            ],
        ),
        (
            &["POST /run/"],
            &[
                "  # - path: \"/run/\" # 1 POST\n  #   mode: bypass\n",
                "No route was",
            ],
        ),
        (
            &["PUT /7", "DELETE /"],
            &["\"id:{id|int}\"", "- path: \"/\"\n"],
        ),
        (
            &["PUT http://a/orders/7?x=http://b"],
            &["- path: \"/orders/{id}/{*rest}\"\n"],
        ),
        (
            &names,
            &["# 26 PUT under /users/<name>\n  - path: \"/users/{id}/{*rest}\""],
        ),
        (
            &owners,
            &["- path: \"/api/users/{id}/{*rest}\"\n    resource: \"api/users:{id|plain}\""],
        ),
        (
            &kinds,
            &[
                "- path: \"/api/ax/{id}/{*rest}\"\n",
                "- path: \"/api/zx/{id}/{*rest}\"\n",
            ],
        ),
        (
            &actions,
            &[
                "No route was",
                "# - path: \"/do/a\" # 1 POST",
                "# Left out (6): paths",
            ],
        ),
    ] {
        assert_guess(writes, lines);
    }
}

/// Asserts the routes of these writes, and lines of their file.
fn assert_routes(writes: &[&str], routes: &[&str], lines: &[&str]) {
    let text = assert_guess(writes, lines);
    let found = text
        .lines()
        .filter_map(|line| line.strip_prefix("  - path: "));
    let found: BTreeSet<_> = found.map(|path| path.trim_matches('"')).collect();
    assert_eq!(found, routes.iter().copied().collect(), "{text}");
}

/// Paths that may name one thing have one key.
#[test]
fn one_thing_has_one_key() {
    for (writes, routes, lines) in [
        // Words beside identifiers.
        (
            &[
                "PUT /posts/7",
                "PUT /posts/hello",
                "PUT /posts/hello/title",
                "DELETE /posts/x/y/8",
            ][..],
            &["/posts/{id}/{*rest}"][..],
            &["    resource: \"posts:{id|int}\"\n"][..],
        ),
        (
            &[
                "PUT /orders/inv-7",
                "PUT /orders/ab1",
                "PUT /orders/",
                "PUT /orders",
            ],
            &["/orders/{*rest}", "/orders/{id}/{*rest}"],
            &["resource: \"orders\"\n"],
        ),
    ] {
        assert_routes(writes, routes, lines);
    }
}

#[test]
fn parts_of_an_api_have_keys_of_their_own() {
    for (writes, routes, lines) in [
        (
            &[
                "PUT /api/v1/billing/items/3",
                "PUT /api/v1/items/3",
                "PUT /api/v2/items/3",
            ][..],
            &[
                "/api/v1/billing/items/{id}/{*rest}",
                "/api/v1/items/{id}/{*rest}",
                "/api/v2/items/{id}/{*rest}",
            ][..],
            &["    resource: \"api/v1/items:{id|int}\"\n"][..],
        ),
        // Below a path that is itself written.
        (
            &[
                "PUT /users/alice",
                "PUT /users/alice/orders/7",
                "POST /users/alice/mail",
            ],
            &["/users/alice/{*rest}"],
            &["resource: \"users/alice\"\n"],
        ),
        // Elsewhere.
        (
            &["PUT /orders/7/items/3", "PUT /items/3"],
            &["/items/{id}/{*rest}", "/orders/{id}/{*rest}"],
            &["  # 1 PUT under /orders/<number>\n"],
        ),
        (
            &["PUT /a%7Bb/7", "PUT /a_7Bb/7"],
            &["/a%7Bb/{id}/{*rest}", "/a_7Bb/{id}/{*rest}"],
            &[
                "resource: \"a=7Bb:{id|int}\"",
                "resource: \"a_7Bb:{id|int}\"",
            ],
        ),
    ] {
        assert_routes(writes, routes, lines);
    }
}

#[test]
fn what_is_left_out_is_counted_and_nothing_leaves_its_place() {
    for (writes, lines) in [
        // Left out.
        (
            &["GET /a", "MKCOL /b", "get /c", "PUT /a//b"][..],
            &[
                "# Left out (1): safe methods, which are not fenced.\n# The first: 0\n",
                "# Left out (2): requests with other methods, which a route takes if its `methods` lists them.\n# The first: 1\n",
                "# Left out (1): writes with a path that has two readings: fencepost refuses them.\n# The first: 3, byte 4 of",
                "No route was guessed",
            ][..],
        ),
        (
            &["PUT /a/b/c/d/e/f/g/h/i/j/k/l/m"],
            &["(1): writes to more, or longer, paths"],
        ),
        // Nothing leaves its place in the file.
        (
            &[
                "PUT /a%22%0a/7",
                "PUT /%7Bx%7D%27%25/7",
                "PUT /x\"\n- /7",
                "PUT /é/7",
                "PUT /${HOME}/7",
            ],
            &[
                "- path: \"/%7Bx%7D%27%25/{id}/{*rest}\"\n    resource: \"=7Bx=7D=27=25:{id|int}\"\n",
                "(4): writes with",
            ],
        ),
    ] {
        assert_guess(writes, lines);
    }
}

#[test]
fn memory_is_bounded() {
    let mut survey = Survey::default();
    let word = |number: u32| -> String {
        let letters = (0..5).map(|place| char::from(b'a' + (number >> (4 * place) & 15) as u8));
        letters.collect()
    };
    for number in 0..30_000 {
        survey.add(
            "PUT",
            &format!("/users/{}/name", word(number)),
            None,
            number,
        );
    }
    survey.merge_names();
    assert_eq!(survey.writes.len(), 1, "names are merged on the way");
    for number in 0..30_000 {
        survey.add("POST", &format!("/{}", word(number)), None, number);
    }
    assert!(survey.writes.len() <= 10_001, "{}", survey.writes.len());
    let text = file(&survey);
    assert!(
        text.contains("# 30,000 PUT under /users/<name>\n"),
        "{text}"
    );
    assert!(
        text.contains("writes to more, or longer, paths than are kept in memory"),
        "{text}"
    );
}

#[test]
fn wrong_inputs_are_refused_with_a_reason() {
    for (log, reason) in [
        (&b""[..], "it is empty"),
        (
            b"#Fields: date\n\xff\x1b[2J\n",
            "It begins with `#Fields: date`",
        ),
    ] {
        let error = access_log::read(log, &mut Survey::default()).expect_err(reason);
        assert!(error.to_string().contains(reason), "{error}");
    }
    for (document, reason) in [
        ("", "not an OpenAPI document"),
        ("a: 1", "not an OpenAPI document"),
        ("openapi: [", "not valid YAML"),
        ("{\"openapi\": ", "not valid JSON"),
    ] {
        let error = openapi::read(document.as_bytes(), &mut Survey::default()).expect_err(reason);
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn documents_become_routes() {
    for (document, lines) in [
        (
            "openapi: 3.1.0\nservers: [{url: 'https://a/v1/'}]\npaths:\n  x-note: 1\n  /orders/{orderId}:\n    \
             parameters: []\n    get: {responses: {200: {}}}\n    put: {}\n  /orders/{id}:cancel: {post: {}}\n  \
             /other: {$ref: 'other.yaml'}\n  /e\n  /f: null\n".replace("  /e\n", "  /e:\n"),
            &[
                "# 1 PUT under /v1/orders/<name>\n  - path: \"/v1/orders/{id}/{*rest}\"",
                "(1): operations with text beside a parameter, or a variable in front: no route can separate \
                 them.\n# The first: /orders/{id}:cancel\n",
                "(1): paths that are described in another place (`$ref`).\n# The first: /other\n",
            ][..],
        ),
        (
            r#"{"swagger": "2.0", "basePath": "/v2", "paths": {"/pets/{id}": {"delete": {}}, "/pets": {"post": {}}}}"#
                .to_owned(),
            &["- path: \"/v2/pets/{id}/{*rest}\"", "# - path: \"/v2/pets\" # 1 POST"],
        ),
        (
            "openapi: 3.0.0\nservers: [{url: 'https://{h}/v3'}, {url: /w}]\npaths:\n  \
             /a/{id}: {put: {}}\n  /a/me: {put: {}}\n"
                .to_owned(),
            &[
                "- path: \"/v3/a/{id}/{*rest}\"",
                "  # 2 PUT under /v3/a/<name>\n",
            ],
        ),
        (
            "openapi: 3.0.0\nservers: [{url: '/y/{z}'}]\npaths:\n  /b/{id}: {put: {}}\n".to_owned(),
            &[
                "(1): operations with text beside a parameter, or a variable in front: no route can separate \
                 them.\n# The first: /b/{id}\n",
            ],
        ),
        (
            r#"{"swagger": "2.0", "basePath": "v2", "paths": {"/pets/{id}": {"delete": {}}}}"#
                .to_owned(),
            &["- path: \"/v2/pets/{id}/{*rest}\""],
        ),
        (
            "openapi: 3.0.0\npaths:\n  \"/a\\n- path: /b/{id}\": {put: {}}\n".to_owned(),
            &["# The first: /a\\u{a}- path: /b/{id}, byte 3 of the path"],
        ),
    ] {
        let mut survey = Survey::default();
        openapi::read(document.as_bytes(), &mut survey).expect("a document");
        let text = file(&survey);
        for line in lines {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
