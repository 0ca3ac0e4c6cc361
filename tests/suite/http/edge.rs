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

use std::fmt::Write as _;

use self::cases::EdgeCase;
use self::http2::Http2Case;
use self::recorder::Recorder;
use self::stage::Stage;
use self::wanted::Wanted;

/// Plays all cases; returns what fails, and what arrives that no case has to do with. `shown`: a
/// case, for a failure.
async fn failures<C>(
    cases: &[C],
    play: impl AsyncFn(&C, &Stage) -> Result<(), String>,
    wanted: impl Fn(&C) -> &Wanted,
    shown: impl Fn(&C) -> String,
) -> Vec<String> {
    let stage = Stage::start().await;
    let played = Stage::play(cases, |case| play(case, &stage)).await;
    let end = stage.end().await;
    let failed = played.into_iter().filter_map(|(case, outcome)| {
        let why = outcome.and_then(|()| wanted(case).settle(&end)).err()?;
        Some(format!("{why}: {}", shown(case)))
    });
    let is_case = |word: &[u8]| word[0] == b'k' && word[1..].iter().all(u8::is_ascii_digit);
    failed.chain(end.strays(is_case)).collect()
}

async fn failures_of(cases: &[EdgeCase]) -> Vec<String> {
    let play = async |case: &EdgeCase, stage: &Stage| case.play(stage).await;
    failures(cases, play, |case| &case.wanted, EdgeCase::shown).await
}

fn report(failures: &[String], of: usize) {
    let failed = failures.len();
    let failures = failures.join("\n\n");
    assert!(failed == 0, "{failed} of {of} failed\n\n{failures}\n");
}

/// A test for each file of the corpus.
macro_rules! corpus {
    ($($file:ident)*) => {
        const FILES: &[&str] = &[$(stringify!($file)),*];
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $file() {
                let (files, file) = (template::files("tests/edge"), stringify!($file));
                let cases = cases::of_file(file, &files[file]);
                report(&failures_of(&cases).await, cases.len());
            }
        )*
    };
}

corpus! {
    chunked claim connection expect fields framing host keys limits method paths
    pipelining request_line target token trailers version
}

#[test]
fn the_corpus_is_whole() {
    let mut files = template::files("tests/edge");
    files.remove("http2");
    assert_eq!(files.keys().collect::<Vec<_>>(), FILES);
    let cases = files
        .iter()
        .map(|(file, table)| cases::of_file(file, table).len());
    assert!(cases.sum::<usize>() >= 700);
}

/// Each key of a case can fail: these expect something wrong, and the complaint says it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_expectation_fails() {
    let mut group = r#"
        [[group]]
        basis = "policy: a request that passes"
        send = "{put}X-A: b\r\nContent-Length: 3\r\n\r\nabc"
        status = 200
        arrives = "PUT /orders/{id}"
    "#
    .to_owned();
    let closes = r#"send = "{put}Connection: close\r\n\r\n", then = "open""#;
    let wrong = [
        ("status = 201", "HTTP/1.1 200 OK: seen"),
        (r#"arrives = "PUT /orders/other""#, "[\"PUT /orders/k"),
        (r#"with = ["X-A: c"]"#, "X-A: [\"b\"], instead of \"c\""),
        (r#"without = ["x-a"]"#, "x-a: [\"b\"], where none"),
        (r#"body = "ab""#, "the body Ok([97, 98, 99])"),
        (r#"framing = "chunked""#, "framed by Length"),
        (r#"interim = ["100"]"#, "the interim answers []"),
        ("mark = 8", "left the mark Some(7), instead of Some(8)"),
        (r#"then = "closed""#, "HTTP/1.1 200 OK, where"),
        (closes, "closed, where"),
    ];
    for (at, (expected, _)) in wrong.iter().enumerate() {
        writeln!(group, "case.n{at} = {{ {expected} }}").expect("a String takes all");
    }
    let table = toml::from_str(&group).expect("TOML");
    let failed = failures_of(&cases::of_file("wrong", &table)).await;
    assert_eq!(failed.len(), wrong.len(), "{failed:#?}");
    for (failure, (expected, complaint)) in failed.iter().zip(wrong) {
        assert!(failure.starts_with(complaint), "{expected}: {failure}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http_2_comes_out_as_it_must() {
    let play = async |case: &Http2Case, stage: &Stage| case.play(stage.proxy.data()).await;
    let cases = http2::all();
    let failed = failures(&cases, play, |case| &case.wanted, Http2Case::shown).await;
    report(&failed, cases.len());
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
