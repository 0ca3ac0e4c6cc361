//! The HTTP edge as data. Each case of `tests/edge` is bytes to send, and the outcome that they
//! must have. Each published way to smuggle a request is a mutation that must come to nothing
//! (guarantees G1 and G6). All run over the real binary, before an upstream that takes only
//! well-framed requests.

mod cases;
mod http2;
mod recorder;
mod self_check;
mod smuggling;
mod stage;
mod strict;
mod template;
mod wanted;

use self::cases::EdgeCase;
use self::http2::Http2Case;
use self::stage::{Stage, StageEnd};
use self::wanted::Wanted;

/// Plays the cases; what was wrong with each that failed, and with what no case had to do with.
async fn failures(cases: &[EdgeCase]) -> Vec<String> {
    let field = Stage::start().await;
    let played = Stage::play(cases, |case| case.play(&field)).await;
    judged(
        played,
        &field.end().await,
        |case| &case.wanted,
        EdgeCase::describe,
    )
}

fn judged<C>(
    played: Vec<(&C, Result<(), String>)>,
    end: &StageEnd,
    wanted: impl Fn(&C) -> &Wanted,
    describe: impl Fn(&C, &str) -> String,
) -> Vec<String> {
    let failed = played.into_iter().filter_map(|(case, outcome)| {
        let why = outcome.and(wanted(case).settle(end)).err()?;
        Some(describe(case, &why))
    });
    failed.chain(end.strays(is_case)).collect()
}

fn report(failures: &[String], of: usize) {
    assert!(
        failures.is_empty(),
        "{} of {of} failed\n\n{}\n",
        failures.len(),
        failures.join("\n\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_the_corpus_comes_out_as_it_must() {
    let cases = cases::all();
    assert!(cases.len() >= 250, "only {} cases", cases.len());
    report(&failures(&cases).await, cases.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_published_way_to_smuggle_gets_a_second_request_through() {
    let mutations = smuggling::all();
    assert!(mutations.len() > 1000, "only {} mutations", mutations.len());
    let field = Stage::start().await;
    let to = field.proxy.data();
    let played = Stage::play(&mutations, |mutation| mutation.play(to)).await;
    let rest = field.end().await;
    let mut failures = Vec::new();
    let arrivals = smuggling::by_name(&rest.arrivals);
    for (mutation, outcome) in played {
        if let Err(why) = mutation.judge(outcome, &arrivals, &rest.marks) {
            failures.push(mutation.describe(&why));
        }
    }
    let is_name = |word: &[u8]| word[0] == b'q' && word[1..].iter().all(u8::is_ascii_digit);
    failures.extend(rest.strays(is_name));
    report(&failures, mutations.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http_2_comes_out_as_it_must() {
    let cases = http2::all();
    let field = Stage::start().await;
    let to = field.proxy.data();
    let played = Stage::play(&cases, |case| case.play(to)).await;
    let end = field.end().await;
    let failures = judged(played, &end, |case| &case.wanted, Http2Case::describe);
    report(&failures, cases.len());
}

/// Returns whether five bytes are the name of a case.
fn is_case(word: &[u8]) -> bool {
    word[0] == b'k' && word[1..].iter().all(u8::is_ascii_digit)
}
