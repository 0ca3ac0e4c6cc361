//! `fencepost check`: every problem of a file, with its line, without starting anything.

use std::path::Path;

use clap::Args;

use super::overrides::ConfigArgs;
use super::read_input;
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
    /// Also ask the store and the upstream. Nothing is changed, and no request is sent.
    #[arg(long)]
    connect: bool,
    #[command(flatten)]
    configuration: ConfigArgs,
}

/// Checks the file. Returns false if there is an error, and the text to print.
pub(super) async fn run(args: CheckArgs) -> anyhow::Result<(bool, String)> {
    let loader = args.configuration.loader();
    let file = loader.file.clone().unwrap_or_default();
    let parsed = if file == Path::new("-") {
        config::parse(&read_input(&file)?, &loader.overrides)
    } else {
        loader.load()
    };
    // Nothing is known of a configuration with errors.
    let mut facts = Vec::new();
    let problems = match parsed {
        Ok((settings, mut problems)) => {
            if args.connect {
                problems.extend(connect(&settings).await);
            }
            let summary = config::describe(&settings).into_iter();
            facts.extend(summary.map(|line| format!("  {line}")));
            facts.extend(config::advice(&settings));
            problems
        }
        Err(problems) => problems.list,
    };
    let is_error = |one: &&ConfigProblem| one.severity == Severity::Error;
    let errors = problems.iter().filter(is_error).count();
    let warnings = count(problems.len() - errors, "warning");
    let sum = match errors {
        0 => format!("no errors, {warnings}"),
        errors => format!("{}, {warnings}", count(errors, "error")),
    };
    let mut lines: Vec<_> = problems.iter().map(|one| one.render(Some(&file))).collect();
    lines.push(format!("{}: {sum}", file.display()));
    lines.extend(facts);
    let text = printable::lines(&(lines.join("\n") + "\n"));
    Ok((errors == 0, text))
}

/// Asks the store and the upstream. Returns the errors.
async fn connect(settings: &Settings) -> Vec<ConfigProblem> {
    let store = &settings.store;
    let stored = match &store.target {
        StoreTarget::Postgres(url) => {
            let address = store.address(url, None);
            let store = PostgresStore::new(address, &store.namespace, store.timeout.0, false);
            let fit = store.prepare().await.map_err(|unfit| unfit.to_string());
            store.disconnect().await;
            ("store", fit)
        }
        StoreTarget::Sqlite { path } => {
            // Not opened: the file belongs to the proxy that runs.
            let place = sqlite::check_place(path, store.create, store.volatile).await;
            ("store.url", place.map_err(|unfit| unfit.to_string()))
        }
    };
    let asked = [stored, ("upstream.url", reach(settings).await)];
    let errors = asked.into_iter().filter_map(|(path, fit)| {
        Some(ConfigProblem {
            severity: Severity::Error,
            path: path.to_owned(),
            place: ConfigPlace::Nowhere,
            message: fit.err()?,
            hint: None,
        })
    });
    errors.collect()
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::config::Loader;

    fn check(text: &str) -> (bool, String) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("f.yaml");
        std::fs::write(&file, text).expect("it is writable");
        checked(&file)
    }

    fn checked(file: &Path) -> (bool, String) {
        let args = CheckArgs {
            connect: false,
            configuration: ConfigArgs(Loader {
                file: Some(file.to_owned()),
                ..Loader::default()
            }),
        };
        let checked = run(args).now_or_never();
        checked.expect("nothing is waited for").expect("readable")
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
