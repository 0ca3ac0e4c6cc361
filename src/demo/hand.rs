//! The text around the stories: what runs where, and how to try it by hand.

use super::world::World;

/// Lists the running servers.
pub fn introduce(world: &World) {
    let say = |text: &str| world.screen.line(text);
    say("A lock is a lease. A holder that stalls loses it, and may still wake up and write. The");
    say("lock service numbers its grants. fencepost refuses a number older than the newest that");
    say("it has seen, and lets nothing overtake.");
    say("");
    say(&format!(
        "  API        {}   a legacy service that accepts every request",
        world.api.url()
    ));
    say(&format!(
        "  lock       {}   leases, and a number with each grant",
        world.locks.url()
    ));
    say(&format!(
        "  fencepost  {}   a process of its own (pid {}), marks in SQLite",
        world.front(),
        world.fencepost.pid().unwrap_or_default(),
    ));
}

/// The result, and what to try by hand.
pub fn summary(world: &World, good: bool, keep: bool) {
    let say = |text: &str| world.screen.line(text);
    world.screen.heading(if good {
        "Every story ended as it should."
    } else {
        "Not every story ended as it should: see the lines with ✗."
    });
    say("");
    if keep {
        say("By hand (everything runs until Ctrl-C):");
    } else {
        say("By hand: run again with --keep. That leaves everything running, and prints these");
        say("lines with the ports of that run (this run's are closed now):");
    }
    for (comment, command) in lines(
        &world.front(),
        &world.admin(),
        &world.api.url(),
        &world.locks.url(),
    ) {
        say("");
        say(&format!("  # {comment}"));
        say(&format!("  {command}"));
    }
    if keep {
        say("");
        say(&format!("The configuration: {}", world.config.display()));
    }
}

/// Commands to try, in this order, and what each shows. Order 7 starts without a mark: the stories
/// after (b) end with other orders, and its own run is long settled.
fn lines(front: &str, admin: &str, api: &str, locks: &str) -> Vec<(&'static str, String)> {
    let put = |token: &str, more: &str, by: &str| {
        format!(
            "curl -i -X PUT {front}/orders/7{token}{more} -d '{{\"status\":\"by hand\",\"by\":\"{by}\"}}'"
        )
    };
    let with = |token: &str| format!(" -H 'X-Fencing-Token: {token}'");
    vec![
        ("A lock, with its token (409 while somebody holds it):", {
            format!("curl -i {locks}/locks/mine -d '{{\"owner\":\"me\",\"ttl_ms\":10000}}'")
        }),
        ("No token: 428", put("", "", "me")),
        (
            "Story (b) left the mark of order:7 at 42. A zombie's 41: 412",
            put(&with("41"), "", "A"),
        ),
        (
            "A newer token: 200, and the mark is 50",
            put(&with("50"), "", "B"),
        ),
        (
            "Tell fencepost of a new grant before reading: 204, and 50 is refused from now on",
            {
                format!(
                    "curl -i -X POST {front}/.well-known/fencing/claim{} -H 'X-Fencing-Target: PUT /orders/7'",
                    with("51")
                )
            },
        ),
        (
            "A write that stalls for 2 s in the API, and a newer one that waits for it",
            {
                format!(
                    "{} & sleep 0.5; {}; wait",
                    put(&with("52"), " -H 'X-Demo-Stall: 2'", "slow"),
                    put(&with("53"), "", "newer"),
                )
            },
        ),
        ("What the API holds, and in which order it came", {
            format!("curl {api}/orders/7 {api}/journal")
        }),
        (
            "What fencepost knows",
            format!("curl {admin}/v1/marks/order:7"),
        ),
        (
            "Its metrics",
            format!("curl -s {admin}/metrics | grep 'fencepost_requests_total.* [1-9]'"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_a_running_service_and_quotes_for_a_shell() {
        let all = lines("http://f:1", "http://m:2", "http://a:3", "http://l:4");
        for (_, command) in &all {
            assert!(command.contains("http://"), "{command}");
            assert_eq!(command.matches('\'').count() % 2, 0, "{command}");
            assert!(!command.contains("{{"), "{command}");
        }
        assert!(
            all.iter()
                .any(|(_, command)| command.contains("http://f:1/orders/7 -d '{\"status"))
        );
    }
}
