//! [`ConfigProblem`]: the error in a configuration, its place, and its remedy. All problems of a
//! configuration are collected before any is reported, so that an operator corrects a file once and
//! not ten times. The checks write to [`Report`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::source_files::Sources;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program does not start.
    Error,
    /// The program starts, but an operator should know.
    Warning,
}

impl Severity {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// The place that a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigPlace {
    /// A line of the file, from 1.
    Line(u64),
    /// A flag or an environment variable, by its name.
    Named(String),
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

/// Says why a value is wrong, and what to do.
pub(in crate::config) type Wrong = (String, &'static str);

/// A problem that does not keep the program from starting.
pub type Warning = ConfigProblem;

impl ConfigProblem {
    /// The line in the file, if that is where it is.
    #[must_use]
    pub const fn line(&self) -> Option<u64> {
        match self.place {
            ConfigPlace::Line(line) => Some(line),
            ConfigPlace::Named(_) | ConfigPlace::Nowhere => None,
        }
    }

    /// The flag or environment variable that set the value, if one did.
    #[must_use]
    pub fn set_by(&self) -> Option<&str> {
        match &self.place {
            ConfigPlace::Named(name) => Some(name),
            ConfigPlace::Line(_) | ConfigPlace::Nowhere => None,
        }
    }

    /// One line, or two with the hint, for an operator: `error: orders.yaml:12: routes[2].resource:
    /// …`.
    #[must_use]
    pub fn render(&self, file: Option<&Path>) -> String {
        let place = match (&self.place, file) {
            (ConfigPlace::Line(line), Some(file)) => format!("{}:{line}: ", file.display()),
            (ConfigPlace::Line(line), None) => format!("line {line}: "),
            (ConfigPlace::Named(name), _) => format!("{name}: "),
            (ConfigPlace::Nowhere, Some(file)) => format!("{}: ", file.display()),
            (ConfigPlace::Nowhere, None) => String::new(),
        };
        format!("{}: {place}{self}", self.severity.as_str())
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
    /// The number of errors among them.
    #[must_use]
    pub fn errors(&self) -> usize {
        let errors = self.list.iter().filter(|p| p.severity == Severity::Error);
        errors.count()
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
    /// See [`Report::hush`].
    hushed: Vec<String>,
    /// The paths of values that are empty.
    empty: BTreeSet<String>,
    list: Vec<ConfigProblem>,
    sources: Sources,
    /// See [`Report::with`].
    other: Option<&'static str>,
}

impl Report {
    /// Notes a file before it is read.
    pub fn reads(&mut self, file: &Path) {
        self.sources.note(file);
    }

    /// The files that were read so far.
    pub fn sources(&self) -> Sources {
        self.sources.clone()
    }

    /// Notes the place of a value. That of a map's value is its key's.
    pub fn locate(&mut self, path: String, place: ConfigPlace) {
        self.places.insert(path, place);
    }

    /// The next problem is that a value does not go with the one at `other`. If a flag or variable
    /// set that one, it is named in place of a line: the line was right before.
    pub fn with(&mut self, other: &'static str) -> &mut Self {
        self.other = Some(other);
        self
    }

    pub fn error(&mut self, path: impl Into<String>, message: impl Into<String>, hint: &str) {
        self.add(Severity::Error, &path.into(), message.into(), hint);
    }

    pub fn warn(&mut self, path: impl Into<String>, message: impl Into<String>, hint: &str) {
        self.add(Severity::Warning, &path.into(), message.into(), hint);
    }

    /// An error at this place, even if its path has another one.
    pub fn error_at(&mut self, place: ConfigPlace, path: &str, message: String, hint: &str) {
        self.push(Severity::Error, place, path, message, hint);
    }

    /// Reports an error if `is_wrong`.
    pub fn error_if(&mut self, is_wrong: bool, path: &str, message: impl Into<String>, hint: &str) {
        if is_wrong {
            self.error(path, message, hint);
        }
        self.other = None;
    }

    /// Reports a warning if `is_doubtful`.
    pub fn warn_if(
        &mut self,
        is_doubtful: bool,
        path: &str,
        message: impl Into<String>,
        hint: &str,
    ) {
        if is_doubtful {
            self.warn(path, message, hint);
        }
        self.other = None;
    }

    /// Suppresses further problems of this path and of all that is below it.
    pub fn hush(&mut self, path: String) {
        self.hushed.push(path);
    }

    /// Notes that a value is empty, which is the same as leaving it out.
    pub fn is_empty(&mut self, path: String) {
        self.empty.insert(path);
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
        self.list.sort_by_key(|p| match p.place {
            ConfigPlace::Line(line) => (1, line),
            ConfigPlace::Named(_) => (0, 0),
            ConfigPlace::Nowhere => (2, 0),
        });
        self.list
    }

    fn add(&mut self, severity: Severity, path: &str, message: String, hint: &str) {
        let other = self.other.take();
        let is_hushed = |hushed: &String| {
            let rest = path.strip_prefix(hushed.as_str());
            hushed.is_empty()
                || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        // Nothing follows from a comparison with a value that is not there.
        let is_vain = other.is_some_and(|other| self.broken.contains(other));
        if is_vain || self.broken.contains(path) || self.hushed.iter().any(is_hushed) {
            return;
        }
        let own = self.place(path);
        let place = match other.and_then(|other| self.places.get(other)) {
            Some(named @ ConfigPlace::Named(_)) if !matches!(own, ConfigPlace::Named(_)) => {
                named.clone()
            }
            _ => own,
        };
        self.push(severity, place, path, message, hint);
    }

    fn push(
        &mut self,
        severity: Severity,
        place: ConfigPlace,
        path: &str,
        message: String,
        hint: &str,
    ) {
        if severity == Severity::Error {
            self.broken.insert(path.to_owned());
        }
        self.list.push(ConfigProblem {
            severity,
            path: masked(path),
            place,
            message,
            hint: (!hint.is_empty()).then(|| hint.to_owned()),
        });
    }

    /// The place of this path, or of what is nearest around it.
    pub fn place(&self, path: &str) -> ConfigPlace {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return place.clone();
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return ConfigPlace::Nowhere,
            }
        }
    }
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

/// A value for a message: short, and without the user and password of a URL.
pub(in crate::config) fn shown(text: &str) -> String {
    if text.to_ascii_lowercase().contains("password") {
        return "the value (not shown: it may hold a password)".to_owned();
    }
    let text = masked(text);
    if text.chars().count() > 60 {
        format!("`{}…`", text.chars().take(60).collect::<String>())
    } else {
        format!("`{text}`")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_placed_at_its_nearest_known_surrounding() {
        let mut report = Report::default();
        report.locate("routes".to_owned(), ConfigPlace::Line(3));
        report.locate("routes[0]".to_owned(), ConfigPlace::Line(4));
        report.error("routes[0].resource", "missing", "");
        report.error("store", "missing", "");
        let list = report.finish();
        assert_eq!(list[0].line(), Some(4));
        assert_eq!(list[1].place, ConfigPlace::Nowhere);
    }

    #[test]
    fn a_path_has_one_error_at_most() {
        let mut report = Report::default();
        report.error("a", "first", "");
        report.error("a", "second", "");
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
}
