//! Reads YAML into typed fields and reports every problem at once, each with its line and a hint.
//!
//! A deserializer of serde stops at the first thing that it cannot take. An operator would then
//! correct a file once per mistake. So reading has three parts:
//!
//! - [`parse`]: the events of serde-saphyr's parser become a JSON value in which every scalar stays
//!   the text that was written, and the line of everything goes to the report. Flags and environment
//!   variables are put into the same tree.
//! - [`read`]: serde reads typed fields from the tree. A value that it cannot take is reported and
//!   crossed out, and the tree is read again, until it reads.
//! - [`Report`] collects what is wrong, for this reader and for the checks after it.
//!
//! It does not judge what values mean together: the checks of the blocks do. It knows no aliases,
//! no merge keys and no tags; text that is not YAML at all is one problem.
//!
//! [`Sources`] are the files that the configuration came from, as each was when it was read, so
//! that a watcher misses no change in between. A mounted `ConfigMap` or secret changes by swapping
//! a symbolic link, so the target of the link is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, iter};

use serde_json::Value;
use sha2::{Digest, Sha256};

mod tree;

/// Defines blocks of the file: structs whose fields have their defaults behind a `=`, or else those
/// of their types.
macro_rules! blocks {
    (@) => { Default::default() };
    (@ $default:expr) => { $default };
    ($($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $field_vis:vis $field:ident: $type:ty $(= $default:expr)?,)*
    })*) => {$(
        #[derive(Clone, Debug, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default, expecting = "a map of fields")]
        $(#[$meta])*
        $vis struct $name {
            $($(#[$about])* $field_vis $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: blocks!(@ $($default)?),)* }
            }
        }
    )*};
}
pub(super) use blocks;

#[cfg(test)]
pub(super) use tree::member;
pub(super) use tree::{at, entry, is_given, parse, read, set};

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program does not start.
    Error,
    /// The program starts, but an operator should know.
    Warning,
}

/// The place that a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigPlace {
    /// A flag or an environment variable, by its name.
    Named(String),
    /// A line of the file, from 1.
    Line(u64),
    /// Nowhere: it is missing, or a default.
    #[default]
    Nowhere,
}

/// One thing that is wrong or doubtful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub severity: Severity,
    /// The field: `routes[2].resource`. Empty: the whole configuration.
    pub path: String,
    pub place: ConfigPlace,
    pub message: String,
    /// The advice.
    pub hint: Option<String>,
}

/// A problem that does not keep the program from starting.
pub type Warning = ConfigProblem;

impl ConfigProblem {
    /// The line in the file, if that is where it is.
    #[cfg(test)]
    pub(crate) const fn line(&self) -> Option<u64> {
        match self.place {
            ConfigPlace::Line(line) => Some(line),
            ConfigPlace::Named(_) | ConfigPlace::Nowhere => None,
        }
    }

    /// One line, or two with the hint, for an operator: `error: orders.yaml:12: routes[2].resource:
    /// …`.
    pub fn render(&self, file: Option<&Path>) -> String {
        let place = match (&self.place, file) {
            (ConfigPlace::Line(line), Some(file)) => format!("{}:{line}: ", file.display()),
            (ConfigPlace::Line(line), None) => format!("line {line}: "),
            (ConfigPlace::Named(name), _) => format!("{name}: "),
            (ConfigPlace::Nowhere, Some(file)) => format!("{}: ", file.display()),
            (ConfigPlace::Nowhere, None) => String::new(),
        };
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        format!("{severity}: {place}{self}")
    }
}

/// Path, message and hint, without the place.
impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// The reasons for refusing a configuration: every error in it, and every warning too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// In the order of the file; at least one is an error.
    pub list: Vec<ConfigProblem>,
    /// The files that were read.
    pub sources: Sources,
}

