//! The semantics of HTTP: http-cache-tests, `REDbot`, schemathesis and curl. The last three meet
//! httpbin, which describes itself.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::Command;

use regex::Regex;
use serde_json::Value;

use super::Way::{self, Attach, Bypass, Fenced, Nginx};
use super::{Outcomes, Route, Suite, compare};
use crate::support::or_return;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::python::{installed, program, python};
use crate::support::skip::lacks;
use crate::support::store::tool;

/// Starts a server, and waits until it listens. Returns its URL, too.
pub async fn listening(command: &mut Command, port: u16) -> (String, Process) {
    let mut process = Process::start(command);
    process.listens_on(port).await;
    (format!("http://127.0.0.1:{port}"), process)
}

/// Starts `httpbin`, or `echo` of WebSocket.
pub async fn serve(python: &Path, what: &str) -> (String, Process) {
    let port = free_port();
    let mut command = program(python, "peers/serve.py");
    listening(command.args([what, &port.to_string()]), port).await
}

const ALL: &[Way] = &[Nginx, Bypass, Attach];
const NO_ANSWER: &str = "the server closes without an answer, which behind a proxy is 502";
const WRONG_LENGTH: &str = "the server's answer breaks HTTP, which behind a proxy is 502";

const CACHE: Suite = Suite {
    name: "http-cache-tests",
    tests: 350,
    ways: &[Bypass, Attach],
    differences: &[
        ("304-etag-update-response-Content-Length", ALL, WRONG_LENGTH),
        ("headers-store-Content-Length", ALL, WRONG_LENGTH),
        ("stale-close", ALL, NO_ANSWER),
        ("stale-close-must-revalidate", ALL, NO_ANSWER),
        ("stale-close-no-cache", ALL, NO_ANSWER),
        ("stale-close-proxy-revalidate", ALL, NO_ANSWER),
        ("stale-close-s-maxage=2", ALL, NO_ANSWER),
        ("stale-sie-503", ALL, NO_ANSWER),
        ("stale-sie-close", ALL, NO_ANSWER),
        ("stale-warning-become", ALL, NO_ANSWER),
        ("stale-warning-stored", ALL, NO_ANSWER),
    ],
};

#[tokio::test]
async fn http_cache_tests() {
    let node = or_return!(tool("node"));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/tools/node/node_modules/http-cache-tests");
    if !tests.is_dir() {
        return lacks("http-cache-tests");
    }
    let script = |name: &str| {
        let mut command = Command::new(&node);
        command.arg(tests.join(name));
        command.envs([
            ("npm_config_protocol", "http"),
            ("npm_package_config_id", ""),
        ]);
        command
    };
    let upstream = async || {
        let port = free_port();
        let mut server = script("server/server.mjs");
        server.env("npm_config_port", port.to_string());
        server.env("npm_config_pidfile", "/dev/null");
        listening(&mut server, port).await
    };
    compare(&CACHE, upstream, async |route, _| {
        let mut client = script("cli.mjs");
        client.env("npm_config_base", &route.url);
        let said = route.run(client).await;
        let results = said.find("\n{").or(said.find('{')).unwrap_or_default();
        let results: Value = serde_json::from_str(&said[results..]).expect(&said);
        let results = results.as_object().expect("an object");
        let kind = |result: &Value| result[0].as_str().unwrap_or("passed").to_owned();
        let all = results
            .iter()
            .map(|(name, result)| (name.clone(), kind(result)));
        all.collect()
    })
    .await;
}

const REDBOT: Suite = Suite {
    name: "REDbot",
    tests: 15,
    ways: &[Bypass],
    differences: &[(
        "One or more intermediaries are present.",
        &[Bypass],
        "fencepost names itself in Via, as RFC 9110, 7.6.3 has it; nginx does not",
    )],
};

const PAGES: &str = "html gzip deflate cache/60 etag/abc range/2000 response-headers?Vary=Accept\
    &Last-Modified=Fri,%2001%20Jan%202021%2000:00:00%20GMT";

