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

use std::fmt;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, DeserializeOwned, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use serde_saphyr::granit_parser::{self, Event, Marker, Parser, ScalarStyle, ScanError, StrInput};

use super::{ConfigPlace, Report, masked, nearest, not_one_of, shown};

/// Parses YAML. Problems and places go to `report`. `None`: the text is not YAML at all.
pub(in crate::config) fn parse(text: &str, report: &mut Report) -> Option<Value> {
    let options = granit_parser::options! { emit_comments: false };
    let mut document = Document {
        events: Parser::new_from_str_with_options(text, options),
        report,
    };
    match document.read() {
        Ok(tree) => Some(tree),
        Err(error) => {
            // Without an excerpt, which could show a password.
            let message = format!("this is not valid YAML: {}", error.info());
            report.locate("", line(*error.marker()));
            report.error("", message);
            None
        }
    }
}

fn line(marker: Marker) -> ConfigPlace {
    ConfigPlace::Line(marker.line() as u64)
}

/// A YAML document that is being read.
struct Document<'a> {
    events: Parser<'a, StrInput<'a>>,
    report: &'a mut Report,
}

impl Document<'_> {
    fn read(&mut self) -> Result<Value, ScanError> {
        let mut tree = None;
        while let Some((event, span)) = self.events.next_event().transpose()? {
            match event {
                Event::DocumentStart(..) if tree.is_some() => {
                    return Err(ScanError::new(span.start, "a second document begins here"));
                }
                Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                    self.report.locate("", line(span.start));
                    tree = Some(self.value(event, span.start, "")?);
                }
                _ => {}
            }
        }
        Ok(tree.unwrap_or_default())
    }

    fn value(&mut self, event: Event<'_>, at: Marker, path: &str) -> Result<Value, ScanError> {
        Ok(match event {
            _ if event.tag().is_some() => return Err(ScanError::new(at, "tags mean nothing here")),
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") =>
            {
                Value::Null
            }
            Event::Scalar(text, ..) => Value::String(text.into_owned()),
            Event::SequenceStart(..) => self.list(path)?,
            Event::MappingStart(..) => self.map(path)?,
            // Aliases could make a short text a very large value.
            Event::Alias(..) => {
                let text = "aliases (`*name`) are not read: write the value itself";
                return Err(ScanError::new(at, text));
            }
            _ => return Err(ScanError::new(at, "expected a value")),
        })
    }

    fn list(&mut self, path: &str) -> Result<Value, ScanError> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.events.next_event().transpose()? {
            if event == Event::SequenceEnd {
                break;
            }
            let path = format!("{path}[{}]", items.len());
            self.report.locate_new(&path, line(span.start));
            items.push(self.value(event, span.start, &path)?);
        }
        Ok(items.into())
    }

    fn map(&mut self, path: &str) -> Result<Value, ScanError> {
        let mut members = Map::new();
        while let Some((event, span)) = self.events.next_event().transpose()? {
            let key = match event {
                Event::MappingEnd => break,
                Event::Scalar(key, _, _, None) => key.into_owned(),
                _ => return Err(ScanError::new(span.start, "a key must be a plain word")),
            };
            let (path, place) = (member(path, &key), line(span.start));
            if let (true, ConfigPlace::Line(first)) =
                (members.contains_key(&key), self.report.place(&path))
            {
                self.report.locate(&path, place);
                let key = masked(&key);
                let text = format!(
                    "`{key}` is given twice; the first one is in line {first}\nkeep one of them"
                );
                self.report.error(&*path, text);
            } else {
                self.report.locate_new(&path, place);
            }
            if let Some((event, span)) = self.events.next_event().transpose()? {
                let value = self.value(event, span.start, &path)?;
                members.entry(key).or_insert(value);
            }
        }
        Ok(members.into())
    }
}

/// The value at a path of map keys (`store.url`), with maps on the way that are not there. `None`:
/// a value on the way is not a map. It is reported when the tree is read.
pub(in crate::config) fn entry<'a>(tree: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(tree, |node, key| {
        if !is_given(node) {
            *node = Value::Object(Map::new());
        }
        let members = node.as_object_mut()?;
        Some(members.entry(key).or_insert(Value::Null))
    })
}

/// Sets the value at a path of map keys.
pub(in crate::config) fn set(
    tree: &mut Value,
    path: &str,
    value: Value,
    place: &ConfigPlace,
    report: &mut Report,
) {
    let Some(node) = entry(tree, path) else {
        return;
    };
    *node = value;
    for (end, _) in path.match_indices('.') {
        report.locate_new(&path[..end], place.clone());
    }
    report.locate(path, place.clone());
}

/// The value at a path of map keys.
pub(in crate::config) fn at<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |node, key| node.get(key))
}

/// The path of a member of the map at `path`. A key that could be read as several or none is in
/// quotes, so that `store.url` is the `url` of `store` and nothing else.
pub(in crate::config) fn member(path: &str, key: &str) -> String {
    let dot = if path.is_empty() { "" } else { "." };
    if key.is_empty() || key.contains(['.', '[', ']', '"']) {
        format!("{path}{dot}{key:?}")
    } else {
        format!("{path}{dot}{key}")
    }
}

/// Stands for a value that was reported, and reads like one that is left out. All scalars of the
/// tree are texts.
const CROSSED_OUT: Value = Value::Bool(false);