impl Problems {
    /// Each error with its place and hint.
    pub fn errors_in_words(&self) -> Vec<String> {
        let file = self.file.as_deref();
        let errors = self.list.iter().filter(|p| p.severity == Severity::Error);
        errors.map(|error| error.render(file)).collect()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_deref();
        let lines: Vec<_> = self.list.iter().map(|one| one.render(file)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Problems {}

/// Collects problems, and knows where in the file each path is.
#[derive(Debug, Default)]
pub(in crate::config) struct Report {
    places: BTreeMap<String, ConfigPlace>,
    /// Paths that have an error already. Errors that follow from it are not reported.
    broken: BTreeSet<String>,
    /// No further problem is reported of these paths, and of all that is below them.
    hushed: BTreeSet<String>,
    /// The paths of values that are empty, which is the same as leaving them out.
    empty: BTreeSet<String>,
    list: Vec<ConfigProblem>,
    /// The files that were read so far. A file is noted before it is read.
    pub sources: Sources,
}

impl Report {
    /// Notes the place of a value. That of a map's value is its key's.
    pub fn locate(&mut self, path: &str, place: ConfigPlace) {
        self.places.insert(path.to_owned(), place);
    }

    /// Notes the place of a value that may have one already.
    pub fn locate_new(&mut self, path: &str, place: ConfigPlace) {
        self.places.entry(path.to_owned()).or_insert(place);
    }

    /// Reports an error. `text`: the message, and after a line break the hint.
    pub fn error(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.add(Severity::Error, &path.into(), None, &text.into());
    }

    /// Reports a warning, as [`Self::error`] does.
    pub fn warn(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.add(Severity::Warning, &path.into(), None, &text.into());
    }

    /// Reports an error if `is_wrong`.
    pub fn error_if(&mut self, is_wrong: bool, path: &str, text: impl Into<String>) {
        if is_wrong {
            self.error(path, text);
        }
    }

    /// Reports a warning if `is_odd`.
    pub fn warn_if(&mut self, is_odd: bool, path: &str, text: impl Into<String>) {
        if is_odd {
            self.warn(path, text);
        }
    }

    /// Reports an error if a value does not go with the one at `other`. If a flag or variable set
    /// that one, it is named in place of a line: the line was right before.
    pub fn error_beside(&mut self, is_wrong: bool, [path, other]: [&str; 2], text: &str) {
        if is_wrong {
            self.add(Severity::Error, path, Some(other), text);
        }
    }

    /// Reports a warning if a value does not go with another one, as [`Self::error_beside`] does.
    pub fn warn_beside(&mut self, is_odd: bool, [path, other]: [&str; 2], text: &str) {
        if is_odd {
            self.add(Severity::Warning, path, Some(other), text);
        }
    }

    /// Warns if a file cannot be read that is read when it is needed. On another machine than the
    /// proxy's that is no error.
    pub fn warn_of_missing(&mut self, path: &str, file: Option<&PathBuf>) {
        let Some(file) = file else { return };
        if let Err(error) = fs::File::open(file) {
            let file = file.display();
            self.warn(path, format!("{file} cannot be read here: {error}"));
        }
    }

    /// True if the file, a flag or a variable sets the field.
    pub fn is_given(&self, path: &str) -> bool {
        self.places.contains_key(path) && !self.empty.contains(path)
    }

    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|p| p.severity == Severity::Error)
    }

    /// Everything reported, in the order of the file.
    pub fn finish(mut self) -> Vec<ConfigProblem> {
        self.list.sort_by(|one, other| one.place.cmp(&other.place));
        self.list
    }

    fn add(&mut self, severity: Severity, path: &str, other: Option<&str>, text: &str) {
        let mut paths = around(path).chain([""]);
        let is_hushed = paths.any(|path| self.hushed.contains(path));
        // Nothing follows from a comparison with a value that is not there.
        let is_vain = other.is_some_and(|other| self.broken.contains(other));
        if is_vain || self.broken.contains(path) || is_hushed {
            return;
        }
        if severity == Severity::Error {
            self.broken.insert(path.to_owned());
        }
        let own = self.place(path);
        let place = match other.and_then(|other| self.places.get(other)) {
            Some(named @ ConfigPlace::Named(_)) => own.min(named.clone()),
            _ => own,
        };
        let (message, hint) = text.split_once('\n').unzip();
        self.list.push(ConfigProblem {
            severity,
            path: masked(path),
            place,
            message: message.unwrap_or(text).to_owned(),
            hint: hint.map(str::to_owned),
        });
    }

    /// The place of this path, or of what is nearest around it.
    pub fn place(&self, path: &str) -> ConfigPlace {
        let place = around(path).find_map(|path| self.places.get(path));
        place.cloned().unwrap_or_default()
    }
}

/// The path, and the paths of the values around it, up to a top-level field.
fn around(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.rmatch_indices(['.', '[']);
    iter::once(path).chain(ends.map(|(end, _)| &path[..end]))
}

/// The message, and on a second line the hint, for a word that is none of those that are known.
pub(in crate::config) fn not_one_of(name: &str, known: &[&str]) -> String {
    let meant = nearest(name, known.iter().copied());
    let hint = meant.map(|meant| format!("\ndid you mean `{meant}`?"));
    let (name, known) = (shown(name), known.join(", "));
    format!("{name} is not one of: {known}{}", hint.unwrap_or_default())
}

/// The name among `known` that was most likely meant.
pub(in crate::config) fn nearest<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let name = plain(name);
    known
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(&name, &plain(known)), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Says what is wrong with a text, and what to write instead.
pub(in crate::config) fn wrong<T>(text: &str, fault: &str, hint: &str) -> Result<T, String> {
    Err(format!("{} {fault}\n{hint}", shown(text)))
}

/// A value for a message: short, and without the user and password of a URL.
pub(in crate::config) fn shown(text: &str) -> String {
    if text.to_ascii_lowercase().contains("password") {
        return "the value (not shown: it may hold a password)".to_owned();
    }
    let text = masked(text);
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// The text without the user and password of a URL. If a colon is forgotten, a value becomes a key,
/// and so a part of paths.
pub(in crate::config) fn masked(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(start), Some(end)) if start < end => {
            format!("{}://…{}", &text[..start], &text[end..])
        }
        _ => text.to_owned(),
    }
}

