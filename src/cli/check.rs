//! `fencepost check`: every problem of a file, with its line, without starting anything.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::config::{self, Loader, Overrides};

/// Checks the file and writes what it found. Failure if there is an error; the `Err` is about
/// `out`.
pub(super) fn run(
    file: &Path,
    overrides: Overrides,
    out: &mut dyn Write,
) -> std::io::Result<ExitCode> {
    let loader = Loader {
        file: Some(file.to_owned()),
        overrides,
    };
    match loader.load() {
        Ok((settings, warnings)) => {
            for warning in &warnings {
                writeln!(out, "{}", warning.render(Some(file)))?;
            }
            writeln!(
                out,
                "{}: no errors, {}",
                file.display(),
                count(warnings.len(), "warning")
            )?;
            for line in config::describe(&settings) {
                writeln!(out, "  {line}")?;
            }
            for line in config::advice(&settings) {
                writeln!(out, "{line}")?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            writeln!(out, "{problems}")?;
            let errors = problems.errors();
            let warnings = problems.list.len() - errors;
            writeln!(
                out,
                "{}: {}, {}",
                file.display(),
                count(errors, "error"),
                count(warnings, "warning")
            )?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (ExitCode, String) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("f.yaml");
        std::fs::write(&file, text).expect("it is writable");
        let mut out = Vec::new();
        let code = run(&file, Overrides::default(), &mut out).expect("a vector can be written");
        (code, String::from_utf8(out).expect("it is text"))
    }

    #[test]
    fn errors_fail_with_line_and_hint() {
        let (code, out) = check("upstream: { url: http://a }\nlissen: x\nstale_status: 400\n");
        assert_eq!(code, ExitCode::FAILURE);
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
        let (code, out) = check("upstream: { url: http://a, timeout: 31s }\n");
        assert_eq!(code, ExitCode::SUCCESS);
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
            assert_eq!(code, ExitCode::SUCCESS, "{out}");
            let line = out.lines().find(|line| line.starts_with("advice: "));
            match advised {
                None => assert_eq!(line, None),
                Some(what) => assert!(line.is_some_and(|line| line.contains(what)), "{out}"),
            }
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let mut out = Vec::new();
        let code = run(
            Path::new("/does/not/exist.yaml"),
            Overrides::default(),
            &mut out,
        );
        assert_eq!(code.expect("a vector can be written"), ExitCode::FAILURE);
        assert!(String::from_utf8_lossy(&out).contains("cannot be read"));
    }
}
