//! Keys tell things apart, and say the same of the same thing: by tables, by trying every short
//! text, and by chance.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::routing::{Router, query_value};

/// A route of one pattern and one template.
struct Route {
    router: Router,
    template: KeyTemplate,
}

impl Route {
    fn new(pattern: &str, template: &str) -> Self {
        let pattern = Pattern::parse(pattern).unwrap_or_else(|error| panic!("{error}"));
        let template =
            KeyTemplate::parse(template, &pattern).unwrap_or_else(|error| panic!("{error}"));
        Self {
            router: Router::new([&pattern]).0,
            template,
        }
    }

    /// The key of a request with this path and these values, by the display of their source.
    fn render(&self, path: &str, values: &[(&str, &str)]) -> Result<ResourceKey, String> {
        let path = CheckedPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(self.router.find(&path), Some(0), "{path:?}");
        self.template.render(&path, &mut |source| {
            let name = source.to_string();
            let value = values
                .iter()
                .find(|(known, _)| name == format!("`{{{known}}}`"));
            match value.map(|(_, value)| *value) {
                Some("!") => Err("is given twice; send it once".to_owned()),
                value => Ok(value.map(str::to_owned)),
            }
        })
    }

    fn could_yield(&self, key: &str) -> bool {
        let reach = |path: &CheckedPath| self.router.find(path).is_some();
        self.template.sample(key, reach).is_some()
    }

    fn key(&self, path: &str, values: &[(&str, &str)]) -> String {
        let key = self
            .render(path, values)
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(self.could_yield(key.as_str()), "{key}");
        key.to_string()
    }
}

#[test]
fn readable_keys() {
    for (pattern, template, path, expected) in [
        ("/orders/{id}", "order:{id}", "/orders/42", "order:42"),
        ("/orders/{id}", "order:{id}", "/orders/%34%32", "order:42"),
        ("/orders/{id}", "order:{id}", "/orders/a:b", "order:a%3Ab"),
        ("/orders/{id}", "order:{id}", "/orders/a%3ab", "order:a%3Ab"),
        (
            "/orders/{id}",
            "order:{id}",
            "/orders/order-7",
            "order:order-7",
        ),
        (
            "/orders/{id}",
            "order:{id}",
            "/orders/100%25",
            "order:100%25",
        ),
        ("/orders/{id}", "order:{id}", "/orders/a%2Fb", "order:a/b"),
        ("/orders/{id}", "order:{id}", "/orders/%C3%A9", "order:é"),
        ("/orders/{id}", "{id}", "/orders/a:b", "a:b"),
        ("/orders/{id}", "all-orders", "/orders/42", "all-orders"),
        ("/orders/{id}", "{id|int}", "/orders/007", "7"),
        ("/orders/{id}", "o:{id|int}", "/orders/-0", "o:0"),
        ("/orders/{id}", "o-{id|int}", "/orders/-7", "o-%2D7"),
        ("/orders/{id}", "o:{id|lower}", "/orders/A%C3%89", "o:aé"),
        (
            "/orders/{id}",
            "o:{ id | lower | int }",
            "/orders/07",
            "o:7",
        ),
        ("/{a}/{b}", "{a}:{b}", "/x:y/z", "x%3Ay:z"),
        ("/{a}/{b}", "{a}:{b}", "/x/y:z", "x:y%3Az"),
        ("/{a}/{b}", "{b}/{a}", "/x/y%2Fz", "y%2Fz/x"),
        ("/f/{*rest}", "file:{*rest}", "/f/a/b", "file:a/b"),
        ("/f/{*rest}", "file:{rest}", "/f/a/b/", "file:a/b"),
        ("/f/{*rest}", "file:{rest}", "/f/a%2Fb", "file:a%2Fb"),
        ("/f/{*rest}", "file:{rest|lower}", "/f/A/B", "file:a/b"),
        ("/{*path}", "{path}", "/", "/"),
        ("/{*path}", "{path}", "/a/b", "/a/b"),
        ("/{*path}", "{path}", "/a/b/", "/a/b"),
        ("/{*path}", "{path}", "/a//b", "/a/b"),
        ("/{*path}", "{path}", "/a%2Fb", "/a%2Fb"),
        ("/{*path}", "{*path}", "/a/b/", "a/b"),
        ("/{*path}", "{path|lower}", "/A/b", "/a/b"),
        ("/o/{id}/", "{path}", "/o/7/", "/o/7"),
        ("/o/{id}", "{path}:{id}", "/o/7", "/o/7:7"),
    ] {
        assert_eq!(
            Route::new(pattern, template).key(path, &[]),
            expected,
            "{template} {path}"
        );
    }
}

