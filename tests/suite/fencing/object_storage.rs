//! docs/object-storage.md, as it stands there: its configurations in front of a gateway that checks
//! signatures, its program, and what it says must not be done.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client_recipes::recipe;
use crate::support::moto::Moto;
use crate::support::pages::config;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::tls::{Ca, Files};
use crate::support::{
    Answer, Config, Proxy, Step, Store, Upstream, eventually, or_return, post, put, soon,
};

const PAGE: &str = "object-storage.md";

/// The page's configuration, whose clients sign the host `at`.
fn page(name: &str, url: &str, at: &str) -> Config {
    let port = at.rsplit_once(':').expect("a port").1;
    let here = json!({
        "listen": format!("127.0.0.1:{port}"),
        "upstream": { "url": url, "host": at },
    });
    Config::to(url, &Store::sqlite())
        .with(&config(PAGE, name))
        .with(&here.to_string())
}

/// A free port of the loopback, as clients write it in Host.
fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A gateway with the bucket `backups`, and fencepost in front of it as the page has it.
async fn fenced(more: &str) -> Option<(Moto, Proxy, String)> {
    let gateway = Moto::start(&["backups"]).await?;
    let at = address();
    let proxy = Proxy::start(&page("object-storage", &gateway.url(), &at).with(more)).await;
    Some((gateway, proxy, format!("http://{at}")))
}

/// A call with a token.
fn call(url: &str, token: &str, name: &str, with: Value) -> Value {
    let mut with = with;
    with["Bucket"] = json!("backups");
    json!({ "url": url, "token": token, "call": name, "with": with })
}

fn put_object(url: &str, token: &str, key: &str, body: &str) -> Value {
    call(
        url,
        token,
        "put_object",
        json!({ "Key": key, "Body": body }),
    )
}

/// One request of each kind that changes something. They end as they begin: with `a`, and an upload
/// of `b` with one part.
fn writes(url: &str, token: &str) -> Vec<Value> {
    let of = |name, with| call(url, token, name, with);
    let copy = json!({ "Bucket": "backups", "Key": "a" });
    let part = json!({ "Key": "b", "UploadId": "$UploadId", "PartNumber": 1, "Body": "part" });
    let whole = json!({ "Parts": [{ "PartNumber": 1, "ETag": "$ETag" }] });
    let whole = json!({ "Key": "b", "UploadId": "$UploadId", "MultipartUpload": whole });
    let tags = json!({ "TagSet": [{ "Key": "by", "Value": token }] });
    let many = json!({ "Objects": [{ "Key": "b" }, { "Key": "c" }] });
    vec![
        put_object(url, token, "a", token),
        of("create_multipart_upload", json!({ "Key": "b" })),
        of("upload_part", part.clone()),
        of("complete_multipart_upload", whole),
        of("copy_object", json!({ "Key": "c", "CopySource": copy })),
        of(
            "put_object_tagging",
            json!({ "Key": "a", "Tagging": &tags }),
        ),
        of("put_bucket_tagging", json!({ "Tagging": &tags })),
        of("delete_objects", json!({ "Delete": many })),
        put_object(url, token, "d", token),
        of("delete_object", json!({ "Key": "d" })),
        of("create_multipart_upload", json!({ "Key": "b" })),
        of("upload_part", part),
    ]
}

fn codes(answers: &[Value]) -> Vec<&str> {
    let codes = answers.iter().map(|answer| answer["code"].as_str());
    codes.map(|code| code.expect("a code")).collect()
}

