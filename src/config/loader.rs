//! [`Loader`]: reads the configuration from where it is, at the start and at each reload.

use std::path::PathBuf;

use super::addresses;
use super::document::ConfigDocument;
use super::file::{self, File};
use super::settings::{Listen, Settings};
use super::source_files::Sources;
use super::yaml::{
    ConfigPlace, MapEntry, NodeKind, Problems, Report, Warning, YamlNode, member, read, shown,
};

/// The sources of the configuration: a file or none, and the values of flags and the environment.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

/// Values that override the file's, and values that the file's override.
#[derive(Clone, Default)]
pub struct Overrides {
    above: Vec<FieldOverride>,
    below: Vec<FieldOverride>,
}

#[derive(Clone)]
struct FieldOverride {
    path: String,
    text: String,
    origin: String,
}

impl FieldOverride {
    /// A command's own default has no name.
    fn place(&self) -> ConfigPlace {
        match self.origin.as_str() {
            "" => ConfigPlace::Nowhere,
            name => ConfigPlace::Named(name.to_owned()),
        }
    }
}

/// Without the values: one of them may hold a password.
impl std::fmt::Debug for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.above.iter().map(|over| &over.path))
            .finish()
    }
}

/// Names that flags use for fields of the route that is implied if none is written.
const IMPLIED: [&str; 2] = ["resource", "mode"];

impl Overrides {
    /// Sets a field of the file by its path (`store.url`) and overrides the file. `resource` and
    /// `mode` are those of the implied route if the file has none. `origin` is the name of the flag
    /// or the environment variable, for messages.
    pub fn set(&mut self, path: &str, text: impl Into<String>, origin: &str) {
        self.above.push(FieldOverride {
            path: path.to_owned(),
            text: text.into(),
            origin: origin.to_owned(),
        });
    }

    /// True if the implied route has a configured key. A mode alone leaves the default one.
    #[must_use]
    pub fn name_a_key(&self) -> bool {
        self.above.iter().any(|over| over.path == "resource")
    }

    /// Sets a field of the file by its path if nothing else does. `origin` as with [`Self::set`].
    pub fn fall_back(&mut self, path: &str, text: impl Into<String>, origin: &str) {
        self.below.push(FieldOverride {
            path: path.to_owned(),
            text: text.into(),
            origin: origin.to_owned(),
        });
    }
}

impl Loader {
    /// A file and nothing over it.
    #[must_use]
    pub fn of_file(file: impl Into<PathBuf>) -> Self {
        Self {
            file: Some(file.into()),
            overrides: Overrides::default(),
        }
    }

    /// Reads everything and checks it. Cheap, and without effect: to be called again at each
    /// reload.
    ///
    /// The files are read with the thread blocked, once, which is short for files of a few
    /// kilobytes.
    pub fn load(&self) -> Result<(Settings, Vec<Warning>), Problems> {
        let mut sources = Sources::default();
        if let Some(file) = &self.file {
            sources.note(file);
        }
        let text = match &self.file {
            None => String::new(),
            Some(file) => match std::fs::read_to_string(file) {
                Ok(text) => text,
                Err(error) => {
                    let mut report = Report::default();
                    let message = format!("the file cannot be read: {error}");
                    report.error_at(ConfigPlace::Nowhere, "", message, None);
                    return Err(Problems {
                        file: self.file.clone(),
                        list: report.finish(),
                        sources,
                    });
                }
            },
        };
        match parse(&text, &self.overrides) {
            Ok((mut settings, warnings)) => {
                settings.sources = sources.and(&settings.sources);
                Ok((settings, warnings))
            }
            Err(problems) => Err(Problems {
                file: self.file.clone(),
                sources: sources.and(&problems.sources),
                ..problems
            }),
        }
    }
}

/// Checks a configuration that is given as text, and reads the certificates and keys that it names.
pub fn parse(text: &str, overrides: &Overrides) -> Result<(Settings, Vec<Warning>), Problems> {
    let mut report = Report::default();
    let tree = YamlNode::parse(text, &mut report);
    let settings = tree.and_then(|mut tree| {
        report.locate(tree.places());
        unexpanded("", &tree, &mut report);
        lay_over(&mut tree, overrides, &mut report);
        report.locate(tree.places());
        let document = ConfigDocument(tree.document());
        let file: File = read(tree, &mut report);
        let settings = file::settings(file, &mut report)?;
        Some(Settings {
            document,
            ..settings
        })
    });
    let failed = report.has_errors();
    let sources = report.sources();
    let list = report.finish();
    match settings {
        Some(settings) if !failed => Ok((settings, list)),
        _ => Err(Problems {
            file: None,
            list,
            sources,
        }),
    }
}

