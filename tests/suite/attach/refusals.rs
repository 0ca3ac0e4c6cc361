//! A token that is none, and refusals that are not about a newer holder.

use super::{WRITE, attach, run, run_script, url};
use crate::support::{Config, Proxy, Store, Upstream};

#[tokio::test]
async fn a_text_that_is_no_token_ends_the_run_before_it_begins() {
    let (_upstream, proxy) = super::fenced().await;
    for (text, code) in [
        ("xyz", 1),
        ("-1", 1),
        ("0x", 1),
        ("lock#", 1),
        ("41,42", 1),
        ("92233720368547758080", 1),
        ("41", 0),
        ("0x29", 0),
        ("lock#42", 0),
        ("0000000000000029-of-my-lock", 0),
    ] {
        let token = format!("--token={text}");
        let ran = run(&mut attach(&url(&proxy), &[&token, "--", "echo", "begun"])).await;
        assert_eq!(ran.code, Some(code), "{text}: {}", ran.said);
        let begun = ran.said.lines().any(|line| line == "begun");
        assert_eq!(begun, code == 0, "{text}: {}", ran.said);
        assert_eq!(ran.said.contains("is no token"), code == 1, "{}", ran.said);
    }
}

#[tokio::test]
async fn refusals_are_counted_and_those_of_the_token_are_an_error() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite()).route("token: { max: 100 }");
    let proxy = Proxy::start(&config).await;
    let thrice = format!("for n in 1 2 3; do {WRITE}; done");
    let nowhere = "curl -sS -X PUT -d x $FENCEPOST_URL/nowhere";
    for (token, script, code, says) in [
        // A number in hexadecimal digits, and the route expects decimal ones.
        ("abc", &*thrice, 65, "malformed-token 3"),
        ("1000", WRITE, 65, "implausible-token 1"),
        ("abc", &format!("{WRITE}; exit 7"), 7, "malformed-token 1"),
        ("41", &format!("{WRITE}; {nowhere}"), 0, "no-route 1"),
        ("41", WRITE, 0, "refused=0"),
    ] {
        let ran = run_script(&proxy, &["--token", token], script).await;
        assert_eq!(ran.code, Some(code), "{token}: {}", ran.said);
        assert!(ran.said.contains(says), "{token}: {}", ran.said);
        let refused = says != "refused=0";
        assert_eq!(ran.said.contains("WARN"), refused, "{}", ran.said);
    }
    assert_eq!(upstream.count(), 2);
}
