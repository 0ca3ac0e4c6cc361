//! A token that is none, and refusals that are not about a newer holder.

use super::{WRITE, fenced, run_before, run_script};
use crate::support::{Config, Proxy, Store, Upstream};

#[tokio::test]
async fn a_text_that_is_no_token_ends_the_run_before_it_begins() {
    let (_upstream, proxy) = fenced().await;
    let none = ["xyz", "-1", "0x", "lock#", "41,42", "92233720368547758080"];
    let tokens = ["41", "0x29", "lock#42", "0000000000000029-of-my-lock"];
    for text in none.iter().chain(&tokens) {
        let token = format!("--token={text}");
        let ran = run_before(&proxy, &[&token, "--", "echo", "begun"]).await;
        let is_token = tokens.contains(text);
        let (code, says) = if is_token {
            (0, "")
        } else {
            (1, "is no token")
        };
        ran.assert(code, says);
        assert_eq!(ran.has_line("begun"), is_token, "{text}: {}", ran.said);
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
        ran.assert(code, says);
        let refused = says != "refused=0";
        assert_eq!(ran.said.contains("WARN"), refused, "{}", ran.said);
    }
    assert_eq!(upstream.count(), 2);
}