/// Files by path; `None`: there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<PathBuf, Option<Stamp>>);

/// Distinguishes one version of a file from another: inode, size, and time of its last change.
type Stamp = (u64, u64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

impl Sources {
    /// Notes a file that is about to be read. One that was read before keeps its older stamp.
    pub(super) fn note(&mut self, path: &Path) {
        let entry = self.0.entry(path.to_owned());
        entry.or_insert_with(|| stamp(path));
    }

    /// The same files, as they are now.
    #[must_use]
    pub fn now(&self) -> Self {
        let files = self.0.keys();
        Self(files.map(|path| (path.clone(), stamp(path))).collect())
    }

    /// These, and those of `other` that are not among them.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let mut all = other.0.clone();
        all.extend(self.0);
        Self(all)
    }
}

/// The first half of a text's SHA-256: 32 hexadecimal digits.
pub(in crate::config) fn digest(text: &str) -> String {
    let hash = Sha256::digest(text);
    let first = hash.first_chunk().copied().unwrap_or_default();
    format!("{:032x}", u128::from_be_bytes(first))
}

/// Takes the user and password out of every URL.
pub(in crate::config) fn hide_secrets(tree: &mut Value) {
    match tree {
        Value::String(text) => {
            *text = masked(text);
            if let Some(query) = text.find('?')
                && text.contains("://")
            {
                text.replace_range(query + 1.., "…");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_secrets),
        Value::Object(members) => members.values_mut().for_each(hide_secrets),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_placed_at_its_nearest_known_surrounding() {
        let mut report = Report::default();
        report.locate("routes", ConfigPlace::Line(3));
        report.locate("routes[0]", ConfigPlace::Line(4));
        report.error("routes[0].resource", "missing");
        report.error("store", "missing");
        let list = report.finish();
        assert_eq!(list[0].line(), Some(4));
        assert_eq!(list[1].place, ConfigPlace::Nowhere);
    }

    #[test]
    fn a_path_has_one_error_at_most() {
        let mut report = Report::default();
        report.error("a", "first");
        report.error("a", "second");
        assert_eq!(report.finish().len(), 1);
    }

    #[test]
    fn suggestions_are_near_or_none() {
        let known = ["resource", "reuse", "mode"];
        assert_eq!(nearest("resorce", known), Some("resource"));
        assert_eq!(nearest("Mode", known), Some("mode"));
        assert_eq!(nearest("zebra", known), None);
    }

    #[test]
    fn what_is_shown_has_no_password_in_it() {
        assert_eq!(shown("postgres://u:p@ss/w@h/db"), "`postgres://…@h/db`");
        assert_eq!(shown("5s"), "`5s`");
        for odd in [
            "postgres://u:ses/ame@db/x",
            "postgres://u:ses?ame@db/x",
            "postgres://u:ses@ame@db/x",
            "postgres://u:sesame@db:5432/x?a=b",
            "postgres://db/x?password=sesame",
        ] {
            let shown = shown(odd);
            assert!(!shown.contains("ses") && !shown.contains("ame"), "{shown}");
        }
    }

    #[test]
    fn a_rendered_problem_says_where() {
        let problem = ConfigProblem {
            severity: Severity::Error,
            path: "listen".into(),
            place: ConfigPlace::Line(2),
            message: "no port".into(),
            hint: Some("write one".into()),
        };
        let file = Some(Path::new("f.yaml"));
        assert_eq!(
            problem.render(file),
            "error: f.yaml:2: listen: no port\n  hint: write one"
        );
    }

    #[test]
    fn a_swapped_link_is_another_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (one, two, link) = (
            dir.path().join("one"),
            dir.path().join("two"),
            dir.path().join("link"),
        );
        fs::write(&one, "same").expect("it is writable");
        fs::write(&two, "same").expect("it is writable");
        std::os::unix::fs::symlink(&one, &link).expect("it is writable");
        let mut sources = Sources::default();
        sources.note(&link);
        assert_eq!(sources, sources.now());
        fs::remove_file(&link).expect("it is there");
        assert_ne!(sources, sources.now());
        std::os::unix::fs::symlink(&two, &link).expect("it is writable");
        assert_ne!(sources, sources.now());
    }

    #[test]
    fn a_file_keeps_the_stamp_of_its_first_reading() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, "a").expect("it is writable");
        let mut sources = Sources::default();
        sources.note(&file);
        fs::write(&file, "longer").expect("it is writable");
        sources.note(&file);
        assert_ne!(sources, sources.now());
        assert_eq!(sources.clone().and(&sources.now()), sources);
    }
}
