//! [`parse`]: the configuration as it was written, before anything is read into it: a JSON value of
//! maps, lists and texts. The report keeps the line of each.
//!
//! Scalars stay the text that was written (`1.10` stays `1.10`, `off` is no boolean); the field
//! decides what a text means. Flags and environment variables are put into the same tree. Their
//! values pass the same checks, and a problem names the flag in place of a line.
//!
//! [`read`] goes from the tree to typed fields, with every problem on the way. Serde stops at the
//! first value that it cannot take. Here that value is reported and crossed out of the tree, and
//! the tree is read again, until it reads. That is fast enough for files of some hundred lines.
//! Every field has a default, so a tree with crossed-out values still reads. The checks that follow
//! see the default, and report nothing more about the same path.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::value::{MapDeserializer, SeqAccessDeserializer, SeqDeserializer};
use serde::de::{
    self, Deserialize, DeserializeOwned, Deserializer, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use serde_saphyr::Spanned;

use super::{ConfigPlace, Report, masked, nearest, not_one_of, shown};

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

/// Sets the value at a path of map keys (`store.url`), creating maps on the way. A value that is
/// not a map stays, and is reported when the tree is read.
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

/// Stands for a value that was reported, and reads like one that is left out. All scalars of the
/// tree are texts.
const CROSSED_OUT: Value = Value::Bool(false);

/// Reads a tree. A value that cannot be read is reported and crossed out.
pub(in crate::config) fn read<T: DeserializeOwned + Default + JsonSchema>(
    tree: &mut Value,
    report: &mut Report,
) -> T {
    loop {
        let fault = match serde_path_to_error::deserialize::<_, T>(Node(tree)) {
            Ok(value) => return value,
            Err(fault) => fault,
        };
        let (mut node, mut path, mut parent) = (Some(&mut *tree), String::new(), String::new());
        let mut is_item = false;
        let fault_path = fault.path().clone();
        for step in &fault_path {
            let (inner, value) = match step {
                // Its number among the items that are not crossed out.
                Segment::Seq { index } => {
                    let items = node.and_then(Value::as_array_mut);
                    let items = items.into_iter().flatten().enumerate();
                    let item = items.filter(|(_, item)| **item != CROSSED_OUT).nth(*index);
                    let (index, item) = item.unzip();
                    (format!("{path}[{}]", index.unwrap_or_default()), item)
                }
                Segment::Map { key } => {
                    (member(&path, key), node.and_then(|node| node.get_mut(key)))
                }
                Segment::Enum { .. } | Segment::Unknown => continue,
            };
            is_item = matches!(step, Segment::Seq { .. });
            parent = std::mem::replace(&mut path, inner);
            node = value;
        }
        let mut fault = fault.into_inner();
        let last = fault_path.iter().next_back();
        if fault.is_unknown
            && let Some(Segment::Map { key }) = last
        {
            let (root, mut owners) = (schemars::schema_for!(T).to_value(), Vec::new());
            find_owners(&root, &root, "", key, &mut owners);
            if !owners.is_empty() {
                fault.meant = None;
                fault.hint = format!(
                    "it is a field of {}: is it indented as it should be?",
                    owners.join(" and of ")
                );
            }
        }
        // An empty field is as good as none; an unknown one is reported all the same.
        let is_none = matches!(node, Some(Value::Null)) && !is_item && !fault.is_unknown;
        if is_none {
            report.is_empty(path.clone());
        } else {
            report.error_at(report.place(&path), &path, fault.message, &fault.hint);
        }
        if let Some(meant) = fault.meant {
            report.hush(member(&parent, meant));
        }
        if fault.is_no_map && !is_none {
            // Nothing more is said of its fields.
            report.hush(path);
        } else if is_item {
            // The list is not empty, although nothing of it may be left.
            report.hush(parent);
        }
        match node {
            // An empty block, so that the items behind it keep their numbers.
            Some(node) if fault.is_no_map => *node = Value::Object(Map::new()),
            Some(node) if *node != CROSSED_OUT => *node = CROSSED_OUT,
            // It names no part of the tree: nothing is left to be read again.
            _ => return T::default(),
        }
    }
}

/// Finds the blocks below `node`, a part of the schema `root`, that have a field of this name.
fn find_owners(root: &Value, node: &Value, at: &str, name: &str, owners: &mut Vec<String>) {
    let definition = node["$ref"].as_str().and_then(|to| root.pointer(&to[1..]));
    let node = definition.unwrap_or(node);
    for part in node["anyOf"]
        .as_array()
        .into_iter()
        .flatten()
        .chain(node.get("items"))
    {
        find_owners(root, part, at, name, owners);
    }
    for (field, part) in node["properties"].as_object().into_iter().flatten() {
        if field == name {
            owners.push(if at.is_empty() {
                "the top level".to_owned()
            } else {
                format!("`{at}`")
            });
        }
        find_owners(root, part, &member(at, field), name, owners);
    }
}

/// True for a value that is in the tree, neither empty nor crossed out.
pub(in crate::config) fn is_given(node: &Value) -> bool {
    !node.is_null() && *node != CROSSED_OUT
}

/// The reason for refusing a value.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct ReadFault {
    message: String,
    /// Empty: none.
    hint: String,
    is_unknown: bool,
    /// A block was expected.
    is_no_map: bool,
    /// The field that was meant by an unknown one.
    meant: Option<&'static str>,
}