/// `REDbot` takes the time since `Date` for an age too: it comes and goes with each second, on every
/// way. `curl` compares the field `Age`.
const AGE: &str = "This response has already been cached for ";

#[tokio::test]
async fn redbot() {
    let python = or_return!(python());
    compare(
        &REDBOT,
        async || serve(&python, "httpbin").await,
        async |route, _| {
            let mut pages: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            let number = Regex::new(r"\d+").expect("a pattern");
            for page in PAGES.split(' ') {
                let mut command = installed(&python, "redbot");
                command.arg(format!("{}/{page}", route.url));
                let said = route.run(command).await;
                let notes = said.lines().filter_map(|line| line.strip_prefix("  * "));
                for note in notes.filter(|note| !note.starts_with(AGE)) {
                    let note = number.replace_all(note, "N").into_owned();
                    pages.entry(note).or_default().push(page);
                }
            }
            let all = pages
                .into_iter()
                .map(|(note, pages)| (note, pages.join(", ")));
            all.collect()
        },
    )
    .await;
}

const TRACE: &str = "both refuse TRACE";

const SCHEMATHESIS: Suite = Suite {
    name: "schemathesis",
    tests: 440,
    ways: &[Bypass, Fenced],
    differences: &[
        ("TRACE /anything", &[Nginx, Bypass, Fenced], TRACE),
        ("TRACE /anything (2)", &[Nginx, Bypass, Fenced], TRACE),
        ("TRACE /anything/0", &[Nginx, Bypass, Fenced], TRACE),
        ("TRACE /anything/00", &[Nginx, Bypass, Fenced], TRACE),
        ("TRACE /anything/00 (2)", &[Nginx, Bypass, Fenced], TRACE),
        ("TRACE /redirect-to", &[Nginx, Bypass, Fenced], TRACE),
        ("TRACE /redirect-to (2)", &[Nginx, Bypass, Fenced], TRACE),
    ],
};

const SETTINGS: &str = "--seed=1 --generation-deterministic --max-examples=3 --no-shrink \
    --phases=coverage --continue-on-failure --exclude-path-regex=/(delay|drip|status) \
    --report-har-path=cases.json --checks=not_a_server_error";

#[tokio::test]
async fn schemathesis() {
    let python = or_return!(python());
    compare(
        &SCHEMATHESIS,
        async || serve(&python, "httpbin").await,
        async |route, _| {
            let mut command = installed(&python, "schemathesis");
            let spec = format!("{}/spec.json", route.url);
            command.args(["run", &spec, "--url", &route.url]);
            command.args(SETTINGS.split_whitespace());
            command.args(route.token().iter().flat_map(|token| ["-H", token]));
            let said = route.run(command).await;
            let cases = std::fs::read_to_string(route.dir.path().join("cases.json")).expect(&said);
            let cases: Value = serde_json::from_str(&cases).expect("HAR");
            let cases = cases["log"]["entries"].as_array().expect("a list");
            let text = |value: &Value| value.as_str().unwrap_or_default().replace(&route.url, "");
            let all = cases.iter().map(|case| {
                let (request, answer) = (&case["request"], &case["response"]);
                let name = format!("{} {}", text(&request["method"]), text(&request["url"]));
                (name, answer["status"].to_string())
            });
            all.collect()
        },
    )
    .await;
}

const SPELLINGS: &str = "a path that servers read in several ways is refused, as long as the \
    route does not allow it; nginx changes `..` and `//`";

const ALL_THREE: &[Way] = &[Bypass, Fenced, Attach];
const ALL_FOUR: &[Way] = &[Nginx, Bypass, Fenced, Attach];