/// The kind of a block.
const BLOCK: &str = "a map of fields";

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
        let (mut node, mut path, mut around) = (Some(&mut *tree), String::new(), String::new());
        for step in fault.path() {
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
            around = std::mem::replace(&mut path, inner);
            node = value;
        }
        // It names no part of the tree: nothing is left to be read again.
        let Some(node) = node.filter(|node| **node != CROSSED_OUT) else {
            report.error(path, fault.inner().to_string());
            return T::default();
        };
        let is_item = path.ends_with(']');
        let mut rest = CROSSED_OUT;
        match fault.into_inner() {
            ReadFault::Field(name, known) => {
                let meant = nearest(&name, known.iter().copied());
                let meant_path = meant.map(|meant| member(&around, meant));
                if let Some(meant) = meant_path.filter(|meant| !report.is_given(meant)) {
                    report.hushed.insert(meant);
                }
                let hint =
                    place_of::<T>(&name).or(meant.map(|meant| format!("did you mean `{meant}`?")));
                let hint = hint.unwrap_or_else(|| format!("known here: {}", known.join(", ")));
                report.error(&*path, format!("unknown field `{}`\n{hint}", masked(&name)));
            }
            // An empty field is as good as none.
            _ if node.is_null() && !is_item => {
                report.empty.insert(path);
            }
            ReadFault::Kind(expected) => {
                let text = format!("expected {expected}, found {}", found(node));
                report.error(&*path, text);
                if expected.ends_with(BLOCK) {
                    // An empty block, so that the items behind it keep their numbers. Nothing more
                    // is said of its fields.
                    rest = Value::Object(Map::new());
                    report.hushed.insert(path);
                }
            }
            ReadFault::Value(text) => report.error(&*path, text),
        }
        if is_item {
            // The list is not empty, although nothing of it may be left.
            report.broken.insert(around);
        }
        *node = rest;
    }
}

fn found(value: &Value) -> String {
    match value {
        Value::String(text) => shown(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => BLOCK.to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) => "nothing".to_owned(),
    }
}

/// The hint for a field that other blocks have.
fn place_of<T: JsonSchema>(name: &str) -> Option<String> {
    let settings = SchemaSettings::default().with(|all| all.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut owners = Vec::new();
    find_owners(schema.as_value(), "", name, &mut owners);
    let owners = owners.join(" and of ");
    (!owners.is_empty())
        .then(|| format!("it is a field of {owners}: is it indented as it should be?"))
}

/// Finds the blocks of a schema, the one at `path`, that have a field of this name.
fn find_owners(schema: &Value, path: &str, name: &str, owners: &mut Vec<String>) {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    for part in alternatives.chain(schema.get("items")) {
        find_owners(part, path, name, owners);
    }
    let fields = &schema["properties"];
    for (field, schema) in fields.as_object().into_iter().flatten() {
        find_owners(schema, &member(path, field), name, owners);
    }
    if fields.get(name).is_some() {
        owners.push(match path {
            "" => "the top level".to_owned(),
            path => format!("`{path}`"),
        });
    }
}

/// The reason for refusing a value.
#[derive(Debug, thiserror::Error)]
#[error("{self:?}")]
enum ReadFault {
    /// A message, and behind the first line break the hint.
    Value(String),
    /// The kind of value that is expected.
    Kind(String),
    /// A field that is not one of these.
    Field(String, &'static [&'static str]),
}

impl de::Error for ReadFault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Value(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Kind(expected.to_string().replace("a sequence", "a list"))
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        let mut text = not_one_of(name, known);
        // Helm and other readers of YAML 1.1.
        if name == "false" && known.contains(&"off") {
            text += "\nwrite \"off\" in quotes: some tools read the bare word as `false`";
        }
        Self::Value(text)
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::Field(name.to_owned(), known)
    }
}

/// True for a value that is in the tree, neither empty nor crossed out.
pub(in crate::config) fn is_given(node: &Value) -> bool {
    !node.is_null() && *node != CROSSED_OUT
}

/// A part of the tree, as serde reads it.
#[derive(Clone, Copy)]
struct Node<'a>(&'a Value);

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
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        match self.0.as_str().map(str::parse) {
            Some(Ok(value)) => visitor.visit_bool(value),
            _ => Err(ReadFault::Kind("true or false".to_owned())),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            _ => Err(ReadFault::Kind(format!("one of: {}", known.join(", ")))),
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
            _ => Err(ReadFault::Kind(BLOCK.to_owned())),
        }
    }

    /// Reads a value in whose place a word may be given. The word is the name of the type.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        word: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        if self.0.as_str().map(str::trim) == Some(word) {
            return visitor.visit_newtype_struct(Node(&Value::Null));
        } else if self.0.is_null() {
            return Err(ReadFault::Kind(word.to_owned()));
        }
        let read = visitor.visit_newtype_struct(self);
        read.map_err(|fault| match fault {
            // It is of a field or an item inside.
            fault if self.0.is_object() || self.0.is_array() => fault,
            ReadFault::Kind(expected) => ReadFault::Kind(format!("{word} or {expected}")),
            ReadFault::Value(text) if text.contains('\n') => {
                ReadFault::Value(format!("{text}, or {word}"))
            }
            other => other,
        })
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::tree::parse;
    use super::*;
    use crate::config::Count;

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
        count: Option<Count>,
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
        assert_eq!(sample.count, Some(Count(7)));
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
