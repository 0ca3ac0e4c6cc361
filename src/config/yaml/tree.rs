//! [`YamlNode`]: the configuration as it was written, before anything is read into it: maps, lists
//! and texts, each with its line.
//!
//! Scalars stay the text that was written (`1.10` stays `1.10`, `off` is no boolean); the field
//! decides what a text means. Flags and environment variables are put into the same tree. Their
//! values pass the same checks, and a problem names the flag in place of a line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::problems::{ConfigPlace, Report, masked};

/// A value, and where it is written.
#[derive(Clone, Debug)]
pub(in crate::config) struct YamlNode {
    pub place: ConfigPlace,
    pub kind: NodeKind,
}

#[derive(Clone, Debug)]
pub(in crate::config) enum NodeKind {
    Null,
    Text(String),
    List(Vec<YamlNode>),
    /// In the order of the file.
    Map(Vec<MapEntry>),
    /// Reported already, and skipped.
    Broken,
}

#[derive(Clone, Debug)]
pub(in crate::config) struct MapEntry {
    pub key: String,
    /// The place of the key.
    pub place: ConfigPlace,
    pub value: YamlNode,
}

impl YamlNode {
    /// The tree of an empty file.
    pub const fn empty() -> Self {
        Self {
            place: ConfigPlace::Nowhere,
            kind: NodeKind::Null,
        }
    }

    /// Parses YAML. Problems go to `report`. `None`: the text is not YAML at all.
    pub fn parse(text: &str, report: &mut Report) -> Option<Self> {
        // Duplicates pass here and are reported below with both lines; merge keys would hide some.
        let options = serde_saphyr::options! {
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
            merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
            strict_booleans: true,
            with_snippet: false,
        };
        // A carriage return alone ends a line, too (YAML 1.2.2, 5.4).
        if text
            .split(['\n', '\r'])
            .all(|line| line.is_empty() || line.starts_with('#'))
        {
            return Some(Self::empty());
        }
        match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
            Ok(raw) => Some(plant(raw, "", text, report)),
            Err(error) => {
                let place = error
                    .location()
                    .map_or(ConfigPlace::Nowhere, |l| ConfigPlace::Line(l.line()));
                // A snippet or a value could hold a password, so the message has neither.
                let message = format!("this is not valid YAML: {}", error.without_snippet());
                report.error_at(place, "", message, None);
                None
            }
        }
    }

    /// Sets the text at a path of map keys (`store.url`), creating maps on the way. A value
    /// that is not a map stays, and is reported when the tree is read. A key that was there goes,
    /// with its line.
    pub fn set(&mut self, path: &str, text: &str, place: &ConfigPlace) {
        self.remove(path);
        let mut node = self;
        for key in path.split('.') {
            if matches!(node.kind, NodeKind::Null) {
                *node = Self {
                    place: place.clone(),
                    kind: NodeKind::Map(Vec::new()),
                };
            }
            let NodeKind::Map(entries) = &mut node.kind else {
                return;
            };
            let index = entries
                .iter()
                .position(|entry| entry.key == key)
                .unwrap_or_else(|| {
                    let value = Self {
                        place: place.clone(),
                        kind: NodeKind::Null,
                    };
                    entries.push(MapEntry {
                        key: key.to_owned(),
                        place: place.clone(),
                        value,
                    });
                    entries.len() - 1
                });
            node = &mut entries[index].value;
        }
        *node = Self {
            place: place.clone(),
            kind: NodeKind::Text(text.to_owned()),
        };
    }

    /// The node at a path of map keys.
    pub fn at(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| {
            let NodeKind::Map(entries) = &node.kind else {
                return None;
            };
            let entry = entries.iter().find(|entry| entry.key == key)?;
            Some(&entry.value)
        })
    }

    /// The text at a path of map keys.
    pub fn text_at(&self, path: &str) -> Option<&str> {
        match &self.at(path)?.kind {
            NodeKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Removes what is at a path of map keys.
    pub fn remove(&mut self, path: &str) {
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut node = self;
        for step in parent.split('.').filter(|step| !step.is_empty()) {
            let NodeKind::Map(entries) = &mut node.kind else {
                return;
            };
            let Some(entry) = entries.iter_mut().find(|entry| entry.key == step) else {
                return;
            };
            node = &mut entry.value;
        }
        if let NodeKind::Map(entries) = &mut node.kind {
            entries.retain(|entry| entry.key != key);
        }
    }

    /// The tree as JSON for operators. Of a URL with a user or a query, which may hold a password,
    /// only the scheme is shown. Numbers are texts, as the file has them.
    pub fn document(&self) -> Value {
        match &self.kind {
            NodeKind::Null | NodeKind::Broken => Value::Null,
            NodeKind::Text(text) => Value::from(without_secrets(text)),
            NodeKind::List(list) => list.iter().map(Self::document).collect(),
            NodeKind::Map(entries) => {
                let fields = entries.iter();
                let fields = fields.map(|entry| (entry.key.clone(), entry.value.document()));
                Value::Object(fields.collect())
            }
        }
    }

    /// The place of everything in it, by path. A map's value is placed at its key.
    pub fn places(&self) -> BTreeMap<String, ConfigPlace> {
        let mut places = BTreeMap::new();
        self.gather("", &mut places);
        places
    }

    fn gather(&self, path: &str, places: &mut BTreeMap<String, ConfigPlace>) {
        match &self.kind {
            NodeKind::Map(entries) => {
                for entry in entries {
                    let path = member(path, &entry.key);
                    entry.value.gather(&path, places);
                    places.insert(path, entry.place.clone());
                }
            }
            NodeKind::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    item.gather(&path, places);
                    places.insert(path, item.place.clone());
                }
            }
            NodeKind::Null | NodeKind::Text(_) | NodeKind::Broken => {}
        }
    }

    /// Marks what is at this path (as [`Self::places`] spells it) as broken. Returns false if
    /// nothing was there that was not broken yet, so that a loop over this ends.
    pub fn cross_out(&mut self, path: &str) -> bool {
        if path.is_empty() {
            return !matches!(
                std::mem::replace(&mut self.kind, NodeKind::Broken),
                NodeKind::Broken
            );
        }
        match &mut self.kind {
            NodeKind::Map(entries) => entries.iter_mut().any(|entry| {
                path.strip_prefix(&*spelled(&entry.key))
                    .and_then(step)
                    .is_some_and(|rest| entry.value.cross_out(rest))
            }),
            NodeKind::List(items) => items.iter_mut().enumerate().any(|(i, item)| {
                path.strip_prefix(&format!("[{i}]"))
                    .and_then(step)
                    .is_some_and(|rest| item.cross_out(rest))
            }),
            NodeKind::Null | NodeKind::Text(_) | NodeKind::Broken => false,
        }
    }
}

