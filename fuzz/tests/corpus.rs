//! Every target over its corpus, and over mutations of it: seconds, on stable, at every change.
//!
//! `FENCEPOST_FUZZ_SEED` plays a run again; `FENCEPOST_FUZZ_SECONDS` has each target go on for so long.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fencepost_fuzz::mutate::{Dice, mutate, words};
use fencepost_fuzz::{Seen, TARGETS, Target};

/// How many mutations a target is given where no time is: what takes about a second without optimisation.
fn mutations(target: &Target) -> usize {
    if target.name == "config" { 500 } else { 4_000 }
}

/// A file of a corpus.
struct Input {
    file: PathBuf,
    data: Vec<u8>,
}

fn corpus(target: &Target) -> Vec<Input> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<Input> = entries
        .map(|entry| {
            let file = entry.expect("the folder is read").path();
            let data = fs::read(&file).expect("the file is read");
            Input { file, data }
        })
        .collect();
    inputs.sort_by(|a, b| a.file.cmp(&b.file));
    inputs
}

/// The verdict, with a panic as what it is: a broken promise.
fn verdict(target: &Target, data: &[u8]) -> Result<Seen, String> {
    let check = || (target.check)(data);
    catch_unwind(AssertUnwindSafe(check))
        .unwrap_or_else(|_| Err("it panicked; see above".to_owned()))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a whole number, not {text}")),
    )
}

fn corpus_holds(target: &Target) {
    let inputs = corpus(target);
    let bytes: usize = inputs.iter().map(|input| input.data.len()).sum();
    assert!((10..300).contains(&inputs.len()), "{} files", inputs.len());
    assert!(bytes < 256 << 10, "{bytes} bytes");
    let mut accepted = 0;
    let mut broken = Vec::new();
    for input in &inputs {
        match verdict(target, &input.data) {
            Ok(became) => accepted += usize::from(became == Seen::Accepted),
            Err(promise) => broken.push(format!("{}: {promise}", input.file.display())),
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    // A corpus that is all refused, or all taken, leaves half of the promises unasked.
    assert!(
        accepted > 0 && accepted < inputs.len(),
        "{accepted} accepted"
    );
}

fn mutations_hold(target: &Target) {
    let seed =
        number("FENCEPOST_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(target.name));
    let time = number("FENCEPOST_FUZZ_SECONDS").map(Duration::from_secs);
    println!("FENCEPOST_FUZZ_SEED={seed}");
    let inputs = corpus(target);
    let words = words(target.dictionary);
    let mut dice = Dice::new(seed);
    let start = Instant::now();
    let (mut made, mut accepted) = (0, 0);
    while time.map_or(made < mutations(target), |time| start.elapsed() < time) {
        let (one, other) = (dice.below(inputs.len()), dice.below(inputs.len()));
        let data = mutate(&mut dice, &inputs[one].data, &inputs[other].data, &words);
        match verdict(target, &data) {
            Ok(became) => accepted += usize::from(became == Seen::Accepted),
            Err(promise) => panic!(
                "{promise}\ninput: {}\nFENCEPOST_FUZZ_SEED={seed} plays it again",
                data.escape_ascii()
            ),
        }
        made += 1;
    }
    println!(
        "{made} mutations, {accepted} accepted, {:?}",
        start.elapsed()
    );
    assert!(accepted > 0, "not one mutation was accepted");
}

/// Two tests for each target.
macro_rules! targets {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn corpus() {
                super::corpus_holds(super::target(stringify!($name)));
            }

            #[test]
            fn mutations() {
                super::mutations_hold(super::target(stringify!($name)));
            }
        })*

        #[test]
        fn no_target_is_left_out() {
            let here = [$(stringify!($name)),*];
            let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(all, here);
        }
    };
}

targets!(token path route query key resource json headers config request response chunked stream hpack frames);

fn target(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("there is a target of this name")
}
