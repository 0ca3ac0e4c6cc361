//! The HTTP edge as data. Each case of `tests/edge` is bytes to send, and the outcome that they
//! must have. Each published way to smuggle a request is a mutation that must come to nothing
//! (guarantees G1 and G6). All run over the real binary, before an upstream that takes only
//! well-framed requests.

mod cases;
mod http2;
mod recorder;
mod smuggling;
mod stage;
mod strict;
mod template;
mod wanted;

use self::cases::EdgeCase;
use self::http2::Http2Case;
use self::recorder::Recorder;
use self::stage::Stage;
use self::wanted::Wanted;

/// Plays all cases: none may fail, and nothing may arrive that no case has to do with. `shown`: a
/// case, for a failure.
async fn come_out<C>(
    cases: &[C],
    play: impl AsyncFn(&C, &Stage) -> Result<(), String>,
    wanted: impl Fn(&C) -> &Wanted,
    shown: impl Fn(&C) -> String,
) {
    let stage = Stage::start().await;
    let played = Stage::play(cases, |case| play(case, &stage)).await;
    let end = stage.end().await;
    let failed = played.into_iter().filter_map(|(case, outcome)| {
        let why = outcome.and_then(|()| wanted(case).settle(&end)).err()?;
        Some(format!("{why}: {}", shown(case)))
    });
    let is_case = |word: &[u8]| word[0] == b'k' && word[1..].iter().all(u8::is_ascii_digit);
    let failures: Vec<String> = failed.chain(end.strays(is_case)).collect();
    report(&failures, cases.len());
}

fn report(failures: &[String], of: usize) {
    let failed = failures.len();
    let failures = failures.join("\n\n");
    assert!(failed == 0, "{failed} of {of} failed\n\n{failures}\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_the_corpus_comes_out_as_it_must() {
    let cases = cases::all();
    assert!(cases.len() >= 250, "only {} cases", cases.len());
    let play = async |case: &EdgeCase, stage: &Stage| case.play(stage).await;
    come_out(&cases, play, |case| &case.wanted, EdgeCase::shown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http_2_comes_out_as_it_must() {
    let play = async |case: &Http2Case, stage: &Stage| case.play(stage.proxy.data()).await;
    come_out(&http2::all(), play, |case| &case.wanted, Http2Case::shown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_published_way_to_smuggle_gets_a_second_request_through() {
    let mutations = smuggling::all();
    assert!(mutations.len() > 1000, "only {} mutations", mutations.len());
    let stage = Stage::start().await;
    let to = stage.proxy.data();
    let played = Stage::play(&mutations, |mutation| mutation.play(to)).await;
    let end = stage.end().await;
    let arrivals = smuggling::by_name(&end.arrivals);
    let failed = played.into_iter().filter_map(|(mutation, played)| {
        let why = mutation.judge(played, &arrivals, &end.marks).err()?;
        Some(mutation.describe(&why))
    });
    let is_name = |word: &[u8]| word[0] == b'q' && word[1..].iter().all(u8::is_ascii_digit);
    let failures: Vec<String> = failed.chain(end.strays(is_name)).collect();
    report(&failures, mutations.len());
}

/// A pipe to the upstream is what a proxy would be that checks nothing: nearly every mutation must
/// be seen to go wrong there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_checks_nothing_is_found_out() {
    let upstream = Recorder::start().await;
    let some: Vec<_> = smuggling::all().into_iter().step_by(17).collect();
    let played = Stage::play(&some, |mutation| mutation.play(upstream.address)).await;
    let arrivals = upstream.arrivals();
    let arrivals = smuggling::by_name(&arrivals);
    let wrong = played
        .into_iter()
        .filter(|(mutation, played)| mutation.judge(played.clone(), &arrivals, &[]).is_err())
        .count();
    let of = some.len();
    assert!(wrong * 10 > of * 9, "only {wrong} of {of} are found wrong");
}
