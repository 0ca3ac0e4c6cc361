//! Tests of routes: which patterns parse, which conflict, and which one a path finds.

use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn router(patterns: &[&str]) -> Router {
    let patterns: Vec<_> = patterns.iter().map(|text| pattern(text)).collect();
    let (router, conflicts) = Router::new(&patterns);
    assert_eq!(conflicts, []);
    router
}

/// The pattern that matches, and its captures as text.
fn found<'a>(router: &Router, patterns: &[&'a str], path: &str) -> Option<(&'a str, String)> {
    let checked = CheckedPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let text = patterns[router.find(&checked)?];
    let pattern = pattern(text);
    let mut captured = Vec::new();
    for name in pattern.names() {
        let mut texts = checked.segments_from(pattern.position(name));
        if pattern.rest_name() == Some(name) {
            captured.extend(texts.map(|text| format!("*{text}")));
        } else {
            captured.extend(texts.next().map(|text| format!("{name}={text}")));
        }
    }
    Some((text, captured.join(" ")))
}

#[test]
fn what_a_pattern_matches() {
    for (text, path, expected) in [
        ("/", "/", Some("")),
        ("/", "/a", None),
        ("/a", "/a", Some("")),
        ("/a", "/a/", None),
        ("/a", "/A", None),
        ("/a", "/%61", Some("")),
        ("/%61", "/a", Some("")),
        ("/a/", "/a/", Some("")),
        ("/a/", "/a", None),
        ("/a b", "/a%20b", Some("")),
        ("/a%20b", "/a%20b", Some("")),
        ("/é", "/%C3%A9", Some("")),
        ("/{id}", "/", None),
        ("/{id}", "/42", Some("id=42")),
        ("/{id}", "/42/", None),
        ("/{id}/", "/42/", Some("id=42")),
        ("/orders/{id}", "/orders/42", Some("id=42")),
        ("/orders/{id}", "/orders/%34%32", Some("id=42")),
        ("/orders/{id}", "/orders//42", Some("id=42")),
        ("/orders/{id}", "/orders", None),
        ("/orders/{id}", "/orders/", None),
        ("/orders/{id}", "/orders/42/", None),
        ("/orders/{id}", "/orders/42/lines", None),
        ("/orders/{id}", "/orders/a%2Fb", Some("id=a/b")),
        ("/orders/{id}/{*rest}", "/orders/42", Some("id=42")),
        ("/orders/{id}/{*rest}", "/orders/42/", Some("id=42")),
        (
            "/orders/{id}/{*rest}",
            "/orders/42/lines/7",
            Some("id=42 *lines *7"),
        ),
        (
            "/orders/{id}/{*rest}",
            "/orders/42/lines/7/",
            Some("id=42 *lines *7"),
        ),
        ("/orders/{id}/{*rest}", "/orders", None),
        ("/{*path}", "/", Some("")),
        ("/{*path}", "/a/b", Some("*a *b")),
        ("/{a}/x/{b_2}", "/1/x/2", Some("a=1 b_2=2")),
    ] {
        let router = router(&[text]);
        let captured = found(&router, &[text], path).map(|(_, captured)| captured);
        assert_eq!(captured.as_deref(), expected, "{text} {path}");
    }
}

#[test]
fn the_most_specific_wins_in_any_order() {
    let mut patterns = [
        "/{*all}",
        "/{a}",
        "/{a}/{b}",
        "/{a}/b/c",
        "/x/{*rest}",
        "/x/{b}",
        "/x/y",
        "/x/y/",
        "/x/{b}/z",
        "/x/y/{*rest}",
        "/v/{b}/{c}",
        "/v/w/d",
    ];
    for _ in 0..patterns.len() {
        patterns.rotate_left(1);
        let router = router(&patterns);
        for (path, expected, captured) in [
            ("/", "/{*all}", ""),
            ("/q", "/{a}", "a=q"),
            ("/q/", "/{*all}", "*q"),
            ("/x", "/x/{*rest}", ""),
            ("/x/y", "/x/y", ""),
            ("/x/y/", "/x/y/", ""),
            ("/x/y/q", "/x/y/{*rest}", "*q"),
            ("/x/y/z", "/x/y/{*rest}", "*z"),
            ("/x/q/z", "/x/{b}/z", "b=q"),
            ("/x/q/z/", "/x/{*rest}", "*q *z"),
            ("/x/q", "/x/{b}", "b=q"),
            ("/x/b/c", "/x/{*rest}", "*b *c"),
            ("/q/b/c", "/{a}/b/c", "a=q"),
            ("/q/b/d", "/{*all}", "*q *b *d"),
            ("/q/b", "/{a}/{b}", "a=q b=b"),
            ("/v/w/d", "/v/w/d", ""),
            ("/v/w/e", "/v/{b}/{c}", "b=w c=e"),
            ("/v/b/c", "/v/{b}/{c}", "b=b c=c"),
            ("/v/w", "/{a}/{b}", "a=v b=w"),
        ] {
            let result = found(&router, &patterns, path);
            assert_eq!(result, Some((expected, captured.to_owned())), "{path}");
        }
    }
    assert_eq!(found(&router(&["/a"]), &["/a"], "/b"), None);
}

