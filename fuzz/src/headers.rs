//! Header fields on their way upstream: whatever a client sends, the upstream finds one token, one
//! resource and one key under any spelling of their names, and nothing of the connection before.
//!
//! The first byte of an input chooses the circumstances, the rest is field lines, ended by line
//! feeds.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use fencepost::http1::Fields;
use fencepost::proxy::headers::{
    ForUpstream, TrailerRules, Via, fencing_token, method_overrides, request_for_upstream,
    response_for_client, single, text,
};
use fencepost::routing::{ResourceKey, Token};
use fencepost::store::InstanceId;
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::{Seen, Verdict, hold, target};

target!("headers", &request_for_upstream);

/// The function under test.
pub type ToUpstream = dyn Fn(&mut Fields, ForUpstream<'_>);

/// The proxy's name for itself.
static VIA: LazyLock<Via> = LazyLock::new(|| Via::new(InstanceId::from_bits(0xfe2c_e905)));
const CLIENT: &str = "192.0.2.7";
const MEMBER: &str = "1.1 fencepost-0000fe2ce905";

/// Of one connection, no matter who names them.
const HOPS: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-authentication-info",
    "http2-settings",
];

/// Fields that no client can have dropped by naming them in `Connection`.
const KEPT: [&str; 7] = [
    "host",
    "content-length",
    "content-type",
    "authorization",
    "cookie",
    "if-match",
    "range",
];

/// Variables by which a GET may be something else.
const OVERRIDES: [&str; 3] = [
    "X_HTTP_METHOD_OVERRIDE",
    "X_HTTP_METHOD",
    "X_METHOD_OVERRIDE",
];

pub fn check_of(to_upstream: &ToUpstream, data: &[u8]) -> Verdict {
    let Some((bits, lines)) = data.split_first() else {
        return Ok(Seen::Refused);
    };
    let sent = fields(lines);
    if sent.is_empty() {
        return Ok(Seen::Refused);
    }
    taken(&sent)?;
    let bit = |i: u8| bits >> i & 1 == 1;
    let key = ResourceKey::new("order:é 42")?;
    let name = "idempotency-key";
    let idempotency = match bits >> 1 & 3 {
        0 | 1 => None,
        2 => Some((name, None)),
        _ => Some((name, Some("ours"))),
    };
    let via = *VIA;
    let add = ForUpstream {
        fenced: bit(0).then_some((Token::MAX, &key)),
        idempotency,
        client: bit(3).then_some(CLIENT),
        identity: None,
        scheme: "http",
        host: bit(4).then_some(&b"seen.example"[..]),
        host_in_key: bit(7),
        by_proxy: bit(6),
        version: Version::HTTP_11,
        http2: bit(5),
        via,
    };
    let mut edited = Fields::from(&sent);
    to_upstream(&mut edited, add);
    let found = edited.to_map();
    let view = cgi(&found);

    for (name, value) in [
        ("X_FENCING_TOKEN", "9223372036854775807"),
        ("X_FENCING_RESOURCE", "order:%C3%A9%2042"),
    ] {
        let expected = bit(0).then(|| vec![value.as_bytes().to_vec()]);
        hold!(
            view.get(name) == expected.as_ref(),
            "{name} is {:?}",
            view.get(name)
        );
    }
    let others = view
        .keys()
        .filter(|name| name.starts_with("X_FENCING_"))
        .count();
    hold!(
        others == if bit(0) { 2 } else { 0 },
        "other X-Fencing fields go upstream: {found:?}"
    );
    for hop in HOPS {
        let te = hop == "te" && bit(5) && found.get_all(hop).iter().all(|v| v == "trailers");
        hold!(
            te || !found.contains_key(hop),
            "{hop} goes upstream: {sent:?}"
        );
    }
    ended(&sent, &found)?;
    match idempotency {
        Some((_, Some(_))) => {
            let one = view.get("IDEMPOTENCY_KEY");
            hold!(one == Some(&vec![b"ours".to_vec()]), "the key is {one:?}");
        }
        Some((_, None)) => {
            hold!(
                !view.contains_key("IDEMPOTENCY_KEY"),
                "a key that was to go: {found:?}"
            );
        }
        None => same(&sent, &found, "idempotency-key")?,
    }
    if bit(3) {
        ends_with(&view, "X_FORWARDED_FOR", "192.0.2.7")?;
    }
    if bit(7) {
        one_host(&view, bit(4))?;
    }
    ends_with(&view, "VIA", MEMBER)?;
    hold!(
        via.is_in(&edited),
        "it comes back, and is not known again: {found:?}"
    );
    kept(&sent, &found)?;
    answer(via, &sent)?;
    Ok(Seen::Accepted)
}

