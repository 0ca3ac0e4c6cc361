//! Every target over its corpus, and over mutations of it: seconds, on stable, at every change.
//!
//! `FENCEPOST_FUZZ_SEED` plays a run again; `FENCEPOST_FUZZ_SECONDS` has each target go on for so
//! long.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fencepost_fuzz::corpus::{self, Input};
use fencepost_fuzz::mutate::{Dice, mutate, words};
use fencepost_fuzz::{Seen, TARGETS, Target};

/// How many mutations a target is given where no time is: what takes about a second without
/// optimisation.
fn mutations(target: &Target) -> usize {
    if target.name == "config" { 500 } else { 4_000 }
}

fn inputs(target: &Target) -> Vec<Input> {
    let archive = corpus::archive(target.name);
    let read = fs::read(&archive).and_then(|bytes| corpus::read(&bytes));
    read.unwrap_or_else(|error| panic!("{}: {error}", archive.display()))
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
    let inputs = inputs(target);
    let bytes: usize = inputs.iter().map(|input| input.data.len()).sum();
    assert!((10..300).contains(&inputs.len()), "{} inputs", inputs.len());
    assert!(bytes < 256 << 10, "{bytes} bytes");
    let mut accepted = 0;
    let mut broken = Vec::new();
    for input in &inputs {
        match verdict(target, &input.data) {
            Ok(became) => accepted += usize::from(became == Seen::Accepted),
            Err(promise) => broken.push(format!("{}: {promise}", input.name)),
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
    let inputs = inputs(target);
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

targets!(token path route query key resource json headers config request response chunked stream);

#[test]
fn every_target_has_one_archive_and_there_is_no_other_file() {
    let mut found: Vec<_> = fs::read_dir(corpus::folder())
        .expect("the folder is read")
        .map(|entry| entry.expect("the folder is read").path())
        .collect();
    let mut wanted: Vec<_> = TARGETS
        .iter()
        .map(|target| corpus::archive(target.name))
        .collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

/// Also shows that each archive is whole: its end is among the bytes.
#[test]
fn an_archive_packs_again_to_the_same_bytes() {
    for target in TARGETS {
        let folder = tempfile::tempdir().expect("a folder");
        let (files, again) = (folder.path().join("files"), folder.path().join("again.tar"));
        let archive = corpus::archive(target.name);
        let unpacked = corpus::unpack(&archive, &files).expect("it unpacks");
        let packed = corpus::pack(&files, &again).expect("it packs");
        assert_eq!(unpacked, packed, "{}", target.name);
        let bytes = |path| fs::read(path).expect("the archive is read");
        assert!(bytes(&archive) == bytes(&again), "{}", target.name);
    }
}

#[test]
fn a_torn_archive_is_not_read() {
    let input = Input {
        name: "a".to_owned(),
        data: vec![b'x'; 1_000],
    };
    let archive = corpus::write(vec![input.clone()]).expect("it packs");
    assert_eq!(corpus::read(&archive).expect("it is read"), [input]);
    corpus::read(&archive[..700]).expect_err("the data is torn");
    corpus::read(&archive[..100]).expect_err("the header is torn");
}

fn target(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("there is a target of this name")
}
