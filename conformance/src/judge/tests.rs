//! A correct client passes, and each fault is found by its own rule.

use super::*;
use crate::scenarios;

const STOPS: &str = "stale-token";
const CHECKS: &str = "outcome-unknown";
/// With `Retry-After: 2`.
const RETRIES: &str = "older-in-flight";
const MAY_GIVE_UP: &str = "older-in-flight-forever";
const CLAIMS: &str = "claim-stale";

const DONE: Answer = Answer::Accepted;
const GRANTED: Answer = Answer::Claimed;

fn scenario(name: &str) -> Scenario {
    let mut all = scenarios::all().into_iter();
    all.find(|one| one.name == name).expect("a scenario")
}

fn token(number: i64) -> Token {
    Token::new(number).expect("a token")
}

/// The answer that a scenario is about.
fn planned(name: &str) -> Answer {
    scenario(name).answer(token(41))
}

/// A request that came after so many milliseconds and was answered one later.
fn at(ms: u64, kind: RequestKind, answer: Answer) -> RunRequest {
    RunRequest {
        number: 0,
        kind,
        method: "PUT".into(),
        target: "/orders/7".into(),
        subject: match kind {
            RequestKind::Claim => "the claim of PUT /orders/7".into(),
            _ => "PUT /orders/7".into(),
        },
        token: Ok(token(41)),
        content: 0,
        came: Duration::from_millis(ms),
        answered: Duration::from_millis(ms + 1),
        planned: answer.retry().is_some(),
        answer,
    }
}

fn write(ms: u64, answer: Answer) -> RunRequest {
    at(ms, RequestKind::Write, answer)
}

fn refused(ms: u64, scenario: &str) -> RunRequest {
    write(ms, planned(scenario))
}

fn read(ms: u64) -> RunRequest {
    RunRequest {
        token: Err("it has no X-Fencing-Token".into()),
        ..at(ms, RequestKind::Read, DONE)
    }
}

fn claim(ms: u64, answer: Answer) -> RunRequest {
    at(ms, RequestKind::Claim, answer)
}

fn elsewhere(request: RunRequest) -> RunRequest {
    RunRequest {
        subject: "PUT /orders/8".into(),
        ..request
    }
}

fn problems_of<const N: usize>(name: &str, mut requests: [RunRequest; N]) -> Vec<String> {
    for (number, request) in (1..).zip(&mut requests) {
        request.number = number;
    }
    problems(&scenario(name), &requests)
}

#[track_caller]
fn passes<const N: usize>(name: &str, requests: [RunRequest; N]) {
    let problems = problems_of(name, requests);
    assert!(problems.is_empty(), "{problems:?}");
}

/// Exactly one problem, which says this.
#[track_caller]
fn fails<const N: usize>(name: &str, requests: [RunRequest; N], says: &str) {
    let problems = problems_of(name, requests);
    assert!(
        problems.len() == 1 && problems[0].contains(says),
        "{problems:?}"
    );
}

#[test]
fn a_run_without_the_request_it_is_about_has_not_passed() {
    fails(STOPS, [], "no write and no claim came");
    fails(STOPS, [read(0)], "no write and no claim came");
    fails(STOPS, [claim(0, GRANTED)], "no write came");
    fails("accepted", [claim(0, GRANTED)], "no write was accepted");
    passes("accepted", [claim(0, GRANTED), read(1), write(2, DONE)]);
}

#[test]
fn each_request_has_the_one_token() {
    passes("accepted", [write(0, DONE), write(5, DONE)]);
    let mut other = write(5, DONE);
    other.token = Ok(token(42));
    fails("accepted", [write(0, DONE), other], "token 42 after 41");
    let mut without = write(5, DONE);
    without.token = Err("it has no X-Fencing-Token".into());
    let says = "request 2 (PUT /orders/7): it has no X-Fencing-Token";
    fails("accepted", [write(0, DONE), without], says);
}