#[test]
fn keys_of_other_sources() {
    for (template, values, expected) in [
        (
            "{host}{path}",
            &[("host", "Example.com:80")] as &[_],
            "example.com/o/7",
        ),
        ("{host}:{path}", &[("host", "[::1]:80")], "[%3A%3A1]:/o/7"),
        (
            "{header.X-Tenant}:{id}",
            &[("header.x-tenant", "a:b")],
            "a%3Ab:7",
        ),
        ("{query.q}-{id}", &[("query.q", "a b/c")], "a b/c-7"),
        ("{json.order.id}/{id}", &[("json.order.id", "12")], "12/7"),
        (
            "{query.q|int}:{header.h|lower}",
            &[("query.q", "+07"), ("header.h", "A")],
            "7:a",
        ),
    ] {
        assert_eq!(
            Route::new("/o/{id}", template).key("/o/7", values),
            expected,
            "{template}"
        );
    }
    assert!(Route::new("/o/{id}", "{json.a}:{id}").template.uses_json());
    assert!(!Route::new("/o/{id}", "{query.a}:{id}").template.uses_json());
    let route = Route::new("/o/{id}", "{json.a.b}:{id}");
    let parts: Vec<_> = route.template.parts().cloned().collect();
    assert_eq!(
        parts,
        [
            Source::Json(vec!["a".into(), "b".into()]),
            Source::Path("id".into())
        ]
    );
}

#[test]
fn requests_without_a_key() {
    let route = Route::new("/o/{id}/{*rest}", "{query.q|int}:{*rest}");
    for (path, values, expected) in [
        (
            "/o/7/a",
            &[] as &[(&str, &str)],
            "`{query.q}`, and the request has none",
        ),
        (
            "/o/7/a",
            &[("query.q", "")],
            "`{query.q}`, and the request has none",
        ),
        (
            "/o/7",
            &[("query.q", "7")],
            "`{rest}`, and the request has none",
        ),
        (
            "/o/7/a",
            &[("query.q", "!")],
            "`{query.q}`: is given twice; send it once",
        ),
        (
            "/o/7/a",
            &[("query.q", "x")],
            "`{query.q}`: `x` is not a whole decimal number; send digits",
        ),
    ] {
        let error = route.render(path, values).expect_err(expected);
        assert!(
            error.starts_with(&format!("it needs {expected}")),
            "{error}"
        );
    }
    let route = Route::new("/o/{id}", "{json.a}");
    for (value, why) in [
        ("a\nb", "a control character"),
        (&"x".repeat(1025), "1025 bytes"),
    ] {
        let error = route.render("/o/7", &[("json.a", value)]).expect_err(why);
        assert!(error.contains(why), "{error}");
    }
    assert!(
        Route::new("/o/{id}", "{host}")
            .render("/o/7", &[("host", "a@b")])
            .is_err()
    );
}

