//! Members of JSON bodies that are found, and bodies that are refused.

use super::*;

fn read(body: &str, wanted: &[&str]) -> Result<Vec<Option<String>>, String> {
    let paths: Vec<Vec<String>> = wanted
        .iter()
        .map(|path| path.split('.').map(str::to_owned).collect())
        .collect();
    let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    members(body.as_bytes(), &paths)
}

#[test]
fn found() {
    for (body, expected) in [
        (r#"{"a":"x"}"#, Some("x")),
        (r#" { "b" : [1,{}], "a" : "x" } "#, Some("x")),
        (r#"{"\u0061":"\u0078"}"#, Some("x")),
        (r#"{"a":""}"#, Some("")),
        (r#"{"a":"é \" / \ud83d\ude00"}"#, Some("é \" / 😀")),
        (r#"{"a":7}"#, Some("7")),
        (r#"{"a":"7"}"#, Some("7")),
        (r#"{"a":0}"#, Some("0")),
        (r#"{"a":-7}"#, Some("-7")),
        (r#"{"a":9007199254740991}"#, Some("9007199254740991")),
        (r#"{"a":-9007199254740991}"#, Some("-9007199254740991")),
        (r#"{"a":"9007199254740993"}"#, Some("9007199254740993")),
        (r#"{"b":9007199254740993,"a":1}"#, Some("1")),
        (r#"{"b":1,"b":2,"a":"x"}"#, Some("x")),
        (r#"{"b\u0000":1,"a":"x"}"#, Some("x")),
        (r#"{"a":true}"#, Some("true")),
        (r#"{"a":false}"#, Some("false")),
        (r#"{"b":1}"#, None),
        ("{}", None),
        ("[]", None),
        ("7", None),
        ("null", None),
        (r#"[{"a":1}]"#, None),
        (r#"{"b":{"c":1,"c":2},"a":"x"}"#, Some("x")),
    ] {
        assert_eq!(
            read(body, &["a"]),
            Ok(vec![expected.map(str::to_owned)]),
            "{body}"
        );
    }
}

#[test]
fn found_below() {
    let body = r#"{"o":{"id":7,"p":{"q":"r"}},"t":"x","n":null}"#;
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        read(body, &["o.id", "t", "o.p.q", "o.x", "t.x", "n.x", "o.id"]),
        Ok(vec![
            text("7"),
            text("x"),
            text("r"),
            None,
            None,
            None,
            text("7")
        ])
    );
    assert_eq!(read("{\"a\":1}", &[]), Ok(vec![]));
}

#[test]
fn refused() {
    for (body, what) in [
        ("", "EOF"),
        ("{", "EOF"),
        (r#"{"a":"x""#, "EOF"),
        (r#"{"a":"x"}}"#, "trailing"),
        (r#"{"a":"x"} {"a":"y"}"#, "trailing"),
        (r#"{"a":"x"} x"#, "trailing"),
        (r#"{"a":"x",}"#, "key must be a string"),
        (r#"{'a':"x"}"#, "key must be a string"),
        (r#"{"a":01}"#, "number"),
        (r#"{"a":+1}"#, "expected value"),
        (r#"{"a":NaN}"#, "expected"),
        (r#"{"a":"\ud800"}"#, "hex escape"),
        (r#"{"a":"\ud800\u0041"}"#, "surrogate"),
        ("{\"a\":\"x\ny\"}", "control character"),
        (r#"{"a":/**/1}"#, "expected value"),
        (r#"{"a":null}"#, "null"),
        (r#"{"a":{}}"#, "an object"),
        (r#"{"a":{"b":1}}"#, "an object"),
        (r#"{"a":[]}"#, "an array"),
        (r#"{"a":["x"]}"#, "an array"),
        (r#"{"a":1.0}"#, "whole number"),
        (r#"{"a":1e0}"#, "whole number"),
        (r#"{"a":-0}"#, "whole number"),
        (r#"{"a":0.5}"#, "whole number"),
        (r#"{"a":9007199254740992}"#, "whole number"),
        (r#"{"a":9007199254740993}"#, "whole number"),
        (r#"{"a":-9007199254740992}"#, "whole number"),
        (r#"{"a":18446744073709551615}"#, "whole number"),
        (r#"{"a":-9223372036854775808}"#, "whole number"),
        (r#"{"a":18446744073709551616}"#, "whole number"),
        (r#"{"a":-9223372036854775809}"#, "whole number"),
        (r#"{"a":1e999}"#, "out of range"),
        (r#"{"a":"x","a":"y"}"#, "given twice"),
        (r#"{"a":"x","a":"x"}"#, "given twice"),
        (r#"{"a":"x","\u0061":"y"}"#, "given twice"),
        (r#"{"a":"x","A":"y"}"#, "for `a`"),
        (r#"{"a":"x","a\u0000":"y"}"#, "for `a`"),
        (r#"{"A\u0000b":"y"}"#, "for `a`"),
        (r#"{"A":"y"}"#, "for `a`"),
    ] {
        let error = read(body, &["a"]).expect_err(body);
        assert!(error.contains(what), "{body}: {error}");
    }
    assert!(read(r#"{"o":{"a":1,"a":2}}"#, &["o.a"]).is_err());
    assert!(read(r#"{"o":{"a":1},"o":{"a":2}}"#, &["o.a"]).is_err());
    assert!(read(r#"{"o":{"a":1},"O":{"a":2}}"#, &["o.a"]).is_err());
    assert!(read(r#"{"k":1,"\u212a":2}"#, &["k"]).is_err());
    assert!(read(r#"{"o":{"a":1},"o.a":2}"#, &["o.a"]).is_err());
    assert!(read(r#"{"o.A":2}"#, &["o.a"]).is_err());
    assert!(read(r#"{"o":{"a.b":2}}"#, &["o.a.b"]).is_err());
    assert!(read(r#"{"a":1,"a.b":2}"#, &["a"]).is_ok());
    let refused = |body: &[u8]| members(body, &[]).expect_err("refused");
    assert!(refused(b"\xef\xbb\xbf{}").contains("byte order mark"));
    assert!(refused(b"{\"b\":\"\xe9\"}").contains("not UTF-8 (byte 7)"));
    assert!(members(b"{\0\"\0a\0", &[]).is_err());
}

#[test]
fn depth_is_no_matter() {
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    assert_eq!(
        read(&format!(r#"{{"b":{deep},"a":1}}"#), &["a"]),
        Ok(vec![Some("1".into())])
    );
    let deep = r#"{"a":"#.repeat(200_000) + "1" + &"}".repeat(200_000);
    assert_eq!(read(&deep, &["b"]), Ok(vec![None]));
}