fn passes(answer: &Value) {
    assert_eq!(answer["code"], "", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_of_a_former_holder_is_refused_and_changes_nothing() {
    let (gateway, proxy, url) = or_return!(fenced("{}").await);
    let mut steps = writes(&url, "42");
    let of_the_newer = steps.len();
    steps.push(json!({ "url": gateway.url(), "state": "backups" }));
    // Its own upload is open, and "$UploadId" is that one.
    steps.extend(writes(&url, "41"));
    let upload = json!({ "Key": "b", "UploadId": "$UploadId" });
    steps.push(call(&url, "41", "abort_multipart_upload", upload));
    steps.push(call(&url, "41", "delete_bucket", json!({})));
    steps.push(json!({ "url": gateway.url(), "state": "backups" }));
    // A refusal by status 412 of the gateway itself.
    let only_new = json!({ "Key": "a", "Body": "new", "IfNoneMatch": "*" });
    steps.push(call(&url, "42", "put_object", only_new));
    let answers = gateway.calls(&steps).await;

    let (newer, rest) = answers.split_at(of_the_newer);
    newer.iter().for_each(passes);
    let [before, stale @ .., after, own] = rest else {
        panic!("{rest:?}");
    };
    assert_eq!(
        before["objects"].as_object().map(serde_json::Map::len),
        Some(1)
    );
    assert_eq!(before["tags"]["a"][0]["Value"], "42");
    assert_eq!(
        before["parts"].as_object().map(serde_json::Map::len),
        Some(1)
    );
    assert_eq!(stale.len(), of_the_newer + 2);
    for answer in stale {
        let expected =
            json!({ "code": "412", "status": 412, "outcome": "stale-token", "retry": "never" });
        assert_eq!(*answer, expected);
    }
    assert_eq!(before, after);
    let expected =
        json!({ "code": "PreconditionFailed", "status": 412, "outcome": null, "retry": null });
    assert_eq!(*own, expected);
    assert_eq!(proxy.token("bucket:backups").await, Some(42));
}

/// What the page warns of: a key for each object, and one for the bucket, does not cover a delete of
/// many. With one for each prefix, as the page has it, such a request passes for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_finer_key_must_refuse_deletes_of_many() {
    let gateway = or_return!(Moto::start(&["backups"]).await);
    let many = json!({ "Delete": { "Objects": [{ "Key": "job7/a" }] } });
    let routes = "routes: [{ path: '/{bucket}/{*key}', resource: 'object:{bucket|plain}/{key}' },
                           { path: '/{bucket}', resource: 'bucket:{bucket|plain}' }]";
    for (name, more, expected) in [
        ("object-storage", routes, ["", "", ""]),
        (
            "object-storage-prefix",
            "stale_status: 409",
            ["", "409", "404"],
        ),
    ] {
        let at = address();
        let proxy = Proxy::start(&page(name, &gateway.url(), &at).with(more)).await;
        let url = format!("http://{at}");
        let answers = gateway
            .calls(&[
                put_object(&url, "42", "job7/a", "newer"),
                put_object(&url, "41", "job7/b", "older"),
                call(&url, "41", "delete_objects", many.clone()),
            ])
            .await;
        assert_eq!(codes(&answers), expected, "{name}");
        let left = gateway.state("backups").await;
        let left = left["objects"].get("job7/a").is_some();
        assert_eq!(left, name == "object-storage-prefix", "{name}");
        if left {
            assert_eq!(proxy.token("job:backups/job7").await, Some(42));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_is_signed_and_decides_whether_it_fences() {
    let gateway = or_return!(Moto::start(&["backups"]).await);
    // The gateway takes `backups` from the host of a former holder's request.
    for (host, stale, left) in [("preserve", 200, "older"), ("", 403, "newer")] {
        let at = address();
        let mut config = page("object-storage", &gateway.url(), &at);
        if !host.is_empty() {
            config = config.with(&format!("upstream: {{ host: {host} }}"));
        }
        let _proxy = Proxy::start(&config).await;
        let url = format!("http://{at}");
        let port = at.rsplit_once(':').expect("a port").1;
        let by_host = json!({ "url": &url, "host": format!("backups.objects.internal:{port}"),
            "path": "/a", "body": "older", "token": "41" });
        let mut signed = put_object(&url, "42", "b", "signed");
        signed["sign"] = json!(true);
        let mut changed = signed.clone();
        changed["token"] = json!("042");
        let get = json!({ "Bucket": "backups", "Key": "a" });
        let answers = gateway
            .calls(&[
                put_object(&url, "42", "a", "newer"),
                by_host,
                json!({ "url": gateway.url(), "call": "get_object", "with": get }),
                signed,
                changed,
            ])
            .await;
        passes(&answers[0]);
        assert_eq!(answers[1], json!({ "status": stale, "outcome": null }));
        assert_eq!(answers[2]["body"], left, "{host}");
        // A signed token passes as long as it is sent on as it came.
        passes(&answers[3]);
        assert_eq!(answers[4]["code"], "SignatureDoesNotMatch");
    }
    let at = address();
    let config = page("object-storage", &gateway.url(), &at);
    let _proxy = Proxy::start(&config.with("upstream: { host: rewrite }")).await;
    let write = put_object(&format!("http://{at}"), "42", "a", "x");
    let answers = gateway.calls(&[write]).await;
    assert_eq!(codes(&answers), ["SignatureDoesNotMatch"]);
}

/// The names that the page lists, and which `allow` opens each.
const NAMES: [(&str, &str); 3] = [
    ("x;y", "semicolon"),
    ("x//y", "empty-segments"),
    ("/x", "empty-segments"),
];

/// The names that nothing opens.
const NEVER: [&str; 5] = ["x/../y", "x\\y", "x?y", "x#y", "x%2Fy"];

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_ambiguous_are_refused_until_they_are_allowed() {
    let (gateway, _proxy, url) = or_return!(fenced("{}").await);
    let names = NAMES.map(|(name, _)| name);
    let puts = |url: &str| -> Vec<Value> {
        let harmless = ["dir/", "ü + (1)=@~*!'", "x%y"];
        let names = names.iter().chain(&NEVER).chain(&harmless);
        names.map(|name| put_object(url, "42", name, "x")).collect()
    };
    let answers = gateway.calls(&puts(&url)).await;
    let (refused, harmless) = answers.split_at(names.len() + NEVER.len());
    harmless.iter().for_each(passes);
    for answer in refused {
        assert_eq!(answer["outcome"], "ambiguous-request", "{answer}");
    }

    let mut allow: Vec<&str> = NAMES.iter().map(|(_, allow)| *allow).collect();
    allow.dedup();
    allow.extend(["encoded-slash", "raw-characters"]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let document = std::fs::read_to_string(path.join(PAGE)).expect("the page is there");
    let at = address();
    let all = page("object-storage", &gateway.url(), &at);
    let proxy = Proxy::start(&all.route(&json!({ "allow": &allow }).to_string())).await;
    let answers = gateway.calls(&puts(&format!("http://{at}"))).await;
    for (at, answer) in answers.iter().enumerate() {
        if (names.len()..names.len() + NEVER.len()).contains(&at) {
            assert_eq!(answer["outcome"], "ambiguous-request", "{answer}");
        } else {
            passes(answer);
        }
    }
    for word in allow {
        assert!(document.contains(&format!("`{word}`")), "{word}");
    }
    let state = gateway.state("backups").await;
    for name in names {
        assert!(state["objects"].get(name).is_some(), "{name}: {state}");
    }
    // With all of that allowed, the key is still the bucket's, or there is none.
    for path in ["/backups%2Fa", "/backups;x/a", "/backups%3Fa/b"] {
        let answer = proxy.send(put(path).token(1)).await;
        answer.assert_problem(400, "ambiguous-request");
    }
    let answer: Answer = proxy.send(put("/backups/a%2Fb|c").token(1)).await;
    answer.assert_problem(412, "stale-token");
}

/// Over TLS boto3 sends bodies in chunks within chunks, with a checksum at the end, all of it named
/// in the signature.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_with_trailing_checksums_pass_over_tls() {
    let (ca, files) = (Ca::new("clients"), Files::new());
    files.put_pair("fencepost", &ca.server(&["localhost"]));
    let trusted = files.put("ca.crt", ca.pem());
    let gateway = or_return!(Moto::start(&["backups"]).await);
    let at = format!("localhost:{}", free_port());
    let tls = json!({ "tls": {
        "cert_file": files.path("fencepost.crt"), "key_file": files.path("fencepost.key") } });
    let config = page("object-storage", &gateway.url(), &at).with(&tls.to_string());
    let _proxy = Proxy::start(&config).await;
    let url = format!("https://{at}");
    // Below body.buffer, and streamed.
    let mut steps = Vec::new();
    for (key, size) in [("small", 10), ("large", 3 << 20)] {
        let mut put = put_object(&url, "42", key, "");
        put["size"] = json!(size);
        let mut stale = put.clone();
        stale["token"] = json!("41");
        steps.extend([
            put,
            stale,
            call(&url, "42", "get_object", json!({ "Key": key })),
        ]);
    }
    let answers = gateway.calls_trusting(&trusted, &steps).await;
    for (answers, size) in answers.chunks(3).zip([10, 3 << 20]) {
        passes(&answers[0]);
        assert_eq!(answers[1]["outcome"], "stale-token");
        assert!(answers[2]["body"] == "x".repeat(size), "{size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_of_the_sdk_write_twice_unless_they_are_off() {
    let gateway = or_return!(Moto::start(&[]).await);
    let upstream = Upstream::start().await;
    let at = address();
    let _proxy = Proxy::start(&page("object-storage", upstream.url(), &at)).await;
    let mut write = put_object(&format!("http://{at}"), "42", "a", "x");
    upstream.next([Step::Close]);
    let once = gateway.calls(std::slice::from_ref(&write)).await;
    let expected = json!({ "code": "502", "status": 502, "outcome": "outcome-unknown", "retry": "check-first" });
    assert_eq!(once, [expected]);
    assert_eq!(upstream.count(), 1);
    write["retry"] = json!(true);
    upstream.next([Step::Close]);
    upstream.otherwise(|_| vec![Step::answer("200 OK", "", "")]);
    passes(&gateway.calls(&[write]).await[0]);
    assert_eq!(
        upstream.count(),
        3,
        "nobody knows whether the first took effect"
    );
}

/// The page's program, and how it ends.
async fn run(
    program: &Path,
    gateway: &Moto,
    url: &str,
    token: &str,
    dump: &Path,
) -> (bool, String) {
    let mut command = gateway.program(program);
    command.arg(dump).env("FENCEPOST_URL", url);
    let mut process = Process::start(command.env("ETCD_LOCK_REV", token));
    let status = process.exit().await;
    (status.success(), process.output())
}

/// The program, and nine MiB for it to upload: two parts.
fn program() -> (TempDir, PathBuf, PathBuf) {
    let dir = TempDir::new().expect("a directory");
    recipe("python.md", "fenced.py", dir.path());
    let program = recipe("../object-storage.md", "nightly_backup.py", dir.path());
    let dump = dir.path().join("dump.sql");
    std::fs::write(&dump, vec![b'd'; 9 << 20]).expect("the directory is writable");
    (dir, program, dump)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_writes_waits_and_stops() {
    let (gateway, proxy, url) = or_return!(fenced("barrier: { wait: 1s }").await);
    let (_dir, program, dump) = program();
    // An older upload is on its way: the program's claim waits, and is made again.
    let half = vec![b'o'; 2 << 20];
    let older = put("/backups/nightly/dump")
        .header("Content-Length", (4 << 20).to_string())
        .token(41);
    let mut older = proxy.begin(&older, &half).await;
    let labels = [("outcome", "older-in-flight")];
    eventually("the older upload to be in flight", || async {
        let mark = proxy.mark("bucket:backups").await?;
        (mark["in_flight"] == 1).then_some(())
    })
    .await;
    let newer = run(&program, &gateway, &url, "42", &dump);
    let release = async {
        proxy
            .until_metric("fencepost_requests_total", &labels, |count| count >= 1.0)
            .await;
        older.wire.send(&half).await.expect("it is still read");
        older.answer().await.expect("a whole answer")
    };
    let ((good, said), older) = soon("both", async { tokio::join!(newer, release) }).await;
    assert!(good, "{said}");
    assert_eq!(older.outcome(), None, "the older one went first");
    let state = gateway.state("backups").await;
    let dump_tag = state["objects"]["nightly/dump"].as_str();
    assert!(dump_tag.is_some_and(|tag| tag.ends_with("-2\"")), "{state}");

    // Another holder has claimed since.
    let claim = post("/.well-known/fencing/claim");
    let claim = claim.header("X-Fencing-Resource", "bucket:backups");
    let claimed = proxy.send(claim.token(43)).await;
    assert_eq!(claimed.status(), 204);
    let (good, said) = run(&program, &gateway, &url, "42", &dump).await;
    assert!(
        !good && said.contains("claim: stale-token: never"),
        "{said}"
    );
    assert_eq!(gateway.state("backups").await, state);

    // The answer to a write is lost.
    let lost = Upstream::start().await;
    let at = address();
    let _proxy = Proxy::start(&page("object-storage", lost.url(), &at)).await;
    lost.next([Step::Close]);
    let (good, said) = run(&program, &gateway, &format!("http://{at}"), "42", &dump).await;
    assert!(
        !good && said.contains("put: outcome-unknown: check-first"),
        "{said}"
    );
    assert_eq!(lost.count(), 1);
}

/// A program that adds no token gets it from `fencepost attach`: as a proxy, so that the host which
/// it signs stays.
#[tokio::test(flavor = "multi_thread")]
async fn attach_as_a_proxy_keeps_the_signature() {
    let (gateway, proxy, url) = or_return!(fenced("{}").await);
    let dir = TempDir::new().expect("a directory");
    let program = dir.path().join("unchanged.py");
    let source = "import boto3, os, sys
s3 = boto3.client('s3', endpoint_url=os.environ.get('ENDPOINT') or os.environ['FENCEPOST_URL'])
s3.put_object(Bucket='backups', Key='a', Body=sys.argv[1].encode())";
    std::fs::write(&program, source).expect("the directory is writable");
    let attach = |token: &str, more: &[&str], endpoint: &str| {
        let inner = gateway.program(&program);
        let mut command: Command = crate::support::proxy::fencepost();
        command.args(["attach", "--to", &url, "--token", token]);
        command.args(more).arg("--").arg(inner.get_program());
        command.args(inner.get_args()).arg(token);
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command
            .env("ENDPOINT", endpoint)
            .env("AWS_MAX_ATTEMPTS", "1");
        for name in ["AWS_ENDPOINT_URL", "AWS_RETRY_MODE"] {
            command.env_remove(name);
        }
        Process::start(&mut command)
    };
    for (token, more, endpoint, code) in [
        ("42", &["--http-proxy"][..], &*url, 0),
        ("41", &["--http-proxy"], &url, 75),
        ("43", &[], "", 1),
    ] {
        let mut process = attach(token, more, endpoint);
        let status = process.exit().await;
        let said = process.output();
        assert_eq!(status.code(), Some(code), "{token}: {said}");
        if code == 1 {
            assert!(said.contains("SignatureDoesNotMatch"), "{said}");
        }
    }
    let get = json!({ "Bucket": "backups", "Key": "a" });
    let step = json!({ "url": gateway.url(), "call": "get_object", "with": get });
    assert_eq!(gateway.calls(&[step]).await[0]["body"], "42");
    assert_eq!(proxy.token("bucket:backups").await, Some(43));
}
