//! A right client passes, and each fault is found by its own rule.

use super::*;

const TOKEN: &str = "41";
const STOPS: Expectation = expects(false, false, false);
const WRITES: Expectation = expects(false, false, true);
const MAY_GIVE_UP: Expectation = expects(false, true, false);
const CLAIMS: Expectation = expects(true, false, false);

const fn expects(claims: bool, may_give_up: bool, writes: bool) -> Expectation {
    Expectation {
        claims,
        may_give_up,
        writes,
    }
}

/// A request that came after so many milliseconds and was answered one later.
fn at(ms: u64, kind: RequestKind, answer: RunAnswer) -> RunRequest {
    RunRequest {
        kind,
        method: "PUT".into(),
        target: "/orders/7".into(),
        token: Ok(TOKEN.into()),
        content: [0; 32],
        came: Duration::from_millis(ms),
        answered: Duration::from_millis(ms + 1),
        answer,
    }
}

fn write(ms: u64, answer: RunAnswer) -> RunRequest {
    at(ms, RequestKind::Write, answer)
}

fn read(ms: u64) -> RunRequest {
    RunRequest {
        method: "GET".into(),
        token: Err("it has no X-Fencing-Token".into()),
        ..at(ms, RequestKind::Read, RunAnswer::Accepted)
    }
}

fn claim(ms: u64, answer: RunAnswer) -> RunRequest {
    at(ms, RequestKind::Claim("PUT /orders/7".into()), answer)
}

const DONE: RunAnswer = RunAnswer::Accepted;
const GRANTED: RunAnswer = RunAnswer::Claimed;
const LOST: RunAnswer = RunAnswer::NoAnswer;
const STALE: RunAnswer = refused(412, Retry::Never, None);
const UNKNOWN: RunAnswer = refused(502, Retry::CheckFirst, None);
const WAIT: RunAnswer = refused(503, Retry::SameToken, Some(1));
const UNREACHABLE: RunAnswer = refused(502, Retry::SameToken, None);

const fn refused(status: u16, retry: Retry, after: Option<u64>) -> RunAnswer {
    RunAnswer::Refused {
        status,
        outcome: "word",
        retry,
        after: match after {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => None,
        },
        planned: true,
    }
}

#[track_caller]
fn passes(expectation: Expectation, requests: &[RunRequest]) {
    let problems = problems(expectation, requests);
    assert!(problems.is_empty(), "{problems:?}");
}

/// Exactly one problem, which says this.
#[track_caller]
fn fails(expectation: Expectation, requests: &[RunRequest], says: &str) {
    let problems = problems(expectation, requests);
    assert!(
        problems.len() == 1 && problems[0].contains(says),
        "{problems:?}"
    );
}

#[test]
fn a_run_without_the_request_it_is_about_has_not_passed() {
    fails(STOPS, &[], "no write and no claim came");
    fails(STOPS, &[read(0)], "no write and no claim came");
    fails(STOPS, &[claim(0, GRANTED)], "no write came");
    fails(WRITES, &[claim(0, GRANTED)], "no write was accepted");
    passes(WRITES, &[claim(0, GRANTED), read(1), write(2, DONE)]);
}

#[test]
fn each_request_has_the_one_token() {
    passes(WRITES, &[write(0, DONE), write(5, DONE)]);
    let mut other = write(5, DONE);
    other.token = Ok("42".into());
    fails(WRITES, &[write(0, DONE), other], "token 42 after 41");
    let mut without = write(5, DONE);
    without.token = Err("it has no X-Fencing-Token".into());
    let says = "request 2 (PUT /orders/7): it has no X-Fencing-Token";
    fails(WRITES, &[write(0, DONE), without], says);
}

#[test]
fn after_never_no_write_comes() {
    passes(STOPS, &[write(0, STALE), read(5)]);
    let says = "request 3 (PUT /orders/7) came after request 1";
    let again = [write(0, STALE), read(4), write(5, DONE)];
    fails(STOPS, &again, says);
    // It was on its way when the first one was answered.
    passes(STOPS, &[write(1, STALE), write(0, DONE)]);
    let claimed = [write(0, STALE), claim(5, GRANTED)];
    fails(STOPS, &claimed, "the claim of PUT /orders/7");
}

#[test]
fn a_write_that_may_have_taken_effect_is_not_repeated() {
    for lost in [UNKNOWN, LOST] {
        passes(STOPS, &[write(0, lost), read(5)]);
        fails(
            STOPS,
            &[write(0, lost), write(5, DONE)],
            "repeats request 1",
        );
        let mut another = write(5, DONE);
        another.target = "/orders/8".into();
        passes(STOPS, &[write(0, lost), read(4), another]);
    }
}

#[test]
fn the_same_request_comes_again_and_not_too_soon() {
    passes(WRITES, &[write(0, WAIT), write(1001, DONE)]);
    // Timers round.
    passes(WRITES, &[write(0, WAIT), write(990, DONE)]);
    let early = [write(0, WAIT), write(900, DONE)];
    fails(WRITES, &early, "came 899 ms after request 1");
    passes(WRITES, &[write(0, UNREACHABLE), write(2, DONE)]);
    let mut changed = write(1500, DONE);
    changed.content = [1; 32];
    fails(WRITES, &[write(0, WAIT), changed], "another body");
    let mut elsewhere = write(1500, DONE);
    elsewhere.target = "/orders/8".into();
    fails(WRITES, &[write(0, WAIT), elsewhere], "was not sent again");
    let twice = [write(0, WAIT), write(1001, WAIT), write(1500, DONE)];
    fails(WRITES, &twice, "request 3 (PUT /orders/7) came 498 ms");
}

#[test]
fn endless_refusals_may_be_given_up_and_are_not_hammered() {
    passes(MAY_GIVE_UP, &[write(0, WAIT)]);
    passes(MAY_GIVE_UP, &[write(0, WAIT), write(1001, WAIT)]);
    let hammered = [write(0, WAIT), write(2, WAIT)];
    fails(MAY_GIVE_UP, &hammered, "came 1 ms");
}

#[test]
fn a_claim_that_is_refused_is_followed_by_no_write() {
    passes(CLAIMS, &[claim(0, STALE)]);
    let all_the_same = [claim(0, STALE), write(5, DONE)];
    fails(CLAIMS, &all_the_same, "came after request 1");
    let late = [write(0, DONE), claim(5, STALE)];
    fails(CLAIMS, &late, "no claim came before");
    let waits = expects(true, false, true);
    let right = [claim(0, WAIT), claim(1001, GRANTED), write(1002, DONE)];
    passes(waits, &right);
    let impatient = [claim(0, WAIT), write(3, DONE)];
    fails(waits, &impatient, "was not sent again");
}

#[test]
fn a_claim_counts_before_the_first_write() {
    assert!(claimed(&[claim(0, GRANTED), write(1, DONE)]));
    assert!(!claimed(&[write(0, DONE), claim(1, GRANTED)]));
    assert!(!claimed(&[claim(0, STALE)]) && !claimed(&[]));
}

#[test]
fn an_answer_reads_as_the_wire_has_it() {
    let text = |answer: RunAnswer| answer.to_string();
    assert_eq!(text(WAIT), "503 word, same-token, Retry-After: 1");
    assert_eq!(text(STALE), "412 word, never");
    assert_eq!(text(GRANTED), "204 claimed");
}
