//! Tests of the normal forms: texts that mean the same get one key.

use super::*;
use proptest::prelude::*;

#[test]
fn case() {
    for (a, b) in [
        ("Order", "oRDER"),
        ("ΑΣ", "ας"),
        ("ΑΣ", "ασ"),
        ("STRASSE", "straße"),
        ("straẞe", "strasse"),
        ("É", "é"),
        ("\u{212a}", "k"),
        ("Ж", "ж"),
    ] {
        assert_eq!(fold_case(a), fold_case(b), "{a} {b}");
    }
    assert_eq!(fold_case("ABC-12"), "abc-12");
    assert_ne!(fold_case("a"), fold_case("b"));
}

#[test]
fn folding_again_changes_nothing() {
    for sign in '\0'..='\u{1ffff}' {
        let text = sign.to_string();
        let folded = fold_case(&text);
        assert_eq!(fold_case(&folded), folded, "{text}");
        assert_eq!(fold_case(&text.to_uppercase()), folded, "{text}");
        assert_eq!(fold_case(&text.to_lowercase()), folded, "{text}");
    }
}

#[test]
fn plain_names() {
    for text in [
        "7",
        "a",
        "Z",
        "-",
        "_",
        "007",
        "-7",
        "7f3b6c1e-0000-4000-8000-000000000000",
    ] {
        assert_eq!(plain(text), Ok(()), "{text}");
    }
    for text in [
        "",
        "7.json",
        "7.",
        ".7",
        "7 ",
        " 7",
        "7+",
        "+7",
        "7;x",
        "7,8",
        "7:8",
        "7~",
        "7%",
        "a/b",
        "é",
        "e\u{301}",
        "\u{212a}",
        "٤",
        "７",
        "7\u{200b}",
        "7\0",
        "7\n",
        "{7}",
        "7'",
    ] {
        assert!(plain(text).is_err(), "{text:?}");
    }
    for byte in 0..=u8::MAX {
        let text = format!("a{}", char::from(byte));
        let taken = byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        assert_eq!(plain(&text).is_ok(), taken, "{text:?}");
    }
}

#[test]
fn integers() {
    for (text, expected) in [
        ("0", "0"),
        ("7", "7"),
        ("007", "7"),
        ("+7", "7"),
        ("-7", "-7"),
        ("-007", "-7"),
        ("-0", "0"),
        ("000", "0"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        ),
    ] {
        assert_eq!(integer(text).as_deref(), Ok(expected));
    }
    for text in [
        "", "+", "-", "--1", "+-1", "1.0", "1e3", "0x1", " 1", "1 ", "1_0", "٤", "a",
    ] {
        assert!(integer(text).is_err(), "{text}");
    }
}

#[test]
fn hosts() {
    for (host, expected) in [
        ("example.com", "example.com"),
        ("Example.COM", "example.com"),
        ("example.com:80", "example.com"),
        ("example.com.", "example.com"),
        ("example.com.:8080", "example.com"),
        ("127.0.0.1:7080", "127.0.0.1"),
        ("my_service", "my_service"),
        ("[::1]", "[::1]"),
        ("[0:0::1]:80", "[::1]"),
        ("[FE80::A]", "[fe80::a]"),
    ] {
        assert_eq!(host_name(host).as_deref(), Ok(expected));
    }
    for host in [
        "",
        ".",
        "a..b",
        ".a",
        "a b",
        "a@b",
        "a/b",
        "a%41",
        "é",
        "a:b",
        "a:",
        "a:80:81",
        "::1",
        "[::1",
        "[]",
        "[zz]",
        "[::1]80",
        "[::1]:x",
        "a,b",
        "example.com..",
    ] {
        assert!(host_name(host).is_err(), "{host}");
    }
}

fn escape(set: Escaped, text: &str) -> String {
    let mut escaped = String::new();
    set.push(&mut escaped, text);
    escaped
}

#[test]
fn separators_and_nothing_else() {
    let set = Escaped::new("order:9é-", false);
    for (text, expected) in [
        ("42", "42"),
        ("order", "order"),
        ("a:b", "a%3Ab"),
        ("a-b", "a%2Db"),
        ("100%", "100%25"),
        ("a%3Ab", "a%253Ab"),
        ("a/b é _", "a/b é _"),
    ] {
        assert_eq!(escape(set, text), expected);
        assert_eq!(set.undo(expected).as_deref(), Some(text));
    }
    assert_eq!(escape(Escaped::new("", true), "a/b"), "a%2Fb");
    for never in [
        "a:b", "%3a", "%41", "%", "%3", "%zz", "%é", "%C3%A9", "a%2Fb",
    ] {
        assert_eq!(set.undo(never), None, "{never}");
    }
}

proptest! {
    #[test]
    fn forms_are_final(text in "[-+0-9a-zA-Z.:\\[\\]]{0,12}") {
        for form in [integer, host_name] {
            if let Ok(normal) = form(&text) {
                prop_assert_eq!(form(&normal), Ok(normal));
            }
        }
    }

    #[test]
    fn undo_undoes(literals in "[ -~]{0,6}", lists: bool, text in any::<String>()) {
        let set = Escaped::new(&literals, lists);
        let escaped = escape(set, &text);
        prop_assert!(!escaped.contains(|sign| set.ends(sign, false)));
        prop_assert_eq!(set.undo(&escaped), Some(text));
    }
}
