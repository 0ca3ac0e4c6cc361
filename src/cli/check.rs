//! `fencepost check`: every problem of a file, with its line, without starting anything.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::overrides::ConfigArgs;
use crate::config::{self, ConfigPlace, ConfigProblem, Settings, Severity, StoreTarget};
use crate::printable;
use crate::proxy::reach;
use crate::store::MarkStore as _;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite;

/// The help of the file.
pub(super) const FILE: &str = "The configuration file, as with --config; `-` is the standard input";

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    format: CheckFormat,
    /// Also ask the store and the upstream. Nothing is changed, and no request is sent.
    #[arg(long)]
    connect: bool,
    #[command(flatten)]
    configuration: ConfigArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum CheckFormat {
    #[default]
    Text,
    Json,
}

/// The result of a check.
struct CheckReport {
    file: PathBuf,
    problems: Vec<ConfigProblem>,
    /// The effects of the configuration; empty if it has errors.
    summary: Vec<String>,
    advice: Vec<String>,
}

/// A problem that has no line: a missing file, or a peer that cannot be reached.
fn problem(severity: Severity, path: &str, message: String) -> ConfigProblem {
    ConfigProblem {
        severity,
        path: path.to_owned(),
        place: ConfigPlace::Nowhere,
        message,
        hint: None,
    }
}

/// Checks the file and writes what it found. False if there is an error; the `Err` is about
/// the standard input or `out`.
pub(super) async fn run(args: CheckArgs, out: &mut dyn Write) -> std::io::Result<bool> {
    let loader = args.configuration.loader();
    let file = loader.file.clone().unwrap_or_default();
    let parsed = if file == Path::new("-") {
        let text = std::io::read_to_string(std::io::stdin())?;
        config::parse(&text, &loader.overrides)
    } else {
        loader.load()
    };
    let (problems, summary, advice) = match parsed {
        Ok((settings, mut problems)) => {
            problems.extend(missing_files(&settings));
            if args.connect {
                problems.extend(connect(&settings).await);
            }
            let (summary, advice) = (config::describe(&settings), config::advice(&settings));
            (problems, summary, advice)
        }
        Err(problems) => (problems.list, Vec::new(), Vec::new()),
    };
    let report = CheckReport {
        file,
        problems,
        summary,
        advice,
    };
    match args.format {
        CheckFormat::Text => report.write(out)?,
        CheckFormat::Json => writeln!(out, "{}", printable::json(&report.json().to_string()))?,
    }
    Ok(report.count(Severity::Error) == 0)
}

impl CheckReport {
    fn count(&self, severity: Severity) -> usize {
        let of_it = self.problems.iter().filter(|one| one.severity == severity);
        of_it.count()
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for problem in &self.problems {
            writeln!(out, "{}", problem.render(Some(&self.file)))?;
        }
        let errors = match self.count(Severity::Error) {
            0 => "no errors".to_owned(),
            errors => count(errors, "error"),
        };
        let warnings = count(self.count(Severity::Warning), "warning");
        writeln!(out, "{}: {errors}, {warnings}", self.file.display())?;
        for line in &self.summary {
            writeln!(out, "  {line}")?;
        }
        for line in &self.advice {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let problems = self.problems.iter().map(|problem| {
            json!({
                "severity": problem.severity.as_str(),
                "line": problem.line(),
                "set_by": problem.set_by(),
                "path": problem.path,
                "message": problem.message,
                "hint": problem.hint,
            })
        });
        json!({
            "file": self.file,
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "problems": problems.collect::<Vec<_>>(),
            "summary": self.summary,
            "advice": self.advice,
        })
    }
}

/// Warns of files that are read when they are needed, and are not there. On another machine than
/// the proxy's that is no error.
fn missing_files(settings: &Settings) -> Vec<ConfigProblem> {
    let store = &settings.store;
    let url_file = match &store.target {
        StoreTarget::Postgres(config::Secret::File(file)) => Some(file),
        _ => None,
    };
    let identity = store.tls.identity();
    let files = [
        ("admin.token_file", settings.admin.token_file.as_ref()),
        (
            "admin.read_token_file",
            settings.admin.read_token_file.as_ref(),
        ),
        ("store.url_file", url_file),
        ("store.tls.ca_file", store.tls.ca_file.as_ref()),
        (
            "store.tls.cert_file",
            identity.map(|(certificate, _)| certificate),
        ),
        ("store.tls.key_file", identity.map(|(_, key)| key)),
    ];
    let missing = files.into_iter().filter_map(|(path, file)| {
        let file = file?;
        let error = std::fs::File::open(file).err()?;
        let message = format!("{} cannot be read here: {error}", file.display());
        Some(problem(Severity::Warning, path, message))
    });
    missing.collect()
}

/// Asks the store and the upstream.
async fn connect(settings: &Settings) -> Vec<ConfigProblem> {
    let error = |path, message| problem(Severity::Error, path, message);
    let mut problems = Vec::new();
    let store = &settings.store;
    match &store.target {
        StoreTarget::Postgres(url) => {
            let address = config::PostgresAddress {
                url: url.clone(),
                tls: store.tls.clone(),
                application_name: None,
            };
            let store = PostgresStore::new(address, &store.namespace, store.timeout.0, false);
            if let Err(unfit) = store.prepare().await {
                problems.push(error("store", unfit.to_string()));
            }
            store.disconnect().await;
        }
        StoreTarget::Sqlite { path } => {
            // Not opened: the file belongs to the proxy that runs.
            let place = sqlite::check_place(path, store.create, store.volatile).await;
            if let Err(unfit) = place {
                problems.push(error("store.url", unfit.to_string()));
            }
        }
    }
    if let Err(why) = reach(settings).await {
        problems.push(error("upstream.url", why));
    }
    problems
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn check(text: &str) -> (bool, String) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("f.yaml");
        std::fs::write(&file, text).expect("it is writable");
        checked(&file)
    }