#[test]
fn after_never_no_write_comes() {
    passes(STOPS, [refused(0, STOPS), read(5)]);
    let says = "request 3 (PUT /orders/7) came after request 1";
    fails(STOPS, [refused(0, STOPS), read(4), write(5, DONE)], says);
    // It was on its way when the first one was answered.
    passes(STOPS, [refused(1, STOPS), write(0, DONE)]);
    let says = "the claim of PUT /orders/7";
    fails(STOPS, [refused(0, STOPS), claim(5, GRANTED)], says);
}

#[test]
fn a_write_that_may_have_taken_effect_is_not_repeated() {
    for name in [CHECKS, "connection-lost"] {
        passes(name, [refused(0, name), read(5)]);
        let again = [refused(0, name), write(5, DONE)];
        fails(name, again, "repeats request 1");
        let another = elsewhere(write(5, DONE));
        passes(name, [refused(0, name), read(4), another]);
    }
}

#[test]
fn the_same_request_comes_again_and_not_too_soon() {
    passes(RETRIES, [refused(0, RETRIES), write(2001, DONE)]);
    // Timers round.
    passes(RETRIES, [refused(0, RETRIES), write(1990, DONE)]);
    let says = "came 1899 ms after request 1";
    fails(RETRIES, [refused(0, RETRIES), write(1900, DONE)], says);
    // Without Retry-After.
    let unreachable = "upstream-unreachable";
    passes(unreachable, [refused(0, unreachable), write(2, DONE)]);
    let mut changed = write(2500, DONE);
    changed.content = 1;
    fails(RETRIES, [refused(0, RETRIES), changed], "another body");
    let other = elsewhere(write(2500, DONE));
    let says = "was not sent again";
    fails(RETRIES, [refused(0, RETRIES), other], says);
    let again = refused(2001, RETRIES);
    let twice = [refused(0, RETRIES), again, write(2500, DONE)];
    fails(RETRIES, twice, "request 3 (PUT /orders/7) came 498 ms");
}

#[test]
fn endless_refusals_may_be_given_up_and_are_not_hammered() {
    let again = |ms| refused(ms, MAY_GIVE_UP);
    passes(MAY_GIVE_UP, [again(0)]);
    passes(MAY_GIVE_UP, [again(0), again(1001)]);
    fails(MAY_GIVE_UP, [again(0), again(2)], "came 1 ms");
}

#[test]
fn a_claim_that_is_refused_is_followed_by_no_write() {
    let stale = || claim(0, planned(CLAIMS));
    passes(CLAIMS, [stale()]);
    fails(CLAIMS, [stale(), write(5, DONE)], "came after request 1");
    let late = claim(5, planned(CLAIMS));
    fails(CLAIMS, [write(0, DONE), late], "no claim came before");
    let waits = || claim(0, planned("claim-waits"));
    let right = [waits(), claim(1001, GRANTED), write(1002, DONE)];
    passes("claim-waits", right);
    let impatient = [waits(), write(3, DONE)];
    fails("claim-waits", impatient, "was not sent again");
}

#[test]
fn a_claim_counts_before_the_first_write() {
    assert!(claimed(&[claim(0, GRANTED), write(1, DONE)]));
    assert!(!claimed(&[write(0, DONE), claim(1, GRANTED)]));
    assert!(!claimed(&[claim(0, planned(CLAIMS))]) && !claimed(&[]));
}

#[test]
fn a_run_with_too_many_requests_has_not_passed() {
    let requests = vec![write(0, DONE); MAX_REQUESTS + 1];
    let passed = |requests: &[RunRequest]| {
        let verdict = verdict(&scenario("accepted"), "1", requests);
        verdict["passed"].as_bool().expect("a truth value")
    };
    assert!(passed(&requests[1..]));
    assert!(!passed(&requests));
}

#[test]
fn an_answer_reads_as_the_wire_has_it() {
    let text = |name: &str| planned(name).to_string();
    let waits = "503 older-in-flight, same-token, Retry-After: 2";
    assert_eq!(text(RETRIES), waits);
    assert_eq!(text(STOPS), "412 stale-token, never");
    assert_eq!(text("stale-token-409"), "409 stale-token, never");
    assert_eq!(GRANTED.to_string(), "204 claimed");
}