#[test]
fn shapes_have_no_names() {
    for (pattern, template, shape) in [
        ("/o/{id}", "order:{id}", "order:{1}"),
        ("/o/{x}", "order:{x | lower}", "order:{1|lower}"),
        ("/{a}/{b}", "{b|int}-{a}", "{1|int}-{0}"),
        ("/{a}/{*rest}", "{a}:{rest}", "{0}:{*1}"),
        ("/o/{x}", "order:{x|plain}", "order:{1}"),
        ("/{*path}", "{path}", "/{path}"),
        (
            "/o",
            "{host}|{header.X-T}|{query.q}|{json.a.b}",
            "{host}|{header.x-t}|{query.q}|{json.a.b}",
        ),
    ] {
        let route = Route::new(pattern, template);
        let found = route.template.shape(|_| None).expect("a shape");
        assert_eq!(found.keys.0.replace('\u{1}', ""), shape);
    }
    let route = Route::new(
        "/{a}/{b}/{c}",
        "{a|plain}-{a}-{b|int}-{c}-{query.q|lower|plain}",
    );
    let open: Vec<String> = route
        .template
        .open_captures()
        .map(Source::to_string)
        .collect();
    assert_eq!(open, ["`{c}`"]);
}

#[test]
fn plain_changes_no_key_and_refuses_the_rest() {
    for (pattern, open, plain) in [
        ("/o/{id}", "order:{id}", "order:{id|plain}"),
        ("/o/{id}", "order-{id}", "order-{id|plain}"),
        ("/o/{id}", "order_{id}", "order_{id|plain}"),
        ("/o/{id}", "o:{id|lower}", "o:{id|plain|lower}"),
        ("/o/{id}", "o:{id|lower}", "o:{id|lower|plain}"),
        ("/{*rest}", "o:{rest}", "o:{rest|plain}"),
        ("/{*rest}", "{path}", "{path|plain}"),
        ("/o/{id}", "{path}", "{path|plain}"),
        ("/o/{id}", "{path}", "{path|lower|plain}"),
    ] {
        let (open, plain) = (Route::new(pattern, open), Route::new(pattern, plain));
        let lower = plain.template.as_str().contains("lower");
        for id in ["7", "a-b_C", "-", "_", "007", "%37", "a%2Db"] {
            let path = format!("/o/{id}");
            let same = open.key(&path, &[]);
            let same = if lower { same.to_lowercase() } else { same };
            assert_eq!(plain.key(&path, &[]), same, "{path}");
        }
        for id in [
            "7.json",
            "7.",
            "7%20",
            "7+",
            "+7",
            "%2B7",
            "7%20.",
            "7~",
            "7:8",
            "7,8",
            "7@x",
            "%C3%A9",
            "%E2%84%AA",
            "7%E2%80%8B",
            "7%2Ejson",
            "7!",
            "(7)",
            "7*",
            "7=8",
            "7&8",
            "7$",
            "7'",
        ] {
            let path = format!("/o/{id}");
            open.key(&path, &[]);
            let error = plain.render(&path, &[]).expect_err(&path);
            assert!(error.contains("letters, digits, `-` and `_`"), "{error}");
        }
    }
    // Each segment of a list by itself, and sources outside the path as well.
    let route = Route::new("/{*rest}", "{rest|plain}");
    assert_eq!(route.key("/a/b", &[]), "a/b");
    assert!(route.render("/a/b.json", &[]).is_err() && route.render("/a.x/b", &[]).is_err());
    let route = Route::new("/o", "{query.q|plain}:{header.h|int|plain}");
    assert_eq!(
        route.key("/o", &[("query.q", "a"), ("header.h", "007")]),
        "a:7"
    );
    for (query, header) in [("a b", "7"), ("a", "+7"), ("a", "7.0")] {
        let values = [("query.q", query), ("header.h", header)];
        assert!(route.render("/o", &values).is_err(), "{values:?}");
    }
}