const CURL: Suite = Suite {
    name: "curl",
    tests: 40,
    ways: ALL_THREE,
    differences: &[
        ("--path-as-is /anything/../html", ALL_THREE, SPELLINGS),
        ("--path-as-is /anything//b", ALL_FOUR, SPELLINGS),
        ("-g /anything/{a}|[b]", ALL_THREE, SPELLINGS),
        ("/anything/a%2Fb", ALL_THREE, SPELLINGS),
        ("/anything;a=b?c&d=", ALL_THREE, SPELLINGS),
        ("/anything/a%00b", ALL_FOUR, "both refuse a NUL"),
        ("-X TRACE /anything", ALL_FOUR, TRACE),
        (
            "-T file -H Transfer-Encoding:chunked /put",
            &[Nginx],
            "httpbin takes no chunks, and nginx collects them; fencepost passes them on",
        ),
        (
            "-H Host:elsewhere.test /html",
            &[Attach],
            "attach adds the token to no request for another host",
        ),
    ],
};

/// The pages of httpbin that are asked for: `file` has 3 MiB.
const CALLS: &str = "
/html
/bytes/100000?seed=1
/stream-bytes/100000?seed=1&chunk_size=1000
/range/1000
-r 10-99 /range/1000
-C 500 /range/1000
-r 990- /range/1000
-r 2000- /range/1000
-I /html
-I -L /redirect/2
-L /redirect/3
-L --post302 -d a=b /redirect-to?url=/post&status_code=302
-L -d a=b /redirect-to?url=/anything&status_code=307
-c jar -L /cookies/set?a=b
-b a=b /cookies
-u user:word /basic-auth/user/word
-u user:wrong /basic-auth/user/word
-u user:word --digest /digest-auth/auth/user/word
--compressed /gzip
-H If-None-Match:x /cache
-H If-None-Match:\"abc\" /etag/abc
-H If-Match:\"other\" /etag/abc
-z 2021-01-01 /cache
-T file /put
-T file -H Transfer-Encoding:chunked /put
-T file -H Expect:100-continue /put
-T file -H Expect: /put
-d a=b /post
-F file=@file -F a=b /post
--json {} /post
-X PATCH -d a=b /patch
-X DELETE /delete
-X DELETE -d body /anything
-X GET -d body /anything
-X OPTIONS /anything
-X TRACE /anything
-X PURGE /anything
--http1.0 /html
-H Connection:close /html
-H Host:elsewhere.test /html
-H X-Empty; /headers
-A '' /user-agent
-g /anything/{a}|[b]
--path-as-is /anything/../html
--path-as-is /anything//b
/anything/a%2Fb
/anything/a%00b
/anything/%C3%A9?q=%C3%A9
/anything;a=b?c&d=
/status/204
/status/304
/status/500
/html /html /html
";

#[tokio::test]
async fn curl() {
    let (curl, python) = (or_return!(tool("curl")), or_return!(python()));
    compare(
        &CURL,
        async || serve(&python, "httpbin").await,
        async |route, _| {
            std::fs::write(route.dir.path().join("file"), vec![b'x'; 3 << 20]).expect("a file");
            let mut outcomes = Outcomes::new();
            for call in CALLS.lines().filter(|line| !line.is_empty()) {
                outcomes.push((call.to_owned(), called(&curl, route, call).await));
            }
            outcomes
        },
    )
    .await;
}

/// The exit code, the status, the type, redirects, connections, `Age`, and the body if it is one of
/// a page: JSON names the way, and so may a head.
async fn called(curl: &Path, route: &Route, call: &str) -> String {
    let mut command = Command::new(curl);
    command.args(["-q", "-s", "-o", "body", "-w"]);
    command.arg(
        "%{exitcode} %{http_code} %{content_type} %{num_redirects} %{num_connects} \
         age:%header{age}",
    );
    command.args(route.token().iter().flat_map(|token| ["-H", token]));
    for word in call.split(' ') {
        match word.strip_prefix('/') {
            Some(path) => command.arg(format!("{}/{path}", route.url)),
            None => command.arg(word.trim_matches('\'')),
        };
    }
    let said = route.run(command).await;
    let body = std::fs::read(route.dir.path().join("body")).unwrap_or_default();
    let _ = std::fs::remove_file(route.dir.path().join("body"));
    if said.contains("json") || call.contains("-I") {
        return said;
    }
    let mut sum = DefaultHasher::new();
    body.hash(&mut sum);
    format!("{said} {} bytes, {:x}", body.len(), sum.finish())
}