    fn checked(file: &Path) -> (bool, String) {
        let args = CheckArgs {
            format: CheckFormat::Text,
            connect: false,
            configuration: ConfigArgs {
                file: Some(file.to_owned()),
                ..ConfigArgs::default()
            },
        };
        let mut out = Vec::new();
        let code = run(args, &mut out).now_or_never();
        let code = code
            .expect("nothing is waited for")
            .expect("a vector can be written");
        (code, String::from_utf8(out).expect("it is text"))
    }

    #[test]
    fn errors_fail_with_line_and_hint() {
        let (code, out) = check("upstream: { url: http://a }\nlissen: x\nstale_status: 400\n");
        assert!(!code);
        assert!(
            out.contains("f.yaml:2: lissen: unknown field `lissen`"),
            "{out}"
        );
        assert!(out.contains("hint: did you mean `listen`?"), "{out}");
        assert!(out.contains("f.yaml:3: stale_status"), "{out}");
        assert!(out.contains("2 errors, 0 warnings"), "{out}");
    }

    #[test]
    fn warnings_alone_pass() {
        let (code, out) = check("upstream: { url: http://a, timeout: 11s }\n");
        assert!(code);
        assert!(
            out.contains("warning: ") && out.contains("no errors, 1 warning"),
            "{out}"
        );
        assert!(out.contains("enforced: /{*path} by key {path}"), "{out}");
    }

    #[test]
    fn names_that_a_service_may_cut_are_pointed_at() {
        let base = "upstream: { url: http://a }\nroutes:\n";
        for (routes, advised) in [
            (
                "- { path: '/o/{id}', resource: 'o:{id}' }",
                Some("`{id}` of /o/{id}."),
            ),
            (
                "- { path: '/o/{id}/{sub}', resource: 'o:{id|plain}:{sub}' }",
                Some("`{sub}` of /o/{id}/{sub}."),
            ),
            (
                "- { path: '/o/{*rest}', resource: '{path}' }",
                Some("`{path}` of /o/{*rest}."),
            ),
            ("- { path: '/o/{id}', resource: 'o:{id|plain}' }", None),
            ("- { path: '/o/{id}', resource: 'o:{id|int}' }", None),
            (
                "- { path: '/o/{id}', resource: 'o:{header.x-tenant}' }",
                None,
            ),
            ("- { path: '/o/{id}', mode: bypass }", None),
        ] {
            let (code, out) = check(&format!("{base}{routes}\n"));
            assert!(code, "{out}");
            let line = out.lines().find(|line| line.starts_with("advice: "));
            match advised {
                None => assert_eq!(line, None),
                Some(what) => assert!(line.is_some_and(|line| line.contains(what)), "{out}"),
            }
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let (code, out) = checked(Path::new("/does/not/exist.yaml"));
        assert!(!code);
        assert!(out.contains("cannot be read"), "{out}");
    }
}
