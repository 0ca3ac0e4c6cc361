//! Flags and environment variables with wrong values, over a file in which everything is right: each
//! problem names what set the value, and no line of the file.

use std::collections::BTreeSet;

use crate::support::proxy::fencepost;
use crate::support::run::{run, run_with};

/// A wrong value for each flag; the words of the variable are its own.
const WRONG: [(&str, &str); 13] = [
    ("upstream", "ftp://a"),
    ("listen", "7080"),
    ("store", "mysql://u:sesame@h/d"),
    ("namespace", "a b"),
    ("settle", "soon"),
    ("admin-listen", "7081"),
    ("default-listen", "a:70800"),
    ("default-admin-listen", "a:70801"),
    ("admin-token-file", "SHORT"),
    ("resource", "{nothing}"),
    ("mode", "enforced"),
    ("log-format", "xml"),
    ("log-level", "loud"),
];

/// Every field that a flag sets, each on a line of its own.
const FILE: &str = "\
listen: 127.0.0.1:7080
upstream:
  url: http://127.0.0.1:3000
store:
  url: sqlite:a.db
  namespace: orders
barrier:
  settle: 30s
admin:
  listen: 127.0.0.1:7081
  token_file: GOOD
log:
  format: json
  level: info
";

#[tokio::test]
async fn a_wrong_value_is_told_by_the_flag_or_variable_that_set_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("the directory is writable");
        path.to_str().expect("text").to_owned()
    };
    let good = place("good", "a-token-that-is-long-enough");
    let short = place("short", "short");
    let text = FILE.replace("GOOD", &good);
    let file = place("file.yaml", &text);
    // The file's own value stands above a default, so it has none.
    let without: Vec<_> = text.lines().filter(|l| !l.contains("listen:")).collect();
    let without = place("without.yaml", &without.join("\n"));

    let help = run_with(&["serve", "--help"]).await.out;
    let listed = |before: &str, after: char| -> BTreeSet<String> {
        let rest = help.split(before).skip(1);
        rest.filter_map(|rest| Some(rest.split_once(after)?.0.to_owned()))
            .collect()
    };
    let mut flags: BTreeSet<_> = WRONG.iter().map(|(flag, _)| (*flag).to_owned()).collect();
    flags.insert("config".to_owned());
    assert_eq!(listed("      --", ' '), flags, "{help}");

    for (flag, value) in WRONG {
        let value = value.replace("SHORT", &short);
        let variable = format!("FENCEPOST_{}", flag.to_ascii_uppercase().replace('-', "_"));
        assert!(listed("[env: ", ']').contains(&variable), "{variable}");
        let file = if flag.starts_with("default-") {
            &without
        } else {
            &file
        };
        let shown = match flag {
            "store" => "unknown store type",
            // A path is not wrong by itself: its content is.
            "admin-token-file" => "fewer than 16",
            _ => &value,
        };
        let argument = format!("--{flag}");
        for name in [&argument, &variable] {
            let mut command = fencepost();
            command.args(["check", file]);
            if *name == variable {
                command.env(&variable, &value);
            } else {
                command.arg(format!("{argument}={value}"));
            }
            let told = run(command).await.out;
            assert!(!told.contains("sesame"), "{told}");
            let problems = ["error: ", "warning: "];
            let is_problem = |line: &&str| problems.iter().any(|word| line.starts_with(word));
            let found: Vec<&str> = told.lines().filter(is_problem).collect();
            let [problem] = found[..] else {
                panic!("{told}")
            };
            let (_, problem) = problem.split_once(": ").expect("a severity");
            let begins = format!("{name}: ");
            assert!(problem.starts_with(&begins), "{told}");
            assert!(problem.contains(shown), "{told}");
        }
    }
}