#[test]
fn templates_that_cannot_be_used() {
    for (pattern, template, what) in [
        ("/o/{id}", "", "it is empty"),
        ("/o/{id}", "{id", "no `}`"),
        ("/o/{id}", "id}", "`}` (U+007D)"),
        ("/o/{id}", "{}", "not known"),
        ("/o/{id}", "{Id}", "there are `{id}`"),
        ("/o", "{id}", "there are `{path}`"),
        ("/o/{id}", "{*id}", "there are `{id}`"),
        ("/o/{id}", "{id|upper}", "no filter `upper`"),
        ("/o/{id}", "{id|}", "no filter ``"),
        ("/o/{*rest}", "{*rest|int}", "no filter `int` here"),
        ("/o/{id}", "{path|int}", "no filter `int` here"),
        ("/o/{id}", "{id|Plain}", "no filter `Plain`"),
        ("/o/{path}", "{path}", "rename the capture"),
        ("/o/{*path}", "{path}", "rename the capture"),
        ("/o/{host}", "{host}", "rename the capture"),
        ("/o/{id}", "{header.}", "names nothing"),
        ("/o/{id}", "{query.}", "names nothing"),
        ("/o/{id}", "{query.[a]}", "begins with a bracket"),
        ("/o/{id}", "{query.][]x}", "begins with a bracket"),
        ("/o/{id}", "{json.}", "names nothing"),
        ("/o/{id}", "{json.a..b}", "empty member name"),
        ("/o/{id}", "{header.a b}", "no header"),
        ("/o/{id}", "{header.Host}", "write `{host}`"),
        ("/o/{id}", "{header.X-Fencing-Token}", "fence nothing"),
        ("/o/{id}", "{header.x_fencing_token}", "fence nothing"),
        ("/o/{id}", "{header.x-fencing-operation}", "fence nothing"),
        ("/o/{id}", "a%{id}", "stands for escapes"),
        ("/o/{id}", "a {id}", "U+0020"),
        ("/o/{id}", "a\n{id}", "U+000A"),
        ("/o/{id}", "a→{id}", "U+2192"),
        ("/{a}/{b}", "{a}{b}", "nothing separates"),
        ("/{a}/{b}", "{a}x{b}", "nothing separates"),
        ("/{a}/{b}", "{a}9{b}", "nothing separates"),
        ("/{a}/{*r}", "{*r}/{a}", "(not `/` behind a list"),
        ("/{a}/{*r}", "{*r}{path}", "(not `/` behind a list"),
        ("/{a}/{*r}", "{path}/{a}", "(not `/` behind a list"),
    ] {
        let pattern = Pattern::parse(pattern).unwrap();
        let error = KeyTemplate::parse(template, &pattern).expect_err(template);
        assert!(error.contains(what), "{error}");
        assert!(
            error.starts_with(&format!("resource `{template}`: ")),
            "{error}"
        );
    }
    let pattern = Pattern::parse("/{id}").unwrap();
    assert!(KeyTemplate::parse("заказ:{id}", &pattern).is_ok());
}

