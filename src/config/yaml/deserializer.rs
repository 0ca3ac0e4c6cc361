//! From the [tree](super::tree) to the typed [file](crate::config::file), with every problem on the
//! way.
//!
//! Serde stops at the first value that it cannot take. Here that value is reported and crossed out
//! of the tree, and the tree is read again, until it reads. That is fast enough for files of some
//! hundred lines. Every field has a default, so a tree with crossed-out values still reads. The
//! checks that follow see the default, and report nothing more about the same path.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::problems::{ConfigPlace, Report, masked, nearest, shown};
use super::tree::{MapEntry, NodeKind, YamlNode, member};

/// Reads a tree. A value that cannot be read is reported and left out.
pub(in crate::config) fn read<T: DeserializeOwned + Default>(
    mut tree: YamlNode,
    report: &mut Report,
) -> T {
    loop {
        let fault = match T::deserialize(NodeCursor {
            node: &tree,
            path: String::new(),
        }) {
            Ok(value) => return value,
            Err(fault) => fault,
        };
        let Spot { path, place } = fault.spot.unwrap_or_default();
        let (message, hint) = match fault.what {
            ReadFaultKind::Message(message) => match message.split_once('\n') {
                Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
                None => (message, None),
            },
            ReadFaultKind::UnknownField { name, known } => {
                let hint = match nearest(&name, known.iter().copied()) {
                    Some(meant) => {
                        report.hush(sibling(&path, meant));
                        format!("did you mean `{meant}`?")
                    }
                    None => format!("known here: {}", known.join(", ")),
                };
                (format!("unknown field `{}`", masked(&name)), Some(hint))
            }
        };
        report.error_at(place, &path, message, hint);
        if path.is_empty() || !tree.cross_out(&path) {
            // It is the whole, or names no part of it: nothing is left to be read again.
            return T::default();
        }
    }
}

fn sibling(path: &str, name: &str) -> String {
    member(path.rsplit_once('.').map_or("", |(parent, _)| parent), name)
}

/// The reason for refusing a value.
#[derive(Debug)]
pub(in crate::config) struct ReadFault {
    spot: Option<Spot>,
    what: ReadFaultKind,
}

#[derive(Debug, Default)]
struct Spot {
    path: String,
    place: ConfigPlace,
}

#[derive(Debug)]
enum ReadFaultKind {
    /// Behind the first line break: the hint.
    Message(String),
    UnknownField {
        name: String,
        known: &'static [&'static str],
    },
}

impl ReadFault {
    /// Notes the place, unless an inner value has noted it already.
    fn at(mut self, path: &str, place: &ConfigPlace) -> Self {
        self.spot.get_or_insert_with(|| Spot {
            path: path.to_owned(),
            place: place.clone(),
        });
        self
    }

    fn message(text: String) -> Self {
        Self {
            spot: None,
            what: ReadFaultKind::Message(text),
        }
    }
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            ReadFaultKind::Message(text) => f.write_str(text),
            ReadFaultKind::UnknownField { name, .. } => write!(f, "unknown field `{name}`"),
        }
    }
}

impl std::error::Error for ReadFault {}

impl de::Error for ReadFault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::message(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Str(text) => shown(text),
            Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Map => "a map of fields".to_owned(),
            other => other.to_string(),
        };
        Self::message(format!("expected {expected}, found {found}"))
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        let known_list = known.join(", ");
        Self::message(match nearest(name, known.iter().copied()) {
            Some(meant) => format!(
                "{} is not one of: {known_list}\ndid you mean `{meant}`?",
                shown(name)
            ),
            // Helm and other readers of YAML 1.1.
            None if name == "false" && known.contains(&"off") => format!(
                "{} is not one of: {known_list}\nwrite \"off\" in quotes: some tools read the bare \
                 word as `false`",
                shown(name)
            ),
            None => format!("{} is not one of: {known_list}", shown(name)),
        })
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self {
            spot: None,
            what: ReadFaultKind::UnknownField {
                name: name.to_owned(),
                known,
            },
        }
    }
}

/// A node, and the way to it.
struct NodeCursor<'a> {
    node: &'a YamlNode,
    path: String,
}

impl NodeCursor<'_> {
    fn text(&self, expected: &str) -> Result<&str, ReadFault> {
        let found = match &self.node.kind {
            NodeKind::Text(text) => return Ok(text),
            NodeKind::Null | NodeKind::Broken => "nothing",
            NodeKind::List(_) => "a list",
            NodeKind::Map(_) => "a map of fields",
        };
        Err(self.fault(format!("expected {expected}, found {found}")))
    }

    fn fault(&self, message: String) -> ReadFault {
        ReadFault::message(message).at(&self.path, &self.node.place)
    }

    /// Shows the node to the visitor. `fields`: those of the struct that is being read, if it is
    /// one.
    fn visit<'de, V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        let Self { node, path } = self;
        let result = match &node.kind {
            NodeKind::Null | NodeKind::Broken => visitor.visit_unit(),
            NodeKind::Text(text) => visitor.visit_str(text),
            NodeKind::List(items) => visitor.visit_seq(Items {
                nodes: items,
                next: 0,
                path: &path,
            }),
            NodeKind::Map(entries) => visitor.visit_map(NodeMembers {
                entries,
                fields,
                next: 0,
                place: &node.place,
                path: &path,
            }),
        };
        result.map_err(|fault| fault.at(&path, &node.place))
    }

    fn number<T: std::str::FromStr>(&self) -> Result<T, ReadFault> {
        let text = self.text("a whole number")?;
        text.parse()
            .map_err(|_| self.fault(format!("expected a whole number, found {}", shown(text))))
    }
}

