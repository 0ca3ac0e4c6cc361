//! From the [tree](super::tree) to the typed [file](crate::config::file), with every problem on the
//! way.
//!
//! Serde stops at the first value that it cannot take. Here that value is reported and crossed out
//! of the tree, and the tree is read again, until it reads. That is fast enough for files of some
//! hundred lines. Every field has a default, so a tree with crossed-out values still reads. The
//! checks that follow see the default, and report nothing more about the same path.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, DeserializeOwned, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use super::problems::{Report, masked, nearest, shown};
use super::tree::member;

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
        if let Some(Segment::Map { key }) =
            fault_path.iter().next_back().filter(|_| fault.is_unknown)
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
        if fault.is_no_map {
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
        let hint = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("\ndid you mean `{meant}`?"),
            // Helm and other readers of YAML 1.1.
            None if name == "false" && known.contains(&"off") => {
                "\nwrite \"off\" in quotes: some tools read the bare word as `false`".to_owned()
            }
            None => String::new(),
        };
        let known = known.join(", ");
        Self::custom(format!("{} is not one of: {known}{hint}", shown(name)))
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