#[test]
fn what_could_be_a_key() {
    for (pattern, template, key, expected) in [
        ("/orders/{id}", "order:{id}", "order:42", true),
        ("/orders/{id}", "order:{id}", "order:a%3Ab", true),
        ("/orders/{id}", "order:{id}", "order:a:b", false),
        ("/orders/{id}", "order:{id}", "order:a%3ab", false),
        ("/orders/{id}", "order:{id}", "order:%41", false),
        ("/orders/{id}", "order:{id}", "order:", false),
        ("/orders/{id}", "order:{id}", "order", false),
        ("/orders/{id}", "order:{id}", "orders:42", false),
        ("/orders/{id}", "order:{id}", "", false),
        ("/orders/{id}", "order:{id}", "order:..", false),
        ("/orders/{id}", "order:{id}", "order:a\nb", false),
        ("/orders/{id}", "{id}!", "42!", true),
        ("/orders/{id}", "{id}!", "42", false),
        ("/orders/{id}", "{id}!", "!", false),
        ("/orders/{id}", "all", "all", true),
        ("/orders/{id}", "all", "all2", false),
        ("/orders/{id}", "{id|int}", "7", true),
        ("/orders/{id}", "{id|int}", "07", false),
        ("/orders/{id}", "{id|int}", "x", false),
        ("/orders/{id}", "{id|plain}", "a-B_7", true),
        ("/orders/{id}", "{id|plain}", "7.json", false),
        ("/orders/{id}", "{id|plain}", "7 ", false),
        ("/orders/{id}", "o-{id|plain}", "o-a%2Db", true),
        ("/orders/{id}", "o:{id|plain}", "o:a%3Ab", false),
        ("/orders/{id}", "{id|lower|plain}", "A", false),
        ("/{a}/{b}", "{a|plain}:{a}", "x:x", true),
        ("/{a}/{b}", "{a|plain}:{a}", "x.y:x.y", false),
        ("/{a}/{b}", "{a}:{a|plain}", "x.y:x.y", false),
        ("/{a}/{b}", "{a|plain}:{a|lower}", "X:x", true),
        ("/{a}/{b}", "{a|plain}:{a|lower}", "X:y", false),
        ("/o/{*rest}", "{path|plain}", "/o/7/x", true),
        ("/o/{*rest}", "{path|plain}", "/o/7.x", false),
        ("/o/{id}", "{path|plain}:{id}", "/o/7:8", false),
        ("/o/{id}", "{path|plain}:{id}", "/o/7:7", true),
        ("/orders/{id}", "{id|lower}", "a", true),
        ("/orders/{id}", "{id|lower}", "A", false),
        ("/{a}/{b}", "{a}:{b}", "x:y", true),
        ("/{a}/{b}", "{a}:{b}", "x:y:z", false),
        ("/{a}/{b}", "{a}:{b}", "x:", false),
        ("/{a}/{b}", "{a}:{b}", ":y", false),
        ("/{a}/{b}", "{a}:{a}", "x:x", true),
        ("/{a}/{b}", "{a}:{a}", "x:y", false),
        ("/{a}/{b}", "{a}:{a|lower}", "X:x", true),
        ("/{a}/{b}", "{a}:{a|lower}", "X:y", false),
        ("/orders/{*rest}", "{path}", "/orders/1/2", true),
        ("/orders/{*rest}", "{path}", "/orders", true),
        ("/orders/{*rest}", "{path}", "/users/1", false),
        ("/orders/{*rest}", "{path}", "/orders/", false),
        ("/orders/{*rest}", "{path}", "/orders//1", false),
        ("/orders/{*rest}", "{path}", "orders/1", false),
        ("/orders/{*rest}", "{path}", "/", false),
        ("/Orders/{id}", "{path|lower}", "/orders/a", true),
        ("/Orders/{id}", "{path}", "/orders/a", false),
        ("/o/{id}", "{path}:{id}", "/o/7:7", true),
        ("/o/{id}", "{path}:{id}", "/o/7:8", false),
        ("/{*path}", "{path}", "/", true),
        ("/{*path}", "{path}", "", false),
        ("/o/{id}", "{host}{path}", "example.com/o/7", true),
        ("/o/{id}", "{host}{path}", "Example.com/o/7", false),
        ("/o/{id}", "{header.h}:{id}", " x:7", false),
    ] {
        let route = Route::new(pattern, template);
        assert_eq!(route.could_yield(key), expected, "{template} {key}");
    }
    let route = Route::new("/{id}", "{id}");
    assert!(route.could_yield(&"x".repeat(1024)));
    assert!(!route.could_yield(&"x".repeat(1025)));
}

/// Every text of 1 to 3 characters of a small alphabet that has all the signs that could mislead.
fn short_texts(alphabet: &[&str]) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut all = Vec::new();
    for _ in 0..3 {
        texts = texts
            .iter()
            .flat_map(|text| alphabet.iter().map(move |sign| format!("{text}{sign}")))
            .collect();
        all.extend_from_slice(&texts);
    }
    all
}