impl<'de> Deserializer<'de> for NodeCursor<'_> {
    type Error = ReadFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        self.visit(&[], visitor)
    }
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        match self.node.kind {
            NodeKind::Null | NodeKind::Broken => visitor.visit_none(),
            NodeKind::Text(_) | NodeKind::List(_) | NodeKind::Map(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        match self.text("true or false")? {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            other => Err(self.fault(format!("expected true or false, found {}", shown(other)))),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        visitor.visit_u64(self.number()?)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadFault> {
        visitor.visit_u16(self.number()?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        let text = self.text(&format!("one of: {}", known.join(", ")))?;
        let variant: StrDeserializer<'_, ReadFault> = text.into_deserializer();
        visitor
            .visit_enum(variant)
            .map_err(|fault| fault.at(&self.path, &self.node.place))
    }

    /// A block, or a word in its place. The block is handed on unread, so that its fields are
    /// known.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        match self.node.kind {
            NodeKind::Map(_) => visitor.visit_newtype_struct(self),
            _ => self.deserialize_any(visitor),
        }
    }

    /// Serde would read a list as a struct too, its items as the fields in their order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadFault> {
        match self.node.kind {
            NodeKind::List(_) => Err(self.fault("expected a map of fields, found a list".into())),
            _ => self.visit(fields, visitor),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    nodes: &'a [YamlNode],
    next: usize,
    path: &'a str,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = ReadFault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadFault> {
        let Some(node) = self.nodes.get(self.next) else {
            return Ok(None);
        };
        let path = format!("{}[{}]", self.path, self.next);
        self.next += 1;
        hand_over(seed, node, &path).map(Some)
    }
}

struct NodeMembers<'a> {
    entries: &'a [MapEntry],
    /// Of the struct that is being read.
    fields: &'static [&'static str],
    next: usize,
    place: &'a ConfigPlace,
    path: &'a str,
}

impl<'de> MapAccess<'de> for NodeMembers<'_> {
    type Error = ReadFault;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadFault> {
        let absent = |entry: &MapEntry| match entry.value.kind {
            NodeKind::Broken => true,
            // An empty field is as good as none; an unknown one is reported all the same.
            NodeKind::Null => self.fields.contains(&entry.key.as_str()),
            NodeKind::Text(_) | NodeKind::List(_) | NodeKind::Map(_) => false,
        };
        while self.entries.get(self.next).is_some_and(absent) {
            self.next += 1;
        }
        let Some(entry) = self.entries.get(self.next) else {
            return Ok(None);
        };
        let key: StrDeserializer<'_, ReadFault> = entry.key.as_str().into_deserializer();
        seed.deserialize(key)
            .map(Some)
            .map_err(|fault| fault.at(&member(self.path, &entry.key), &entry.place))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadFault> {
        let Some(entry) = self.entries.get(self.next) else {
            return Err(
                ReadFault::message("a value was asked for without its key".to_owned())
                    .at(self.path, self.place),
            );
        };
        self.next += 1;
        hand_over(seed, &entry.value, &member(self.path, &entry.key))
    }
}

/// Hands a node to its reader. Types that parse a text fail after the visit, so the place is noted
/// here.
fn hand_over<'de, S: DeserializeSeed<'de>>(
    seed: S,
    node: &YamlNode,
    path: &str,
) -> Result<S::Value, ReadFault> {
    let cursor = NodeCursor {
        node,
        path: path.to_owned(),
    };
    seed.deserialize(cursor)
        .map_err(|fault| fault.at(path, &node.place))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct SampleFile {
        name: Option<String>,
        count: Option<u64>,
        inner: Option<Inner>,
        list: Option<Vec<Option<Inner>>>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        on: Option<bool>,
        pick: Option<Pick>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "kebab-case")]
    enum Pick {
        FirstOne,
        Second,
    }

    fn load(text: &str) -> (SampleFile, Vec<crate::config::ConfigProblem>) {
        let mut report = Report::default();
        let tree = YamlNode::parse(text, &mut report).expect("it is YAML");
        let sample = read(tree, &mut report);
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
        let list = sample.list.expect("given");
        assert_eq!(list.len(), 3, "a broken item keeps its place");
        assert_eq!(list[1], None);
        assert_eq!(
            list[2].as_ref().and_then(|i| i.pick.as_ref()),
            Some(&Pick::Second)
        );
    }
}