fn without_secrets(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) if rest.contains(['@', '?']) => format!("{scheme}://…"),
        _ => text.to_owned(),
    }
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

/// The rest of a path after one of its steps, if that step ends here.
fn step(rest: &str) -> Option<&str> {
    match rest.strip_prefix('.') {
        Some(rest) => Some(rest),
        None => (rest.is_empty() || rest.starts_with('[')).then_some(rest),
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

/// Makes nodes of raw values, and reports duplicate keys.
fn plant(raw: Spanned<Raw>, path: &str, source: &str, report: &mut Report) -> YamlNode {
    let place = ConfigPlace::Line(raw.referenced.line());
    let span = raw.defined.span();
    let kind = match raw.value {
        Raw::Null => NodeKind::Null,
        Raw::Text(text) => NodeKind::Text(text),
        Raw::Plain(parsed) => {
            let written = span
                .byte_offset()
                .zip(span.byte_len())
                .and_then(|(start, len)| {
                    let start = usize::try_from(start).ok()?;
                    source.get(start..start + usize::try_from(len).ok()?)
                });
            NodeKind::Text(written.map_or(parsed, |text| text.trim().to_owned()))
        }
        Raw::List(items) => NodeKind::List(
            items
                .into_iter()
                .enumerate()
                .map(|(i, item)| plant(item, &format!("{path}[{i}]"), source, report))
                .collect(),
        ),
        Raw::Map(members) => {
            let mut entries: Vec<MapEntry> = Vec::new();
            for (key, value) in members {
                let place = ConfigPlace::Line(key.referenced.line());
                let key = key.value;
                let path = member(path, &key);
                if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                    let ConfigPlace::Line(line) = first.place else {
                        continue;
                    };
                    let message = format!(
                        "`{}` is given twice; the first one is in line {line}",
                        masked(&key)
                    );
                    report.error_at(place, &path, message, Some("keep one of them".to_owned()));
                    continue;
                }
                let value = plant(value, &path, source, report);
                entries.push(MapEntry { key, place, value });
            }
            NodeKind::Map(entries)
        }
    };
    YamlNode { place, kind }
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

    plain! {
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128,
        visit_f64: f64
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Raw::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<YamlNode>, Vec<crate::config::ConfigProblem>) {
        let mut report = Report::default();
        let node = YamlNode::parse(text, &mut report);
        (node, report.finish())
    }

    fn text_at(node: &YamlNode, key: &str) -> String {
        let NodeKind::Map(entries) = &node.kind else {
            panic!("{node:?} is no map")
        };
        let entry = entries
            .iter()
            .find(|entry| entry.key == key)
            .expect("the key is there");
        match &entry.value.kind {
            NodeKind::Text(text) => text.clone(),
            other => panic!("{other:?} is no text"),
        }
    }

    #[test]
    fn scalars_stay_as_they_were_written() {
        let (node, problems) =
            parse("a: 1.10\nb: off\nc: true\nd: 007\ne: '5s'\nf: 1e3 # why\ng: no\nh: 0x1F\n");
        assert!(problems.is_empty(), "{problems:?}");
        let node = node.expect("it is YAML");
        for (key, text) in [
            ("a", "1.10"),
            ("b", "off"),
            ("c", "true"),
            ("d", "007"),
            ("e", "5s"),
            ("f", "1e3"),
            ("g", "no"),
            ("h", "0x1F"),
        ] {
            assert_eq!(text_at(&node, key), text);
        }
    }

    #[test]
    fn everything_has_its_line() {
        let (node, _) = parse("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n");
        let places = node.expect("it is YAML").places();
        assert_eq!(places["a"], ConfigPlace::Line(1));
        assert_eq!(places["a.b"], ConfigPlace::Line(2));
        assert_eq!(places["a.c[0]"], ConfigPlace::Line(4));
        assert_eq!(places["a.c[1].y"], ConfigPlace::Line(5));
    }

    #[test]
    fn a_key_given_twice_is_told_with_both_lines() {
        let (node, problems) = parse("a: 1\nb:\n  c: 2\n  c: 3\na: 4\n");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(problems[0].path, "b.c");
        assert_eq!(problems[0].line(), Some(4));
        assert!(problems[0].message.contains("line 3"));
        assert_eq!(problems[1].line(), Some(5));
        assert_eq!(text_at(&node.expect("it is YAML"), "a"), "1");
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
            let (node, problems) = parse(text);
            assert_eq!(problems.len(), 0, "{text:?}");
            let node = node.expect("it is YAML");
            assert_eq!(matches!(node.kind, NodeKind::Null), is_empty, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_yaml_is_one_problem_with_a_line() {
        let (node, problems) = parse("a: 1\nb: [\n");
        assert!(node.is_none());
        assert_eq!(problems.len(), 1);
        assert!(problems[0].line().is_some(), "{problems:?}");
    }

    #[test]
    fn a_path_can_be_set_and_crossed_out() {
        let mut node = YamlNode::empty();
        node.set("a.b", "1", &ConfigPlace::Named("--b".into()));
        node.set("a.c", "2", &ConfigPlace::Named("--c".into()));
        assert_eq!(node.places()["a.b"], ConfigPlace::Named("--b".into()));
        assert!(node.cross_out("a.b"));
        assert!(!node.cross_out("a.x"));
        assert!(!node.cross_out("a.b"), "it is crossed out already");
        node.remove("a.c");
        assert!(!node.places().contains_key("a.c"));
    }

    #[test]
    fn a_key_with_signs_of_paths_in_it_is_not_taken_for_a_path() {
        let (node, _) = parse("a:\n  b: 1\na.b: 2\n'': 3\n'a[0]': 4\n");
        let mut node = node.expect("it is YAML");
        let places = node.places();
        assert_eq!(places["a.b"], ConfigPlace::Line(2));
        assert_eq!(places["\"a.b\""], ConfigPlace::Line(3));
        assert_eq!(places["\"\""], ConfigPlace::Line(4));
        assert!(node.cross_out("\"a.b\""));
        assert!(node.cross_out("\"\""));
        assert!(node.cross_out("\"a[0]\""));
        let NodeKind::Map(entries) = &node.kind else {
            panic!("{node:?} is no map")
        };
        assert!(
            matches!(entries[0].value.kind, NodeKind::Map(_)),
            "{entries:?}"
        );
    }
}