impl de::Error for ReadFault {
    /// Behind the first line break: the hint.
    fn custom<T: fmt::Display>(message: T) -> Self {
        let text = message.to_string();
        let (message, hint) = text.split_once('\n').unwrap_or((&text, ""));
        Self {
            message: message.to_owned(),
            hint: hint.to_owned(),
            is_unknown: false,
            is_no_map: false,
            meant: None,
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Str(text) => shown(text),
            Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Map => "a map of fields".to_owned(),
            other => other.to_string(),
        };
        let expected = expected.to_string().replace("a sequence", "a list");
        Self::custom(format!("expected {expected}, found {found}"))
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        let mut text = not_one_of(name, known);
        // Helm and other readers of YAML 1.1.
        if name == "false" && known.contains(&"off") {
            text += "\nwrite \"off\" in quotes: some tools read the bare word as `false`";
        }
        Self::custom(text)
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let meant = nearest(name, known.iter().copied());
        Self {
            message: format!("unknown field `{}`", masked(name)),
            hint: match meant {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("known here: {}", known.join(", ")),
            },
            is_unknown: true,
            is_no_map: false,
            meant,
        }
    }
}

/// A part of the tree, as serde reads it.
#[derive(Clone, Copy)]
struct Node<'a>(&'a Value);

impl Node<'_> {
    fn parsed<T: FromStr>(self, expected: &str) -> Result<T, ReadFault> {
        let text = self.0.as_str();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| self.is_not(expected))
    }

    fn is_not(self, expected: &str) -> ReadFault {
        let found = match self.0 {
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
            Value::Null | Value::Bool(_) | Value::Number(_) => Unexpected::Unit,
        };
        de::Error::invalid_type(found, &expected)
    }
}

impl IntoDeserializer<'_, ReadFault> for Node<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = ReadFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        match self.0 {
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => {
                let items = items.iter().filter(|item| **item != CROSSED_OUT);
                visitor.visit_seq(SeqDeserializer::new(items.map(Node)))
            }
            Value::Object(members) => {
                let given = members.iter().filter(|(_, value)| **value != CROSSED_OUT);
                let given = given.map(|(key, value)| (key.as_str(), Node(value)));
                visitor.visit_map(MapDeserializer::new(given))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => visitor.visit_unit(),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        match self.0 {
            Value::Null | Value::Bool(_) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        visitor.visit_bool(self.parsed("true or false")?)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        visitor.visit_u16(self.parsed("a whole number")?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            _ => Err(self.is_not(&format!("one of: {}", known.join(", ")))),
        }
    }

    /// Serde would read a list as a struct too, its items as the fields in their order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        match self.0 {
            Value::Object(_) => self.deserialize_any(visitor),
            _ => Err(ReadFault {
                is_no_map: true,
                ..self.is_not("a map of fields")
            }),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::tree::parse;
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

    #[derive(Debug, Default, Deserialize, PartialEq, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct SampleFile {
        name: Option<String>,
        count: Option<u16>,
        inner: Option<Inner>,
        list: Vec<Inner>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        on: Option<bool>,
        pick: Option<Pick>,
    }

    #[derive(Debug, Deserialize, PartialEq, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Pick {
        FirstOne,
        Second,
    }

    fn load(text: &str) -> (SampleFile, Vec<crate::config::ConfigProblem>) {
        let mut report = Report::default();
        let mut tree = parse(text, &mut report).expect("it is YAML");
        let sample = read(&mut tree, &mut report);
        (sample, report.finish())
    }

    #[test]
    fn a_good_tree_reads() {
        let (sample, problems) =
            load("name: 7\ncount: 7\ninner: {on: true, pick: first-one}\nlist: [{on: false}]\n");
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(sample.name.as_deref(), Some("7"));
        assert_eq!(sample.count, Some(7));
        assert_eq!(sample.inner.expect("given").pick, Some(Pick::FirstOne));
    }

    #[test]
    fn every_fault_is_told_once_with_its_line_and_the_rest_is_read() {
        let text = "nmae: x\ncount: many\ninner:\n  on: yes\n  pick: secnd\nlist:\n  - on: true\n  \
                    - 5\n  - bogus: 1\n    pick: second\n";
        let (sample, problems) = load(text);
        let told: Vec<_> = problems
            .iter()
            .map(|p| (p.path.as_str(), p.line()))
            .collect();
        assert_eq!(
            told,
            [
                ("nmae", Some(1)),
                ("count", Some(2)),
                ("inner.on", Some(4)),
                ("inner.pick", Some(5)),
                ("list[1]", Some(8)),
                ("list[2].bogus", Some(9)),
            ]
        );
        assert_eq!(problems[0].hint.as_deref(), Some("did you mean `name`?"));
        assert_eq!(problems[3].hint.as_deref(), Some("did you mean `second`?"));
        assert!(
            problems[5]
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("on, pick"))
        );
        let list = sample.list;
        assert_eq!(list.len(), 3, "a broken item keeps its place");
        assert_eq!(list[1], Inner::default());
        assert_eq!(list[2].pick, Some(Pick::Second));
    }
}
