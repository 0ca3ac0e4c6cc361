//! Tests of checked paths: the refused spellings, and the results of the others.

use super::*;
use proptest::prelude::*;

fn segments(raw: &str) -> Vec<String> {
    let path = CheckedPath::parse(raw).unwrap_or_else(|error| panic!("{raw}: {error}"));
    path.segments_from(0).map(str::to_owned).collect()
}

fn allow(names: &[&str]) -> Allow {
    let mut allow = Allow::default();
    for name in names {
        assert!(allow.set(name), "{name}");
    }
    allow
}

#[test]
fn one_thing_in_many_spellings_is_one_path() {
    for (raw, expected) in [
        ("/", &[] as &[&str]),
        ("/orders/42", &["orders", "42"]),
        ("/%6frders/%34%32", &["orders", "42"]),
        ("/%6Frders/4%32", &["orders", "42"]),
        ("/a%7Eb/%2D%5f%2E%7e", &["a~b", "-_.~"]),
        ("/a%7eb", &["a~b"]),
        ("/%C3%A9", &["é"]),
        ("/%c3%a9", &["é"]),
        ("/a%20b", &["a b"]),
        ("/a+b", &["a+b"]),
        ("/100%25", &["100%"]),
        ("/100%25/41", &["100%", "41"]),
        ("/%254", &["%4"]),
        ("/%25%25of", &["%%of"]),
        ("/a%3Ab/a:b", &["a:b", "a:b"]),
        ("/!$&'()*+,=:@", &["!$&'()*+,=:@"]),
        ("/...", &["..."]),
        ("/.a/a./..a/a..", &[".a", "a.", "..a", "a.."]),
    ] {
        assert_eq!(segments(raw), expected, "{raw}");
        let path = CheckedPath::parse(raw).unwrap();
        assert_eq!(path.oddity_not_in(Allow::default()), None, "{raw}");
    }
}

#[test]
fn what_differs_in_normalization_is_two_things() {
    assert_ne!(segments("/%C3%A9"), segments("/e%CC%81"));
}

#[test]
fn trailing_slash() {
    for (raw, expected) in [
        ("/", false),
        ("/a", false),
        ("/a/", true),
        ("/a//", true),
        ("//", false),
    ] {
        assert_eq!(
            CheckedPath::parse(raw).unwrap().trailing_slash(),
            expected,
            "{raw}"
        );
    }
}

#[test]
fn refused_for_good() {
    let mut every = Allow::default();
    for name in Allow::NAMES {
        every.set(name);
    }
    for (raw, what) in [
        ("", PathProblem::NoLeadingSlash),
        ("*", PathProblem::NoLeadingSlash),
        ("orders", PathProblem::NoLeadingSlash),
        ("http://x/", PathProblem::NoLeadingSlash),
        ("/.", PathProblem::DotSegment),
        ("/..", PathProblem::DotSegment),
        ("/a/./b", PathProblem::DotSegment),
        ("/a/../b", PathProblem::DotSegment),
        ("/a/..", PathProblem::DotSegment),
        ("/a/../", PathProblem::DotSegment),
        ("/%2e", PathProblem::DotSegment),
        ("/%2E%2e/b", PathProblem::DotSegment),
        ("/.%2e/b", PathProblem::DotSegment),
        ("/..;/b", PathProblem::DotSegment),
        ("/..;x=1/b", PathProblem::DotSegment),
        ("/.%3Bx", PathProblem::DotSegment),
        ("/a%2f..%2fb", PathProblem::DotSegment),
        ("/..%2Fb", PathProblem::DotSegment),
        ("/a%5C..", PathProblem::Backslash),
        ("/..\\b", PathProblem::Backslash),
        ("/%2F..;a", PathProblem::DotSegment),
        ("/..%3Fa", PathProblem::EncodedEnd),
        ("/.%23", PathProblem::EncodedEnd),
        ("/%252e%252E", PathProblem::DoubleEncoding),
        ("/.%25%32e", PathProblem::DoubleEncoding),
        ("/%2525252e%2e", PathProblem::DoubleEncoding),
        ("/a%252f..%255cb", PathProblem::DoubleEncoding),
        ("/..%25%33%46", PathProblem::DoubleEncoding),
        ("/a\\b", PathProblem::Backslash),
        ("/a%5Cb", PathProblem::Backslash),
        ("/a%5cb", PathProblem::Backslash),
        ("/a%3Fb", PathProblem::EncodedEnd),
        ("/a%3f", PathProblem::EncodedEnd),
        ("/%23a", PathProblem::EncodedEnd),
        ("/a%2541", PathProblem::DoubleEncoding),
        ("/%25%34%31", PathProblem::DoubleEncoding),
        ("/%25254", PathProblem::DoubleEncoding),
        ("/50%25de", PathProblem::DoubleEncoding),
        ("/%", PathProblem::BrokenEscape),
        ("/%4", PathProblem::BrokenEscape),
        ("/%4/2", PathProblem::BrokenEscape),
        ("/%zz", PathProblem::BrokenEscape),
        ("/%u0041", PathProblem::BrokenEscape),
        ("/%+1", PathProblem::BrokenEscape),
        ("/%%34", PathProblem::BrokenEscape),
        ("/%80", PathProblem::NotUtf8),
        ("/%E9", PathProblem::NotUtf8),
        ("/%C3", PathProblem::NotUtf8),
        ("/%C0%AF", PathProblem::NotUtf8),
        ("/%C0%AE%C0%AE", PathProblem::NotUtf8),
        ("/%ED%A0%80", PathProblem::NotUtf8),
        ("/%C3/%A9", PathProblem::NotUtf8),
        ("/%00", PathProblem::Control),
        ("/a%00b", PathProblem::Control),
        ("/a%0Ab", PathProblem::Control),
        ("/a%0d%0ab", PathProblem::Control),
        ("/%7F", PathProblem::Control),
        ("/%1f", PathProblem::Control),
        ("/%C2%85", PathProblem::Control),
        ("/a\tb", PathProblem::Control),
        ("/a\0b", PathProblem::Control),
        ("/é", PathProblem::NotInAPath),
        ("/a b", PathProblem::NotInAPath),
        ("/a?b", PathProblem::NotInAPath),
        ("/a#b", PathProblem::NotInAPath),
        ("/#", PathProblem::NotInAPath),
    ] {
        let error = CheckedPath::parse(raw).map_or_else(Some, |path| path.oddity_not_in(every));
        let error = error.expect(raw);
        assert_eq!(error.what, what, "{raw}");
        assert!(error.to_string().len() > 20, "{error}");
    }
}

