//! Each target is handed a broken parser, one that makes a mistake which has been made elsewhere,
//! and has to notice: a target that cannot fail says nothing.

/// [`notices`], for a target by the name of its module.
macro_rules! notices {
    ($target:ident, $mutant:expr, $input:expr, $words:expr) => {
        notices(
            $target::check_of($mutant, $input),
            $target::TARGET.check,
            $input,
            $words,
        )
    };
}

mod wire;

use fencepost::routing::{Allow, CheckedPath, ResourceKey, Token, TokenFormat};
use fencepost_fuzz::path::Read;
use fencepost_fuzz::resource::Codec;
use fencepost_fuzz::stream::Passed;
use fencepost_fuzz::{
    Seen, Verdict, chunked, config, headers, json, key, path, query, request, resource, response,
    route, stream, token,
};

/// The target refuses the mutant on this input, in words that have this in them, and takes the
/// original.
#[track_caller]
fn notices(mutant: Verdict, original: fn(&[u8]) -> Verdict, input: &[u8], words: &str) {
    let broken = mutant.expect_err("the mutant passes");
    assert!(broken.contains(words), "{broken}");
    assert!(original(input).is_ok(), "the original does not pass");
}

#[test]
fn tokens_read_as_the_standard_library_does() {
    let lenient: &token::Parse = &|format, raw| match format {
        TokenFormat::Decimal => {
            let text = std::str::from_utf8(raw).map_err(|error| error.to_string())?;
            let number = text.trim().parse::<i64>();
            number.map_err(|error| format!("{error}; expected: a number (token format decimal)"))
        }
        _ => format.parse(raw).map(Token::get),
    };
    for (input, words) in [
        (&b"+6"[..], "reads +6 as 6"),
        (b"-1", "reads -1 as -1"),
        ("\u{a0}6".as_bytes(), "reads \\xc2\\xa06 as 6"),
        (b"00000000000000000042", "reads 00000000000000000042 as 42"),
    ] {
        notices!(token, lenient, input, words);
    }
}

#[test]
fn tokens_rounded_as_javascript_does() {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the mistake"
    )]
    let rounded: &token::Parse =
        &|format, raw| format.parse(raw).map(|token| token.get() as f64 as i64);
    notices!(
        token,
        rounded,
        b"9007199254740993",
        "reads 9007199254740993 as"
    );
}

/// A path, read without a second thought.
fn careless(raw: &str, decode: impl Fn(&str) -> String) -> Result<Read, String> {
    let body = raw.strip_prefix('/').ok_or("byte 1")?;
    let mut segments: Vec<String> = body.split('/').map(decode).collect();
    let slash = segments.len() > 1 && segments.last().is_some_and(String::is_empty);
    if segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    Ok(Read { segments, slash })
}

fn unescape(raw: &str) -> String {
    String::from_utf8_lossy(&fencepost_fuzz::spell::decode(raw.as_bytes())).into_owned()
}

#[test]
fn paths_that_are_not_decoded() {
    let mutant: &path::Parse =
        &|raw, allow| path::real(raw, allow).and_then(|_| careless(raw, str::to_owned));
    notices!(path, mutant, b"\0/%61", "is Read");
}

#[test]
fn paths_with_more_than_one_reading() {
    let mutant: &path::Parse = &|raw, _: Allow| careless(raw, unescape);
    for (input, words) in [
        (&b"\0/a/../b"[..], "has a dot segment"),
        (b"\0/a/%2e%2E/b", "has a dot segment"),
        (b"\0/..;x/b", "has a dot segment"),
        (b"\0/a//b", "has an empty segment"),
        (b"\0/a;x", "and to Server"),
        (b"\0/a%2Fb", "and to Server"),
        (b"\0/a\\b", "and to Server"),
        (b"\0/a%3Fb", "and to Server"),
        (b"\0/a%23b", "and to Server"),
        (b"\0/a%2541", "and to Server"),
        (b"\0/a%00", "has a control character"),
    ] {
        notices!(path, mutant, input, words);
    }
}

#[test]
fn routes_by_the_order_of_the_file() {
    let mutant: &route::Find = &|patterns, path: &CheckedPath| {
        let matches = |pattern| {
            fencepost::routing::Router::new([pattern])
                .0
                .find(path)
                .is_some()
        };
        patterns.iter().position(matches)
    };
    notices!(route, mutant, b"/{x}\n/a\n/a", "a plain matcher");
}

