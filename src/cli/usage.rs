//! Readers of arguments that several subcommands take; tips for wrong command lines that people
//! write, and for variables whose names are misspelt.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use http::{HeaderName, HeaderValue, Uri};

use super::command_line;

/// Edits between a name and the one that is meant. A Service of Kubernetes named `fencepost` puts
/// `FENCEPOST_PORT` and others into the environment, which are farther from ours.
const TYPOS: usize = 2;

/// Adds a tip to an error of clap, if its own text would not help. `words`: the command line.
pub(super) fn with_tip(mut error: clap::Error, words: &[String]) -> clap::Error {
    let wrong = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let wrong = wrong.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    });
    let Some(tip) = wrong.and_then(|wrong| tip(error.kind(), &wrong, words)) else {
        return error;
    };
    let tips = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tips);
    error
}

/// `wrong`: the word at which clap stopped.
fn tip(kind: ErrorKind, wrong: &str, words: &[String]) -> Option<String> {
    let command = words.get(1).map_or("", String::as_str);
    let at = words.iter().position(|word| word == wrong);
    let before = at.and_then(|at| words.get(at.checked_sub(1)?));
    if wrong.starts_with('-')
        && let Some(flag) = before.filter(|flag| flag.starts_with("--") && !flag.contains('='))
    {
        let tip = format!("a value that begins with a dash is written with `=`: {flag}={wrong}");
        return Some(tip);
    }
    Some(match (command, kind) {
        ("attach", ErrorKind::UnknownArgument) if wrong.contains("://") => {
            format!("the fencepost is named by a flag: --to {wrong}")
        }
        ("attach", ErrorKind::UnknownArgument) => {
            format!("the command follows two dashes: fencepost attach … -- {wrong}")
        }
        ("explain", ErrorKind::ValueValidation) if wrong == "<METHOD>" => {
            "the method is first: fencepost explain PUT /orders/7".to_owned()
        }
        ("marks", ErrorKind::InvalidSubcommand) => {
            format!("to show one mark: fencepost marks get {wrong}")
        }
        ("drain", ErrorKind::UnknownArgument) => format!("the process is named by --pid {wrong}"),
        (first, ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument)
            if first == wrong
                && (["run", "start", "--config"].contains(&wrong) || wrong.contains(".y")) =>
        {
            "to run the proxy: fencepost serve FILE".to_owned()
        }
        _ => return None,
    })
}

/// Warnings of environment variables that nothing reads, and whose names are nearly those of ours.
pub(super) fn misspelt_variables(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let root = command_line();
    let commands = root.get_subcommands();
    let known: Vec<_> = commands
        .flat_map(clap::Command::get_arguments)
        .filter_map(|arg| arg.get_env()?.to_str())
        .filter(|name| name.starts_with("FENCEPOST_"))
        .collect();
    let warnings = names.filter_map(|name| {
        let name = name.to_str()?;
        if !name.starts_with("FENC") || known.contains(&name) {
            return None;
        }
        let typos = |known: &&&str| strsim::damerau_levenshtein(name, known);
        let meant = known.iter().min_by_key(typos)?;
        (typos(&meant) <= TYPOS)
            .then(|| format!("the variable {name} is not read; did you mean {meant}?"))
    });
    warnings.collect()
}

/// The target of a request: its path with the query.
pub(super) fn path_and_query(text: &str) -> Result<Uri, String> {
    if !text.starts_with('/') {
        return Err("it is a path that begins with `/`, such as /orders/7".into());
    }
    // `Uri` would cut it silently.
    if text.contains('#') {
        return Err("a fragment (`#…`) is never sent; leave it out, or write `%23`".into());
    }
    text.parse()
        .map_err(|error| format!("{error}; escape it as in a URL"))
}

/// A header field, as curl's `-H` takes it.
pub(super) fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write `Name: value`")?;
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("`{name}` is not a field name"))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| "the value has characters that no header may have".to_owned())?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Invocation;

    /// A wrong call, its exit code, and a part of the answer.
    #[test]
    fn a_wrong_call_gets_a_tip() {
        for (call, part) in [
            ("fencepost fencepost.yaml", "fencepost serve FILE"),
            ("fencepost --config a", "fencepost serve FILE"),
            ("fencepost run", "fencepost serve FILE"),
            ("fencepost serv", "'serve'"),
            ("fencepost serve a --config b", "once"),
            ("fencepost serve a b", "unexpected argument 'b'"),
            ("fencepost serve --lisen a:1", "'--listen'"),
            (
                "fencepost serve --listen a:1 --listen=b:2",
                "cannot be used multiple times",
            ),
            ("fencepost serve --listen", "a value is required"),
            ("fencepost serve --namespace -x", "--namespace=-x"),
            ("fencepost check", "FILE"),
            ("fencepost explain /orders/7", "explain PUT /orders/7"),
            ("fencepost explain PUT orders/7", "begins with `/`"),
            ("fencepost attach --to http://a --token 1 ./cmd", "-- ./cmd"),
            ("fencepost attach http://a --token 1", "--to http://a"),
            ("fencepost marks order:7", "marks get order:7"),
            ("fencepost marks advance a -5", "-- -5"),
            ("fencepost marks advance a x", "digits"),
            ("fencepost drain 5", "--pid 5"),
        ] {
            let error = Invocation::try_parse(call.split(' ')).expect_err(call);
            assert_eq!(error.exit_code(), 2, "{call}");
            let answer = error.to_string();
            assert!(answer.contains(part), "{call}: {answer}");
        }
    }

    #[test]
    fn a_file_is_named_by_its_place_or_by_its_flag() {
        for call in [
            "fencepost serve FILE",
            "fencepost serve --config FILE",
            "fencepost check FILE",
            "fencepost check --config=FILE",
            "fencepost explain PUT /a FILE",
            "fencepost explain --config FILE PUT /a",
            "fencepost migrate FILE",
            "fencepost status --config FILE",
            "fencepost marks list --config FILE",
            "fencepost health live --config FILE",
        ] {
            let parsed = Invocation::try_parse(call.split(' '));
            let parsed = parsed.unwrap_or_else(|error| panic!("{call}: {error}"));
            assert!(format!("{parsed:?}").contains("\"FILE\""), "{call}");
        }
    }

    #[test]
    fn a_misspelt_variable_is_told_and_a_foreign_one_is_not() {
        for (name, meant) in [
            ("FENCEPOST_UPSTREM", Some("FENCEPOST_UPSTREAM")),
            ("FENCEPOST_ADMIN_ULR", Some("FENCEPOST_ADMIN_URL")),
            ("FENCPOST_CONFIG", Some("FENCEPOST_CONFIG")),
            ("FENCEPOST_CONFIG", None),
            ("FENCEPOST_PORT", None),
            ("FENCEPOST_SERVICE_HOST", None),
            ("FENCEPOST_PORT_7080_TCP", None),
            ("FENCEPOST_URL", None),
            ("FENCEPOST_SOCKET", None),
            ("UPSTREM", None),
        ] {
            let warnings = misspelt_variables(std::iter::once(name.into()));
            let expected = meant
                .map(|meant| format!("the variable {name} is not read; did you mean {meant}?"));
            assert_eq!(warnings, Vec::from_iter(expected), "{name}");
        }
    }
}