/// Warns of `${NAME}` in a value, which other programs expand.
fn unexpanded(path: &str, node: &YamlNode, report: &mut Report) {
    match &node.kind {
        NodeKind::Text(text) => {
            let name = text
                .split_once("${")
                .and_then(|(_, rest)| rest.split_once('}'));
            if let Some((name, _)) = name {
                report.warn(
                    path,
                    format!("`${{{name}}}` is not expanded; the value is used literally"),
                    "write the value, or set the field with its flag or environment variable \
                     (`fencepost serve --help`)",
                );
            }
        }
        NodeKind::List(list) => {
            for (index, one) in list.iter().enumerate() {
                unexpanded(&format!("{path}[{index}]"), one, report);
            }
        }
        NodeKind::Map(entries) => {
            for entry in entries {
                unexpanded(&member(path, &entry.key), &entry.value, report);
            }
        }
        NodeKind::Null | NodeKind::Broken => {}
    }
}

/// Puts flags and environment variables into the tree, and the implied route if none is written.
fn lay_over(tree: &mut YamlNode, overrides: &Overrides, report: &mut Report) {
    let places = tree.places();
    for over in &overrides.below {
        if !places.contains_key(&over.path) {
            tree.set(&over.path, &over.text, &over.place());
        } else if overrides.above.iter().all(|above| above.path != over.path) {
            unreachable_outside(tree, over, report);
        }
    }
    let has_routes = places.contains_key("routes");
    let mut implied = vec![entry("path", "/{*path}", ConfigPlace::Nowhere)];
    for over in &overrides.above {
        let place = over.place();
        if IMPLIED.contains(&over.path.as_str()) {
            if has_routes {
                let message = "the file has routes, and each sets its own".to_owned();
                let hint = "change it there; this is for a start without routes".to_owned();
                report.error_at(place, "", message, Some(hint));
            } else {
                implied.push(entry(&over.path, &over.text, place));
            }
            continue;
        }
        tree.set(&over.path, &over.text, &place);
        // If one of the two is given on the command line, the file's other one is overridden too.
        match over.path.as_str() {
            "store.url" => tree.remove("store.url_file"),
            "store.url_file" => tree.remove("store.url"),
            _ => {}
        }
    }
    if !has_routes {
        if !implied.iter().any(|entry| entry.key == "resource") {
            implied.push(entry("resource", "{path}", ConfigPlace::Nowhere));
        }
        let route = YamlNode {
            place: ConfigPlace::Nowhere,
            kind: NodeKind::Map(implied),
        };
        let routes = YamlNode {
            place: ConfigPlace::Nowhere,
            kind: NodeKind::List(vec![route]),
        };
        add(
            tree,
            MapEntry {
                key: "routes".to_owned(),
                place: ConfigPlace::Nowhere,
                value: routes,
            },
        );
    }
}

/// Warns of a listener that the file puts on the loopback although the image listens on all
/// addresses.
fn unreachable_outside(tree: &YamlNode, over: &FieldOverride, report: &mut Report) {
    let loopback = |text: &str| {
        let listen = addresses::listen(text).ok();
        listen
            .is_some_and(|listen| matches!(listen, Listen::Tcp(_)) && addresses::is_local(&listen))
    };
    let given = tree.text_at(&over.path);
    if given.is_some_and(loopback) && !loopback(&over.text) {
        report.warn(
            over.path.as_str(),
            format!(
                "this overrides {} ({}), and a loopback address cannot be reached from outside the \
                 container or pod",
                over.origin,
                shown(&over.text)
            ),
            "leave it out, unless this is what you want",
        );
    }
}

fn entry(key: &str, text: &str, place: ConfigPlace) -> MapEntry {
    let value = YamlNode {
        place: place.clone(),
        kind: NodeKind::Text(text.to_owned()),
    };
    MapEntry {
        key: key.to_owned(),
        place,
        value,
    }
}

/// Adds a field to the tree, unless the file is no map at all.
fn add(tree: &mut YamlNode, entry: MapEntry) {
    match &mut tree.kind {
        NodeKind::Map(entries) => entries.push(entry),
        kind @ NodeKind::Null => *kind = NodeKind::Map(vec![entry]),
        NodeKind::Text(_) | NodeKind::List(_) | NodeKind::Broken => {}
    }
}