#[test]
fn query_parameters_of_which_the_last_counts() {
    let mutant: &query::Value = &|raw, name| {
        let pairs = raw
            .split('&')
            .map(|piece| piece.split_once('=').unwrap_or((piece, "")));
        let decode = |raw: &str| unescape(&raw.replace('+', " "));
        Ok(pairs
            .filter(|(known, _)| decode(known) == name)
            .map(|(_, value)| decode(value))
            .next_back())
    };
    for input in [
        &b"id\nid=7&id=8"[..],
        b"id\nid=7;x=1",
        b"id\nID=7",
        b"id\nid[]=7",
        b"id\n[id]=7",
        b"id_\nid_=7&id[=8",
        b"a.b\na_b=7",
    ] {
        notices!(query, mutant, input, "here, and");
    }
}

#[test]
fn keys_whose_parts_are_joined_as_they_are() {
    let mutant: &key::Render =
        &|template, path, lookup| key::real(template, path, lookup).map(|key| unescape(&key));
    notices!(
        key,
        mutant,
        b"/{a}/{b}\n{a}:{b}\n/x%3Ay/z\n",
        "and says it could not"
    );
}

#[test]
fn keys_that_know_of_one_part_only() {
    let mutant: &key::Render = &|template, path, lookup| {
        key::real(template, path, lookup)?;
        Ok(format!("{}:z", path.segment(0).unwrap_or_default()))
    };
    notices!(key, mutant, b"/{a}/{b}\n{a}:{b}\n/x/z\n", "means");
}

#[test]
fn resources_written_as_they_are() {
    let mutant = Codec {
        write: |key: &ResourceKey| key.as_str().to_owned(),
        read: |value| ResourceKey::new(value).ok(),
    };
    notices!(
        resource,
        &mutant,
        "a b".as_bytes(),
        "which a header may lose"
    );
}

#[test]
fn json_of_which_the_last_member_counts() {
    let mutant: &json::Members = &|body, wanted| {
        let value: serde_json::Value =
            serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let text = |value: &serde_json::Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        Ok(wanted
            .iter()
            .map(|path| value.get(&path[0]).map(text))
            .collect())
    };
    for input in [
        &br#"a
{"a":"x","a":"y"}"#[..],
        br#"a
{"A":"x"}"#,
        br#"a
{"a":1.0}"#,
        br#"a
{"a":null}"#,
    ] {
        notices!(json, mutant, input, "to a reader of the");
    }
}

#[test]
fn headers_that_a_client_can_take_off_or_double() {
    use fencepost::http1::Fields;
    use fencepost::proxy::headers::{ForUpstream, TOKEN, request_for_upstream, strip_hop_by_hop};
    let late = |headers: &mut Fields, add: ForUpstream<'_>| {
        let named = headers.get("connection");
        let named = named.map(|names| String::from_utf8_lossy(names).into_owned());
        request_for_upstream(headers, add);
        if let Some(named) = named {
            headers.remove(&named);
        }
    };
    notices!(
        headers,
        &late,
        b"\x01Connection: x-fencing-token\n",
        "X_FENCING_TOKEN is None"
    );
    let dashes = |headers: &mut Fields, add: ForUpstream<'_>| {
        let twin = headers.get("x_fencing_token").map(<[u8]>::to_vec);
        request_for_upstream(headers, add);
        if let Some(twin) = twin {
            headers.insert("x_fencing_token", twin);
        }
    };
    notices!(
        headers,
        &dashes,
        b"\x01x_fencing_token: 41\n",
        "X_FENCING_TOKEN is Some"
    );
    let bare = |headers: &mut Fields, add: ForUpstream<'_>| {
        strip_hop_by_hop(headers);
        let token = add.fenced.map(|(token, _)| token.get());
        headers.insert(TOKEN, token.unwrap_or_default().to_string());
    };
    notices!(headers, &bare, b"\x01A: b\n", "X_FENCING_RESOURCE is None");
}

#[test]
fn configurations_that_are_taken_whatever_is_in_them() {
    use fencepost::config::parse;
    // Wrong lines are dropped, one by one.
    let mutant: &config::Parse = &|text, overrides| {
        let mut lines: Vec<&str> = text.lines().collect();
        loop {
            match parse(&lines.join("\n"), overrides) {
                Ok(settings) => return Ok(settings),
                Err(problems) if lines.is_empty() => return Err(problems),
                Err(_) => lines.pop(),
            };
        }
    };
    notices!(
        config,
        mutant,
        b"upstream: { url: http://a:1 }\nzebra: 1\n",
        "the schema does not know"
    );
}

#[test]
fn problems_outside_the_file() {
    use fencepost::config::{ConfigPlace, parse};
    let mutant: &config::Parse = &|text, overrides| {
        parse(text, overrides).map_err(|mut problems| {
            for problem in &mut problems.list {
                problem.place = ConfigPlace::Line(7);
            }
            problems
        })
    };
    notices!(config, mutant, b"zebra: 1\n", "a file of 2 lines");
}
