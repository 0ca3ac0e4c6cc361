//! The changes that the proxy may make, and no others: an exchange through it is held against the
//! same exchange without it. Each rule here is one that the documentation names.
//!
//! - Off: the fields of one connection only, and those that `Connection` names; `X-Fencing-…`.
//!   Of requests also `Expect`, `Trailer` and the trailers.
//! - On, toward the upstream: `X-Fencing-Token`, `X-Fencing-Resource`, `Idempotency-Key`,
//!   `X-Forwarded-…`, `Via`; `X-Request-Id` where there is none. Toward the client: `Via`; `Date` where there is none.
//! - Lines of one name stand together, where the first of them stood, in their order.
//! - HTTP/1.1 on either side, whatever the other one speaks. A body without a length is chunked; an
//!   empty one needs no chunks; POST, PUT and PATCH say so if they have none. No length with 204
//!   and 304, and no trailers to HTTP/1.0.
//! - Interim responses are the connection's own: `100 Continue` is the proxy's, others end there.
//! - A reason that is not ASCII is left out. Names of trailer fields are in title case.

use fencepost::routing::SAFE_METHODS;

use super::cases::EchoCase;
use crate::support::Answer;
use crate::support::upstream::Arrival;
use crate::support::wire::{Framing, Head, via};

type Lines = Vec<(String, String)>;

const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
    "http2-settings",
];

const ADDED: [&str; 7] = [
    "x-fencing-token",
    "x-fencing-resource",
    "idempotency-key",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "via",
];

fn check<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, wanted: &T) -> Result<(), String> {
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}\n  is     {got:?}\n  not    {wanted:?}"))
    }
}

