//! [`Loader`]: reads the configuration from where it is, at the start and at each reload.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::addresses::{self, Listen};
use super::route::INHERITED;
use super::settings::Settings;
use super::units::Hidden;
use super::yaml::{
    self, ConfigDocument, ConfigPlace, Problems, Report, Severity, Warning, at, is_given, read,
    set, shown,
};

/// The sources of the configuration: a file or none, and the values of flags and the environment.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

/// Values that override the file's, and values that the file's override.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    above: Vec<FieldOverride>,
    below: Vec<FieldOverride>,
}

#[derive(Clone, Debug)]
struct FieldOverride {
    path: String,
    text: Hidden,
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

/// Names that flags use for fields of the route that is implied if none is written.
const IMPLIED: [&str; 2] = ["resource", "mode"];

impl Overrides {
    /// Sets a field of the file by its path (`store.url`) and overrides the file. `resource` and
    /// `mode` are those of the implied route if the file has none. `origin` is the name of the flag
    /// or the environment variable, for messages.
    pub fn set(&mut self, path: &str, text: impl Into<String>, origin: &str) {
        self.above.push(FieldOverride {
            path: path.to_owned(),
            text: Hidden(text.into()),
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
            text: Hidden(text.into()),
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
        let mut report = Report::default();
        let text = self.file.as_ref().map_or(Ok(String::new()), |file| {
            report.reads(file);
            std::fs::read_to_string(file)
        });
        let settings = match text {
            Ok(text) => settings(&text, &self.overrides, &mut report),
            Err(error) => {
                report.error("", format!("the file cannot be read: {error}"), "");
                None
            }
        };
        conclude(settings, self.file.clone(), report)
    }
}

/// Checks a configuration that is given as text, and reads the certificates and keys that it names.
pub fn parse(text: &str, overrides: &Overrides) -> Result<(Settings, Vec<Warning>), Problems> {
    let mut report = Report::default();
    conclude(settings(text, overrides, &mut report), None, report)
}

fn settings(text: &str, overrides: &Overrides, report: &mut Report) -> Option<Settings> {
    let mut tree = yaml::parse(text, report)?;
    lay_over(&mut tree, overrides, report);
    let document = ConfigDocument::of(tree.clone());
    // The first reading reports what is wrong, so that only good values are inherited.
    let _: Settings = read(&mut tree, report);
    inherit(&mut tree);
    let mut settings: Settings = read(&mut tree, report);
    settings.document = document;
    settings.check(report);
    settings.sources = report.sources();
    Some(settings)
}

/// Gives each route the values of the top level that it does not set itself.
fn inherit(tree: &mut Value) {
    for path in INHERITED {
        let Some(inherited) = at(tree, path).filter(|value| is_given(value)).cloned() else {
            continue;
        };
        let routes = tree.get_mut("routes").and_then(Value::as_array_mut);
        for route in routes.into_iter().flatten() {
            let mut node = route;
            for key in path.split('.') {
                if !is_given(node) {
                    *node = json!({});
                }
                let Value::Object(fields) = node else { break };
                node = fields.entry(key).or_insert(Value::Null);
            }
            if !is_given(node) {
                *node = inherited.clone();
            }
        }
    }
}

fn conclude(
    settings: Option<Settings>,
    file: Option<PathBuf>,
    report: Report,
) -> Result<(Settings, Vec<Warning>), Problems> {
    let settings = settings.filter(|_| !report.has_errors());
    let sources = report.sources();
    let list = report.finish();
    match settings {
        Some(settings) => Ok((settings, list)),
        None => Err(Problems {
            file,
            list,
            sources,
        }),
    }
}

/// Puts flags and environment variables into the tree, and the implied route if none is written.
fn lay_over(tree: &mut Value, overrides: &Overrides, report: &mut Report) {
    for over in &overrides.below {
        match at(tree, &over.path) {
            None => {
                let text = Value::from(&*over.text.0);
                set(tree, &over.path, text, &over.place(), report);
            }
            Some(given) if overrides.above.iter().all(|above| above.path != over.path) => {
                unreachable_outside(given, over, report);
            }
            Some(_) => {}
        }
    }
    let has_routes = at(tree, "routes").is_some();
    let mut implied = json!({ "path": "/{*path}", "resource": "{path}" });
    for over in &overrides.above {
        let (path, text, place) = (&*over.path, Value::from(&*over.text.0), over.place());
        if !IMPLIED.contains(&path) {
            set(tree, path, text, &place, report);
        } else if has_routes {
            let message = "the file has routes, and each sets its own".to_owned();
            let hint = "change it there; this is for a start without routes";
            report.push(Severity::Error, place, "", message, hint);
        } else {
            implied[path] = text;
            report.locate(format!("routes[0].{path}"), place);
        }
        // If one of the two is given on the command line, the file's other one is overridden too.
        let other = match path {
            "store.url" => "url_file",
            "store.url_file" => "url",
            _ => continue,
        };
        if let Some(Value::Object(store)) = tree.get_mut("store") {
            store.remove(other);
        }
    }
    if !has_routes {
        set(
            tree,
            "routes",
            json!([implied]),
            &ConfigPlace::Nowhere,
            report,
        );
    }
}

/// Warns of a listener that the file puts on the loopback although the image listens on all
/// addresses.
fn unreachable_outside(given: &Value, over: &FieldOverride, report: &mut Report) {
    let loopback = |text: &str| {
        let listen = addresses::listen(text).ok();
        listen
            .is_some_and(|listen| matches!(listen, Listen::Tcp(_)) && addresses::is_local(&listen))
    };
    if given.as_str().is_some_and(loopback) && !loopback(&over.text.0) {
        report.warn(
            over.path.as_str(),
            format!(
                "this overrides {} ({}), and a loopback address cannot be reached from outside the \
                 container or pod",
                over.origin,
                shown(&over.text.0)
            ),
            "leave it out, unless this is what you want",
        );
    }
}