/// Fields that end at the proxy.
fn ended(sent: &HeaderMap, found: &HeaderMap) -> Result<(), String> {
    for ended in ["expect", "trailer"] {
        hold!(
            !found.contains_key(ended),
            "{ended} goes upstream: {sent:?}"
        );
    }
    Ok(())
}

/// No field names another host than the key is made of.
fn one_host(view: &BTreeMap<String, Vec<Vec<u8>>>, known: bool) -> Result<(), String> {
    let expected = known.then(|| vec![b"seen.example".to_vec()]);
    hold!(
        view.get("X_FORWARDED_HOST") == expected.as_ref() && !view.contains_key("FORWARDED"),
        "another host than the key's goes upstream: {view:?}"
    );
    Ok(())
}

/// Fields that do not concern the proxy go on as they came.
fn kept(sent: &HeaderMap, found: &HeaderMap) -> Result<(), String> {
    for name in KEPT {
        same(sent, found, name)?;
    }
    let named = options(sent);
    for name in sent.keys().filter(|name| untouched(name.as_str())) {
        if named.contains(&name.as_str().to_owned()) {
            continue;
        }
        same(sent, found, name.as_str())?;
    }
    Ok(())
}

/// The fields of these lines that a client could send.
fn fields(lines: &[u8]) -> HeaderMap {
    let mut sent = HeaderMap::new();
    for line in lines.split(|b| *b == b'\n').take(64) {
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(&line[..colon]),
            HeaderValue::from_bytes(value),
        ) {
            sent.append(name, value);
        }
    }
    sent
}

/// Fields of which one value matters.
fn taken(sent: &HeaderMap) -> Result<(), String> {
    let (view, fields) = (cgi(sent), Fields::from(sent));
    for name in ["x-fencing-token", "x-tenant", "x-fencing-operation"] {
        let all = view.get(&variable(name)).map_or(0, Vec::len);
        match single(&fields, name) {
            Ok(None) => hold!(all == 0, "{name} is passed over: {sent:?}"),
            Ok(Some(value)) => {
                hold!(
                    all == 1 && fields.get(name) == Some(value),
                    "{name} has one value: {sent:?}"
                );
            }
            Err(_) => hold!(all > 0, "{name} is refused: {sent:?}"),
        }
        if let Ok(Some(text)) = text(&fields, name) {
            hold!(
                !options(sent).contains(&name.to_owned()),
                "{name} makes a key, and Connection names it"
            );
            let mut on = sent.clone();
            strip_by_the_letter(&mut on);
            hold!(
                on.contains_key(name),
                "{name} makes a key of {text}, and is dropped"
            );
        }
    }
    hold!(
        fencing_token(&fields) == single(&fields, "x-fencing-token"),
        "the token is another field"
    );
    let any = OVERRIDES.iter().any(|name| view.contains_key(*name));
    hold!(
        method_overrides(&fields).next().is_some() == any,
        "a method override is passed over: {sent:?}"
    );
    Ok(())
}

/// Strips as any proxy does that goes by the RFC alone: what Connection names goes.
fn strip_by_the_letter(headers: &mut HeaderMap) {
    for option in options(headers) {
        headers.remove(option.as_str());
    }
}