/// The lines that are left without those of one connection and those `but`, each name's together.
fn lines(head: &Head, but: impl Fn(&str) -> bool) -> Lines {
    let named: Vec<String> = head
        .all("connection")
        .iter()
        .flat_map(|line| line.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut left = head.headers.clone();
    left.retain(|(name, _)| {
        let name = name.to_ascii_lowercase();
        !HOP_BY_HOP.contains(&&*name) && !named.contains(&name) && !but(&name)
    });
    together(left)
}

/// Each name's lines together, where the first of them stood.
fn together(lines: Lines) -> Lines {
    let mut groups: Vec<Lines> = Vec::new();
    for line in lines {
        let of = |group: &&mut Lines| group[0].0.eq_ignore_ascii_case(&line.0);
        match groups.iter_mut().find(of) {
            Some(group) => group.push(line),
            None => groups.push(vec![line]),
        }
    }
    groups.concat()
}

fn title_case(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}

fn trailers(plain: &Lines, through: &Lines) -> Result<(), String> {
    let titled =
        |(name, value): &(String, String)| (title_case(&name.to_ascii_lowercase()), value.clone());
    let fold = |lines: &Lines| together(lines.iter().map(titled).collect());
    check("trailers", &fold(through), &fold(plain))
}

/// A list's members with one more.
fn appended(head: &Head, name: &str, member: &str) -> String {
    let mut members = head.all(name);
    members.retain(|line| !line.is_empty());
    members.push(member);
    members.join(", ")
}

fn bodies(through: &[u8], plain: &[u8]) -> Result<(), String> {
    if through == plain {
        return Ok(());
    }
    let at = through.iter().zip(plain).position(|(a, b)| a != b);
    Err(format!(
        "body: {} bytes, not {}; they differ from byte {at:?} on",
        through.len(),
        plain.len()
    ))
}

/// Compares what arrived through the proxy (`through`) and without it (`plain`).
pub fn arrivals(case: &EchoCase, plain: &Arrival, through: &Arrival) -> Result<(), String> {
    let (was, is) = (&plain.head, &through.head);
    for (word, what) in ["method", "target"].iter().enumerate() {
        check(what, &is.word(word), &was.word(word))?;
    }
    check("version", &is.word(2), &"HTTP/1.1")?;

    let empty = plain.body.is_empty();
    if empty {
        check("framing", &is.request_framing(), &Framing::Length(0))?;
        if ["POST", "PUT", "PATCH"].contains(&&*case.method) {
            check("length", &is.get("content-length"), &Some("0"))?;
        }
    } else {
        check("framing", &is.request_framing(), &was.request_framing())?;
    }
    let identified = was.get("x-request-id").is_none();
    let but = |name: &str| {
        let made = identified && name == "x-request-id";
        made || ADDED.contains(&name)
            || ["expect", "trailer"].contains(&name)
            || (empty && name == "content-length")
    };
    if identified {
        let hex = |id: &&str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let made: Vec<bool> = is.all("x-request-id").iter().map(hex).collect();
        check("whether the request ids are made", &made, &vec![true])?;
    }
    check("headers", &lines(is, but), &lines(was, but))?;
    bodies(&through.body, &plain.body)?;
    check("trailers", &through.trailers, &Lines::new())?;
    ours(case, was, is)
}

/// The fields that the proxy adds.
fn ours(case: &EchoCase, was: &Head, is: &Head) -> Result<(), String> {
    let host = was.get("host").unwrap_or_default();
    let received = format!("{} fencepost", case.version.trim_start_matches("HTTP/"));
    for (name, wanted) in [
        ("via", appended(was, "via", &received)),
        (
            "x-forwarded-for",
            appended(was, "x-forwarded-for", "127.0.0.1"),
        ),
        ("x-forwarded-proto", "http".to_owned()),
        ("x-forwarded-host", host.to_owned()),
    ] {
        let lines: Vec<String> = is.all(name).iter().map(via).collect();
        check(name, &lines, &vec![wanted])?;
    }
    let token = case.fenced.then_some("1");
    check("x-fencing-token", &is.get("x-fencing-token"), &token)?;
    let key = case.fenced.then(|| format!("e:{}", case.number));
    check(
        "x-fencing-resource",
        &is.get("x-fencing-resource"),
        &key.as_deref(),
    )?;
    let made = is.get("idempotency-key");
    if let Some(given) = was.get("idempotency-key") {
        return check("idempotency-key", &made, &Some(given));
    }
    let safe = SAFE_METHODS.contains(&&*case.method);
    let wanted = case.fenced && !safe && case.body_length() <= 1 << 20;
    check(
        "whether there is an idempotency-key",
        &made.is_some(),
        &wanted,
    )
}

/// Compares the client's answers through the proxy and without it.
pub fn answers(case: &EchoCase, plain: &Answer, through: &Answer) -> Result<(), String> {
    let (was, is) = (&plain.head, &through.head);
    if let Some(own) = is.get("x-fencing-outcome") {
        return Err(format!("refused: {own}: {}", through.text()));
    }
    if is.word(0) != case.version {
        check("version", &is.word(0), &"HTTP/1.1")?;
    }
    check("status", &is.word(1), &was.word(1))?;
    let reason = |head: &Head| {
        head.start
            .splitn(3, ' ')
            .nth(2)
            .unwrap_or_default()
            .to_owned()
    };
    let wanted = if was.start.is_ascii() {
        reason(was)
    } else {
        String::new()
    };
    check("reason", &reason(is), &wanted)?;

    let head = case.method == "HEAD";
    let (plain_framing, framing) = (was.response_framing(head), is.response_framing(head));
    // The length of nothing stands last.
    let bodiless = matches!(was.word(1), "204" | "304") || framing == Framing::Length(0) && !head;
    let close_delimited = plain_framing == Framing::ToEnd && framing == Framing::Chunked;
    if !close_delimited && (case.version == "HTTP/1.1" || plain_framing != Framing::Chunked) {
        check("framing", &framing, &plain_framing)?;
    }
    let old = case.version == "HTTP/1.0";
    let own_date = !case.answers_with("date");
    let but = |name: &str| {
        name == "via"
            || name.starts_with("x-fencing-")
            || (own_date && name == "date")
            || (old && name == "trailer")
            || (bodiless && name == "content-length")
    };
    check("headers", &lines(is, but), &lines(was, but))?;
    bodies(&through.body, &plain.body)?;
    trailers(&plain.trailers, &through.trailers)?;
    let passed = via(is.all("via").join(", "));
    let before = was.all("via").join(", ");
    if !passed.starts_with(&before) || !passed.ends_with(" fencepost") {
        return Err(format!("via: {passed}, behind {before}"));
    }
    let interim: Vec<&str> = through.interim.iter().map(|head| head.word(1)).collect();
    if case.expects() {
        check("interim responses", &interim, &vec!["100"])?;
    }
    Ok(())
}