#[test]
fn no_two_pairs_of_short_texts_share_a_key() {
    let texts = short_texts(&["a", ":", "/", "%", "3", "A"]);
    for template in [
        "{query.a}:{query.b}",
        "{query.a}/{query.b}",
        "3A:{query.a}:3A{query.b}:A",
    ] {
        let route = Route::new("/", template);
        let mut seen = HashMap::new();
        for a in texts.iter().step_by(2) {
            for b in &texts {
                let key = route.key("/", &[("query.a", a), ("query.b", b)]);
                if let Some(other) = seen.insert(key.clone(), (a, b)) {
                    panic!("{other:?} and {:?} share {key}", (a, b));
                }
            }
        }
    }
}

#[test]
fn no_two_lists_of_segments_share_a_key() {
    let texts = short_texts(&["x", "%2F", ":", "%25"]);
    let route = Route::new("/{*rest}", "{*rest}:{path}");
    let mut seen = HashMap::new();
    for a in &texts {
        for b in texts.iter().map(String::as_str).chain([""]) {
            let path = if b.is_empty() {
                format!("/{a}")
            } else {
                format!("/{a}/{b}")
            };
            let key = route.key(&path, &[]);
            if let Some(other) = seen.insert(key.clone(), path.clone()) {
                panic!("{other} and {path} share {key}");
            }
        }
    }
}

fn part() -> impl Strategy<Value = String> {
    "[a:/%\\-.|;é2F ]{1,6}"
}

proptest! {
    #[test]
    fn equal_keys_mean_equal_parts(
        signs in ("[a-]{0,2}", "[:/a.-]{0,2}[:/.-]", "[a-]{0,2}[:|.]", "[:a/-]{0,2}"),
        one in (part(), part(), part()),
        two in (part(), part(), part()),
    ) {
        let template =
            format!("{}{{query.a}}{}{{query.b}}{}{{json.c}}{}", signs.0, signs.1, signs.2, signs.3);
        let route = Route::new("/", &template);
        let key = |(a, b, c): &(String, String, String)| {
            route.key("/", &[("query.a", a), ("query.b", b), ("json.c", c)])
        };
        prop_assert_eq!(key(&one) == key(&two), one == two);
        prop_assert_eq!(key(&one), key(&one));
    }

    /// The parts of one request moved about: the case in which separators mislead.
    #[test]
    fn moving_the_separator_changes_the_key(text in part(), cut in 0_usize..6, again in 0_usize..6) {
        let route = Route::new("/", "{query.a}:{query.b}");
        let split = |at: usize| {
            let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            let (a, b) = text.split_at(at.unwrap_or(0));
            (format!("a{a}"), format!("b{b}"))
        };
        let key = |(a, b): &(String, String)| route.key("/", &[("query.a", a), ("query.b", b)]);
        let (one, two) = (split(cut), split(again));
        prop_assert_eq!(key(&one) == key(&two), one == two);
    }

    /// A key that `could_yield` accepts is a key of the request with the same parts.
    #[test]
    fn possible_keys_are_those_that_render_gives(key in "[ab:%325AF/]{1,9}") {
        let route = Route::new("/", "{query.a}:{query.b}");
        let parts = key.split_once(':').map(|(a, b)| {
            let decode = |text: &str| {
                query_value(&format!("v={}", text.replace('+', "%2B")), "v").ok().flatten()
            };
            (decode(a), decode(b))
        });
        let rendered = match parts {
            Some((Some(a), Some(b))) => route.render("/", &[("query.a", &a), ("query.b", &b)]).ok(),
            _ => None,
        };
        let same = rendered.is_some_and(|rendered| rendered.as_str() == key);
        prop_assert_eq!(route.could_yield(&key), same);
    }

    #[test]
    fn no_text_panics(template in "[a-c{}:|%./*]{0,12}", key in any::<String>()) {
        let pattern = Pattern::parse("/{a}/{*b}").unwrap();
        if let Ok(template) = KeyTemplate::parse(&template, &pattern) {
            let _ = template.sample(&key, |_| false);
        }
    }
}