/// Checks these fields as trailers.
fn trailers(rules: &TrailerRules, sent: &HeaderMap) -> Result<(), String> {
    let mut kept = sent.clone();
    rules.strip(&mut kept);
    for name in cgi(&kept).keys() {
        let bad = [
            "CONTENT_LENGTH",
            "TRANSFER_ENCODING",
            "HOST",
            "AUTHORIZATION",
            "TRAILER",
            "TE",
            "IF_MATCH",
            "VIA",
        ];
        hold!(!bad.contains(&name.as_str()), "{name} goes on as a trailer");
        hold!(
            !name.starts_with("X_FENCING_"),
            "{name} goes on as a trailer"
        );
    }
    for option in options(sent) {
        hold!(
            !option.starts_with("x-") || !kept.contains_key(option.as_str()),
            "{option} is named in Connection, and goes on as a trailer"
        );
    }
    let once = kept.clone();
    rules.strip(&mut kept);
    hold!(once == kept, "more trailers go the second time");
    Ok(())
}

fn answer(via: Via, sent: &HeaderMap) -> Result<(), String> {
    let mut edited = Fields::from(sent);
    let rules = response_for_client(&mut edited, Version::HTTP_11, via);
    let found = edited.to_map();
    trailers(&rules, sent)?;
    let view = cgi(&found);
    hold!(
        !view.keys().any(|name| name.starts_with("X_FENCING_")),
        "the upstream speaks for the proxy: {found:?}"
    );
    for hop in HOPS {
        hold!(!found.contains_key(hop), "{hop} goes to the client");
    }
    ends_with(&view, "VIA", MEMBER)
}

/// Fields that the proxy has nothing to do with.
fn untouched(name: &str) -> bool {
    let variable = variable(name);
    let ours = [
        "X_FORWARDED_FOR",
        "X_FORWARDED_PROTO",
        "X_FORWARDED_HOST",
        "FORWARDED",
        "VIA",
        "TRACEPARENT",
        "TRACESTATE",
        "IDEMPOTENCY_KEY",
        "EXPECT",
        "TRAILER",
    ];
    !HOPS.contains(&name)
        && !ours.contains(&variable.as_str())
        && !variable.starts_with("X_FENCING_")
}

fn same(sent: &HeaderMap, found: &HeaderMap, name: &str) -> Result<(), String> {
    let (a, b): (Vec<_>, Vec<_>) = (
        sent.get_all(name).iter().collect(),
        found.get_all(name).iter().collect(),
    );
    hold!(a == b, "{name} was {a:?}, and is {b:?}");
    Ok(())
}

/// The field is a list on one line that ends so.
fn ends_with(
    view: &BTreeMap<String, Vec<Vec<u8>>>,
    name: &str,
    member: &str,
) -> Result<(), String> {
    let lines = view.get(name).map_or(&[][..], Vec::as_slice);
    let last = |line: &Vec<u8>| {
        line.rsplit(|b| *b == b',')
            .next()
            .is_some_and(|m| m.trim_ascii() == member.as_bytes())
    };
    hold!(lines.len() == 1 && last(&lines[0]), "{name} is {lines:?}");
    Ok(())
}

fn options(headers: &HeaderMap) -> Vec<String> {
    members(headers, "connection")
}

/// The members of a list, in lower case.
fn members(headers: &HeaderMap, name: &str) -> Vec<String> {
    let lines = headers.get_all(name);
    let members = lines
        .iter()
        .flat_map(|line| line.as_bytes().split(|b| *b == b','));
    members
        .map(|member| String::from_utf8_lossy(member).trim().to_ascii_lowercase())
        .collect()
}

/// The name of a field's variable (RFC 3875, 4.1.18), as lax servers make it.
fn variable(name: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(letter).collect()
}

/// All fields as a server has them that makes variables of them.
fn cgi(headers: &HeaderMap) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut view: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for (name, value) in headers {
        view.entry(variable(name.as_str()))
            .or_default()
            .push(value.as_bytes().to_vec());
    }
    view
}
