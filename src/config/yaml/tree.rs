//! [`parse`]: the configuration as it was written, before anything is read into it: a JSON value of
//! maps, lists and texts. The report keeps the line of each.
//!
//! Scalars stay the text that was written (`1.10` stays `1.10`, `off` is no boolean); the field
//! decides what a text means. Flags and environment variables are put into the same tree. Their
//! values pass the same checks, and a problem names the flag in place of a line.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::problems::{ConfigPlace, Report, masked};

/// Parses YAML. Problems and places go to `report`. `None`: the text is not YAML at all.
pub(in crate::config) fn parse(text: &str, report: &mut Report) -> Option<Value> {
    // Duplicates pass here and are reported below with both lines; merge keys would hide some.
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        with_snippet: false,
    };
    // A carriage return alone ends a line, too (YAML 1.2.2, 5.4).
    let mut lines = text.split(['\n', '\r']);
    if lines.all(|line| line.is_empty() || line.starts_with('#')) {
        return Some(Value::Null);
    }
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(raw) => {
            report.locate(String::new(), ConfigPlace::Line(raw.referenced.line()));
            Some(plant(raw, "", text, report))
        }
        Err(error) => {
            let place = error
                .location()
                .map_or(ConfigPlace::Nowhere, |l| ConfigPlace::Line(l.line()));
            // A snippet or a value could hold a password, so the message has neither.
            let message = format!("this is not valid YAML: {}", error.without_snippet());
            report.error_at(place, "", message, "");
            None
        }
    }
}

/// Sets the value at a path of map keys (`store.url`), creating maps on the way. A value that is not
/// a map stays, and is reported when the tree is read.
pub(in crate::config) fn set(
    tree: &mut Value,
    path: &str,
    value: Value,
    place: &ConfigPlace,
    report: &mut Report,
) {
    let mut node = tree;
    let mut way = String::new();
    for key in path.split('.') {
        if node.is_null() {
            *node = Value::Object(Map::new());
        }
        let Value::Object(members) = node else {
            return;
        };
        way = member(&way, key);
        if !members.contains_key(key) {
            report.locate(way.clone(), place.clone());
        }
        node = members.entry(key).or_insert(Value::Null);
    }
    *node = value;
    report.locate(way, place.clone());
}

/// The value at a path of map keys.
pub(in crate::config) fn at<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |node, key| node.get(key))
}