#[test]
fn refused_unless_allowed() {
    for (raw, name, expected) in [
        ("/a;v=1", "semicolon", &["a;v=1"] as &[&str]),
        ("/a%3Bv=1", "semicolon", &["a;v=1"]),
        ("/a%3bv=1", "semicolon", &["a;v=1"]),
        ("/;", "semicolon", &[";"]),
        ("//a", "empty-segments", &["a"]),
        ("/a//b", "empty-segments", &["a", "b"]),
        ("/a///b", "empty-segments", &["a", "b"]),
        ("/a//", "empty-segments", &["a"]),
        ("//", "empty-segments", &[]),
        ("/a%2Fb", "encoded-slash", &["a/b"]),
        ("/a%2fb", "encoded-slash", &["a/b"]),
        ("/[1]", "raw-characters", &["[1]"]),
        ("/a|b", "raw-characters", &["a|b"]),
        ("/\"<>^`{}", "raw-characters", &["\"<>^`{}"]),
    ] {
        let path = CheckedPath::parse(raw).unwrap_or_else(|error| panic!("{raw}: {error}"));
        assert_eq!(segments(raw), expected, "{raw}");
        let refused = path.oddity_not_in(Allow::default()).expect(raw);
        assert!(
            refused.to_string().contains(&format!("allow: [{name}]")),
            "{refused}"
        );
        assert_eq!(path.oddity_not_in(allow(&[name])), None, "{raw}");
        for other in Allow::NAMES.iter().filter(|other| **other != name) {
            assert_eq!(
                path.oddity_not_in(allow(&[other])),
                Some(refused),
                "{raw} {other}"
            );
        }
    }
}

#[test]
fn the_first_refused_oddity_is_named_with_its_place() {
    let path = CheckedPath::parse("/a//b;c%2Fd").unwrap();
    let offset = |names: &[&str]| path.oddity_not_in(allow(names)).map(|a| a.at);
    assert_eq!(offset(&[]), Some(3));
    assert_eq!(offset(&["empty-segments"]), Some(5));
    assert_eq!(offset(&["empty-segments", "semicolon"]), Some(7));
    assert_eq!(
        offset(&["empty-segments", "semicolon", "encoded-slash"]),
        None
    );
    assert_eq!(
        path.oddity_not_in(Allow::default()).unwrap().to_string(),
        "byte 4 of the path: an empty segment (`//`), which some servers drop; send a single \
         `/`, or put `allow: [empty-segments]` on the route if it is right for the upstream"
    );
}

#[test]
fn unknown_names_are_not_set() {
    let mut allow = Allow::default();
    assert!(!allow.set("dot-segments"));
    assert!(!allow.set(""));
    assert_eq!(allow, Allow::default());
    assert!(allow.set("semicolon") && allow.allows("semicolon"));
    assert!(!allow.allows("encoded-slash"));
}

proptest! {
    /// Any text comes back as itself after escaping in any style.
    #[test]
    fn escaping_round_trips(text in "[^\\p{C}]{1,12}", lower in any::<bool>(), all in any::<bool>()) {
        prop_assume!(!hides_dot_segment(&text));
        let mut raw = String::from("/");
        for byte in text.bytes() {
            if !all && (byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)) {
                raw.push(char::from(byte));
            } else if lower {
                raw.extend(["%".to_owned(), format!("{byte:02x}")]);
            } else {
                raw.extend(["%".to_owned(), format!("{byte:02X}")]);
            }
        }
        let path = CheckedPath::parse(&raw).unwrap();
        prop_assert_eq!(path.segments_from(0).collect::<Vec<_>>(), [text]);
    }

    /// No input panics, and an accepted path has no empty, dot or control segment.
    #[test]
    fn what_passes_is_clean(raw in "/[a./%;\\\\0-9a-f\u{e9} \\x00-\\x7f]{0,24}") {
        if let Ok(path) = CheckedPath::parse(&raw) {
            for segment in path.segments_from(0) {
                prop_assert!(!segment.is_empty() && segment != "." && segment != "..");
                prop_assert!(!has_control(segment));
                let odd = segment.contains([';', '\\', '/']);
                prop_assert!(!odd || path.oddity_not_in(Allow::default()).is_some());
            }
        }
    }
}