#[test]
fn ties_are_refused_with_an_example() {
    for (first, second, example) in [
        ("/a", "/a", "/a"),
        ("/a", "/%61", "/a"),
        ("/", "/", "/"),
        ("/{a}", "/{b}", "/x"),
        ("/o/{a}/l/", "/o/{b}/l/", "/o/x/l/"),
        ("/o/{a}/{*r}", "/o/{b}/{*s}", "/o/x"),
        ("/{*r}", "/{*path}", "/"),
    ] {
        let (_, conflicts) = Router::new(&["/other", first, second].map(pattern));
        let expected = RouteConflict {
            first: 1,
            second: 2,
            example: example.to_owned(),
        };
        assert_eq!(conflicts, [expected]);
        assert!(
            conflicts[0].to_string().contains("routes 2 and 3"),
            "{}",
            conflicts[0]
        );
    }
    let (_, conflicts) = Router::new(&["/{a}", "/{b}", "/{c}"].map(pattern));
    assert_eq!(conflicts.len(), 2);
}

#[test]
fn patterns_that_cannot_be_read() {
    for (text, what) in [
        ("", "start with `/`"),
        ("a", "start with `/`"),
        ("{id}", "start with `/`"),
        ("/a//b", "empty segment"),
        ("//", "empty segment"),
        ("/a//", "empty segment"),
        ("/a/../b", "dot segment"),
        ("/%2e", "dot segment"),
        ("/%zz", "hexadecimal"),
        ("/%00", "control"),
        ("/a\tb", "control"),
        ("/a?b=c", "`?` has no meaning"),
        ("/a#b", "`#` has no meaning"),
        ("/a/*", "`{*rest}`"),
        ("/a*", "`{*rest}`"),
        ("/a-{id}", "whole segment"),
        ("/{id}.json", "whole segment"),
        ("/{a}{b}", "whole segment"),
        ("/{a", "whole segment"),
        ("/a}", "whole segment"),
        ("/{}", "name is"),
        ("/{*}", "name is"),
        ("/{Id}", "name is"),
        ("/{1a}", "name is"),
        ("/{a-b}", "name is"),
        ("/{a b}", "name is"),
        ("/{é}", "name is"),
        ("/{**a}", "name is"),
        ("/{a}/{a}", "used twice"),
        ("/{a}/{*a}", "used twice"),
        ("/{*a}/b", "last segment"),
        ("/{*a}/", "last segment"),
        ("/{*a}/{b}", "last segment"),
    ] {
        let error = Pattern::parse(text).expect_err(text);
        assert!(error.contains(what), "{error}");
        assert!(error.starts_with(&format!("path `{text}`: ")), "{error}");
    }
}

#[test]
fn names() {
    let pattern = pattern("/a/{id}/{_b2}/{*rest}");
    assert_eq!(pattern.names().collect::<Vec<_>>(), ["id", "_b2", "rest"]);
    assert_eq!(pattern.as_str(), "/a/{id}/{_b2}/{*rest}");
}

/// At each of 40 segments there is a literal to try before a capture, and the last one fails.
#[test]
fn backtracking_ends() {
    let mut patterns: Vec<String> = Vec::new();
    for literals in 0..40 {
        let captures: Vec<_> = (literals..40).map(|i| format!("/{{c{i}}}")).collect();
        patterns.push(format!(
            "{}{}/end",
            "/a".repeat(literals),
            captures.concat()
        ));
    }
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let router = router(&patterns);
    let miss = CheckedPath::parse(&("/a".repeat(40) + "/miss")).expect("a good path");
    assert_eq!(router.find(&miss), None);
    let hit = CheckedPath::parse(&("/a".repeat(40) + "/end")).expect("a good path");
    assert_eq!(router.find(&hit), Some(39));
}

#[test]
fn segments_and_captures_have_places() {
    let pattern = pattern("/orders/{id}/{*rest}");
    assert_eq!(
        (pattern.literal(0), pattern.literal(1)),
        (Some("orders"), None)
    );
    assert_eq!((pattern.position("id"), pattern.position("rest")), (1, 2));
    assert!(pattern.takes(2, true) && pattern.takes(9, false) && !pattern.takes(1, false));
}
