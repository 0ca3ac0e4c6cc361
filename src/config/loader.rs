//! [`Loader`]: reads the configuration from where it is, at the start and at each reload.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::route::INHERITED;
use super::settings::Settings;
use super::units::Hidden;
use super::yaml::{
    self, ConfigPlace, Problems, Report, Warning, at, entry, hide_secrets, is_given, read, set,
};

/// The sources of the configuration: a file or none, and the values of flags and the environment.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

/// Values that override the file's, and values that the file's override.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<FieldOverride>);

#[derive(Clone, Debug)]
struct FieldOverride {
    path: String,
    text: Hidden,
    place: ConfigPlace,
    /// It counts only if nothing else sets the field.
    is_fallback: bool,
}

impl Overrides {
    /// Sets a field of the file by its path (`store.url`) and overrides the file. `resource` and
    /// `mode` are those of the implied route if the file has none. `origin` is the name of the flag
    /// or the environment variable, for messages. A command's own default has none.
    pub fn set(&mut self, path: &str, text: impl Into<String>, origin: &str) {
        self.add(path, text.into(), origin, false);
    }

    /// Sets a field of the file by its path if nothing else does. `origin` as with [`Self::set`].
    pub fn fall_back(&mut self, path: &str, text: impl Into<String>, origin: &str) {
        self.add(path, text.into(), origin, true);
    }

    fn add(&mut self, path: &str, text: String, origin: &str, is_fallback: bool) {
        self.0.push(FieldOverride {
            path: path.to_owned(),
            text: Hidden(text),
            place: match origin {
                "" => ConfigPlace::Nowhere,
                name => ConfigPlace::Named(name.to_owned()),
            },
            is_fallback,
        });
    }

    /// True if the implied route has a configured key. A mode alone leaves the default one.
    pub fn name_a_key(&self) -> bool {
        self.0.iter().any(|over| over.path == "resource")
    }
}

impl Loader {
    /// Reads everything and checks it. Cheap, and without effect: to be called again at each
    /// reload.
    ///
    /// The files are read with the thread blocked, once, which is short for files of a few
    /// kilobytes.
    pub fn load(&self) -> Result<(Settings, Vec<Warning>), Problems> {
        let mut report = Report::default();
        let text = self.file.as_ref().map_or(Ok(String::new()), |file| {
            report.sources.note(file);
            std::fs::read_to_string(file)
        });
        let unreadable = |error| report.error("", format!("the file cannot be read: {error}"));
        let text = text.map_err(unreadable).ok();
        check(text, self.file.clone(), &self.overrides, report)
    }
}

/// Checks a configuration that is given as text, and reads the certificates and keys that it names.
pub fn parse(text: &str, overrides: &Overrides) -> Result<(Settings, Vec<Warning>), Problems> {
    check(Some(text.to_owned()), None, overrides, Report::default())
}

/// `text`: `None` if it cannot be read, which is reported.
fn check(
    text: Option<String>,
    file: Option<PathBuf>,
    overrides: &Overrides,
    mut report: Report,
) -> Result<(Settings, Vec<Warning>), Problems> {
    let settings = text.and_then(|text| settings(&text, overrides, &mut report));
    let (is_good, sources) = (!report.has_errors(), report.sources.clone());
    let list = report.finish();
    match settings {
        Some(mut settings) if is_good => {
            settings.sources = sources;
            Ok((settings, list))
        }
        _ => Err(Problems {
            file,
            list,
            sources,
        }),
    }
}

fn settings(text: &str, overrides: &Overrides, report: &mut Report) -> Option<Settings> {
    let mut tree = yaml::parse(text, report)?;
    lay_over(&mut tree, overrides, report);
    let mut document = tree.clone();
    hide_secrets(&mut document);
    // The first reading reports what is wrong, so that only good values are inherited.
    let _: Settings = read(&mut tree, report);
    inherit(&mut tree);
    let mut settings: Settings = read(&mut tree, report);
    settings.document = Hidden(document);
    settings.check(report);
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
            if let Some(field) = entry(route, path).filter(|field| !is_given(field)) {
                field.clone_from(&inherited);
            }
        }
    }
}

/// Puts flags and environment variables into the tree, and the implied route if none is written.
fn lay_over(tree: &mut Value, overrides: &Overrides, report: &mut Report) {
    let has_routes = at(tree, "routes").is_some();
    let mut implied = json!({ "path": "/{*path}", "resource": "{path}" });
    for over in &overrides.0 {
        let (path, place) = (&*over.path, &over.place);
        let text = Value::from(&*over.text.0);
        match path {
            "resource" | "mode" if has_routes => {
                report.locate(path, place.clone());
                let text = "the file has routes, and each sets its own\n\
                            change it there; this is for a start without routes";
                report.error(path, text);
            }
            "resource" | "mode" => {
                implied[path] = text;
                report.locate(&format!("routes[0].{path}"), place.clone());
            }
            _ if over.is_fallback && at(tree, path).is_some() => {}
            _ => set(tree, path, text, place, report),
        }
        // A store that is given on the command line also overrides the file's other field for it.
        if path == "store.url"
            && let Some(Value::Object(store)) = tree.get_mut("store")
        {
            store.remove("url_file");
        }
    }
    if !has_routes {
        let routes = json!([implied]);
        set(tree, "routes", routes, &ConfigPlace::Nowhere, report);
    }
}