/// The path of a member of the map at `path`.
pub(in crate::config) fn member(path: &str, key: &str) -> String {
    let key = spelled(key);
    if path.is_empty() {
        key.into_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// A key as it is written in paths: in quotes if it could be read as several keys or none, so that
/// `store.url` is the `url` of `store` and nothing else.
fn spelled(key: &str) -> Cow<'_, str> {
    if key.is_empty() || key.contains(['.', '[', ']', '"']) {
        format!("{key:?}").into()
    } else {
        key.into()
    }
}

/// A value as the YAML parser yields it.
enum Raw {
    Null,
    /// A number or a boolean: to be read again from the source, as written.
    Plain(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

/// Makes JSON of raw values, notes their places, and reports duplicate keys.
fn plant(raw: Spanned<Raw>, path: &str, source: &str, report: &mut Report) -> Value {
    let span = raw.defined.span();
    match raw.value {
        Raw::Null => Value::Null,
        Raw::Text(text) => Value::from(text),
        Raw::Plain(parsed) => {
            let written = span.byte_offset().zip(span.byte_len());
            let written = written.and_then(|(start, len)| {
                let start = usize::try_from(start).ok()?;
                source.get(start..start + usize::try_from(len).ok()?)
            });
            Value::from(written.map_or(&*parsed, str::trim))
        }
        Raw::List(items) => {
            let items = items.into_iter().enumerate().map(|(i, item)| {
                let path = format!("{path}[{i}]");
                report.locate(path.clone(), ConfigPlace::Line(item.referenced.line()));
                plant(item, &path, source, report)
            });
            items.collect()
        }
        Raw::Map(raw_members) => {
            let mut members = Map::new();
            for (key, value) in raw_members {
                let place = ConfigPlace::Line(key.referenced.line());
                let key = key.value;
                let path = member(path, &key);
                if members.contains_key(&key) {
                    let key = masked(&key);
                    let ConfigPlace::Line(line) = report.place(&path) else {
                        continue;
                    };
                    let message =
                        format!("`{key}` is given twice; the first one is in line {line}");
                    report.error_at(place, &path, message, "keep one of them");
                    continue;
                }
                report.locate(path.clone(), place);
                members.insert(key, plant(value, &path, source, report));
            }
            Value::Object(members)
        }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

/// Takes numbers and booleans of every type.
macro_rules! plain {
    ($($visit:ident: $type:ty),*) => {$(
        fn $visit<E>(self, value: $type) -> Result<Raw, E> {
            Ok(Raw::Plain(value.to_string()))
        }
    )*};
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    plain! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64 }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Raw, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Raw::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let members = std::iter::from_fn(|| map.next_entry().transpose());
        members.collect::<Result<_, _>>().map(Raw::Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> (Option<Value>, Report) {
        let mut report = Report::default();
        (parse(text, &mut report), report)
    }

    #[test]
    fn scalars_stay_as_they_were_written() {
        let (tree, report) =
            tree("a: 1.10\nb: off\nc: true\nd: 007\ne: '5s'\nf: 1e3 # why\ng: no\nh: 0x1F\n");
        assert_eq!(report.finish(), []);
        let written = serde_json::json!({
            "a": "1.10", "b": "off", "c": "true", "d": "007", "e": "5s", "f": "1e3", "g": "no",
            "h": "0x1F",
        });
        assert_eq!(tree, Some(written));
    }

    #[test]
    fn everything_has_its_line() {
        let (_, report) = tree("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n");
        assert_eq!(report.place("a"), ConfigPlace::Line(1));
        assert_eq!(report.place("a.b"), ConfigPlace::Line(2));
        assert_eq!(report.place("a.c[0]"), ConfigPlace::Line(4));
        assert_eq!(report.place("a.c[1].y"), ConfigPlace::Line(5));
    }

    #[test]
    fn a_key_given_twice_is_told_with_both_lines() {
        let (tree, report) = tree("a: 1\nb:\n  c: 2\n  c: 3\na: 4\n");
        let problems = report.finish();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(problems[0].path, "b.c");
        assert_eq!(problems[0].line(), Some(4));
        assert!(problems[0].message.contains("line 3"));
        assert_eq!(problems[1].line(), Some(5));
        assert_eq!(tree.expect("it is YAML")["a"], "1");
    }

    #[test]
    fn a_comment_ends_with_its_line_whatever_ends_that() {
        for (text, is_empty) in [
            ("", true),
            ("# only\r\n\r\n# comments\r", true),
            ("# a\ra: 1", false),
            ("# a\r\na: 1", false),
            ("# a\na: 1", false),
        ] {
            let (tree, report) = tree(text);
            assert_eq!(report.finish(), [], "{text:?}");
            assert_eq!(tree.expect("it is YAML").is_null(), is_empty, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_yaml_is_one_problem_with_a_line() {
        let (tree, report) = tree("a: 1\nb: [\n");
        assert!(tree.is_none());
        let problems = report.finish();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].line().is_some(), "{problems:?}");
    }

    #[test]
    fn a_path_can_be_set() {
        let (tree, mut report) = (&mut Value::Null, Report::default());
        let flag = ConfigPlace::Named("--b".into());
        set(tree, "a.b", "1".into(), &flag, &mut report);
        set(
            tree,
            "a.c.d",
            "2".into(),
            &ConfigPlace::Nowhere,
            &mut report,
        );
        set(tree, "a.b.e", "3".into(), &flag, &mut report);
        assert_eq!(
            *tree,
            serde_json::json!({ "a": { "b": "1", "c": { "d": "2" } } })
        );
        assert_eq!(report.place("a.b"), flag);
        assert_eq!(report.place("a"), flag);
        assert_eq!(report.place("a.c.d"), ConfigPlace::Nowhere);
    }

    #[test]
    fn a_key_with_signs_of_paths_in_it_is_not_taken_for_a_path() {
        let (_, report) = tree("a:\n  b: 1\na.b: 2\n'': 3\n'a[0]': 4\n");
        assert_eq!(report.place("a.b"), ConfigPlace::Line(2));
        assert_eq!(report.place("\"a.b\""), ConfigPlace::Line(3));
        assert_eq!(report.place("\"\""), ConfigPlace::Line(4));
        assert_eq!(report.place("\"a[0]\""), ConfigPlace::Line(5));
    }
}
