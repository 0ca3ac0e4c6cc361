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
use self::stage::Stage;

/// Plays the cases; what was wrong with each that failed, and with what no case had to do with.
async fn failures(cases: &[EdgeCase]) -> Vec<String> {
    let field = Stage::start().await;
    let played = Stage::play(cases, |case| case.play(&field)).await;
    let rest = field.end().await;
    let mut failures = Vec::new();
    for (case, outcome) in played {
        let settled = case.settle(&rest.arrivals, &rest.marks);
        if let Err(why) = outcome.and(settled) {
            failures.push(case.describe(&why));
        }
    }
    let strays = rest.strays(is_case);
    failures.extend(
        strays
            .iter()
            .map(|stray| format!("nobody's arrival: {stray}")),
    );
    failures
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
    let strays = rest.strays(|word| word[0] == b'q' && word[1..].iter().all(u8::is_ascii_digit));
    failures.extend(
        strays
            .iter()
            .map(|stray| format!("nobody's arrival: {stray}")),
    );
    report(&failures, mutations.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http_2_comes_out_as_it_must() {
    let cases = http2::all();
    let field = Stage::start().await;
    let to = field.proxy.data();
    let played = Stage::play(&cases, |case| case.play(to)).await;
    let rest = field.end().await;
    let mut failures = Vec::new();
    for (case, outcome) in played {
        let settled = case.settle(&rest.arrivals, &rest.marks);
        if let Err(why) = outcome.and(settled) {
            failures.push(case.describe(&why));
        }
    }
    failures.extend(
        rest.strays(is_case)
            .iter()
            .map(|stray| format!("nobody's arrival: {stray}")),
    );
    report(&failures, cases.len());
}

/// Returns whether five bytes are the name of a case.
fn is_case(word: &[u8]) -> bool {
    word[0] == b'k' && word[1..].iter().all(u8::is_ascii_digit)
}
