//! docs/object-storage.md, as it stands there: its configurations in front of a gateway that checks
//! signatures, its program, and what it says must not be done.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client_recipes::{self, Ran, recipe};
use crate::support::moto::Moto;
use crate::support::pages::config;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::tls::{Ca, Files};
use crate::support::{Config, Proxy, Step, Store, Upstream, or_return, post, put};

const PAGE: &str = "object-storage.md";

/// The page's configuration in front of this gateway, at a free port; and the URL that its clients
/// sign.
fn page(name: &str, gateway: &str) -> (Config, String) {
    let at = format!("127.0.0.1:{}", free_port());
    let here = json!({ "listen": at, "upstream": { "url": gateway, "host": at } });
    let config = Config::to(gateway, &Store::sqlite())
        .with(&config(PAGE, name))
        .with(&here.to_string());
    (config, format!("http://{at}"))
}

/// A gateway with the bucket `backups`, and fencepost in front of it as the page has it.
async fn fenced(more: &str) -> Option<(Moto, Proxy, String)> {
    let gateway = Moto::start(&["backups"]).await?;
    let (config, url) = page("object-storage", &gateway.url());
    Some((gateway, Proxy::start(&config.with(more)).await, url))
}

/// A call with a token; an empty one is none.
fn call(url: &str, token: &str, name: &str, mut with: Value) -> Value {
    with["Bucket"] = json!("backups");
    json!({ "url": url, "token": token, "call": name, "with": with })
}

fn put_object(url: &str, token: &str, key: &str, body: &str) -> Value {
    let with = json!({ "Key": key, "Body": body });
    call(url, token, "put_object", with)
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
    assert!(codes(newer).iter().all(|code| code.is_empty()), "{newer:?}");
    let [before, stale @ .., after, own] = rest else {
        panic!("{rest:?}");
    };
    assert_eq!(before["tags"]["a"][0]["Value"], "42");
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

/// With a key for each prefix, as the page has it, a request that names objects in its body passes
/// for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_each_prefix_refuses_deletes_of_many() {
    let gateway = or_return!(Moto::start(&["backups"]).await);
    let (config, url) = page("object-storage-prefix", &gateway.url());
    let proxy = Proxy::start(&config.with("stale_status: 409")).await;
    let many = json!({ "Delete": { "Objects": [{ "Key": "job7/a" }] } });
    let answers = gateway
        .calls(&[
            put_object(&url, "42", "job7/a", "newer"),
            put_object(&url, "41", "job7/b", "older"),
            call(&url, "41", "delete_objects", many),
            call(&gateway.url(), "", "get_object", json!({ "Key": "job7/a" })),
        ])
        .await;
    assert_eq!(codes(&answers), ["", "409", "404", ""]);
    assert_eq!(proxy.token("job:backups/job7").await, Some(42));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_is_signed_and_decides_whether_it_fences() {
    let gateway = or_return!(Moto::start(&["backups"]).await);
    // The gateway takes `backups` from the host of a former holder's request.
    for (host, newer, older, left) in [
        ("", "", 403, "newer"),
        ("preserve", "", 200, "older"),
        ("rewrite", "SignatureDoesNotMatch", 403, "older"),
    ] {
        let (mut config, url) = page("object-storage", &gateway.url());
        if !host.is_empty() {
            config = config.with(&format!("upstream: {{ host: {host} }}"));
        }
        let _proxy = Proxy::start(&config).await;
        let port = url.rsplit_once(':').expect("a port").1;
        let by_host = json!({ "url": &url, "host": format!("backups.objects.internal:{port}"),
            "path": "/a", "body": "older", "token": "41" });
        let answers = gateway
            .calls(&[
                put_object(&url, "42", "a", "newer"),
                by_host,
                call(&gateway.url(), "", "get_object", json!({ "Key": "a" })),
            ])
            .await;
        assert_eq!(answers[0]["code"], newer, "{host}");
        assert_eq!(answers[1], json!({ "status": older, "outcome": null }));
        assert_eq!(answers[2]["body"], left, "{host}");
    }
}

/// The names that the page lists, and all of `allow` that it names.
const NAMES: [&str; 3] = ["x;y", "x//y", "/x"];
const ALLOW: [&str; 4] = [
    "semicolon",
    "empty-segments",
    "encoded-slash",
    "raw-characters",
];

/// The names that nothing opens.
const NEVER: [&str; 5] = ["x/../y", "x\\y", "x?y", "x#y", "x%2Fy"];
const HARMLESS: [&str; 3] = ["dir/", "ü + (1)=@~*!'", "x%y"];

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_ambiguous_are_refused_until_they_are_allowed() {
    let gateway = or_return!(Moto::start(&["backups"]).await);
    for all in [false, true] {
        let (mut config, url) = page("object-storage", &gateway.url());
        if all {
            config = config.route(&json!({ "allow": ALLOW }).to_string());
        }
        let proxy = Proxy::start(&config).await;
        let cases = NAMES.map(|name| (name, all)).into_iter();
        let cases = cases.chain(NEVER.map(|name| (name, false)));
        let cases: Vec<_> = cases.chain(HARMLESS.map(|name| (name, true))).collect();
        let step = |(name, _): &(&str, bool)| put_object(&url, "42", name, "x");
        let steps: Vec<_> = cases.iter().map(step).collect();
        for ((name, passes), answer) in cases.iter().zip(gateway.calls(&steps).await) {
            let passed = answer["code"] == "";
            let refused = answer["outcome"] == "ambiguous-request";
            assert_eq!((passed, refused), (*passes, !passes), "{name}: {answer}");
        }
        // With all of that allowed, the key is still the bucket's, or there is none.
        for path in ["/backups%2Fa", "/backups;x/a", "/backups%3Fa/b"] {
            let refused = put(path).token(1);
            proxy.refuse(refused, 400, "ambiguous-request").await;
        }
        if all {
            proxy.stale(put("/backups/a%2Fb|c").token(1)).await;
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let document = std::fs::read_to_string(path.join(PAGE)).expect("the page is there");
    for word in ALLOW {
        assert!(document.contains(&format!("`{word}`")), "{word}");
    }
    let state = gateway.state("backups").await;
    for name in NAMES {
        assert!(state["objects"].get(name).is_some(), "{name}: {state}");
    }
}

/// Over TLS boto3 sends bodies in chunks within chunks, with a checksum at the end, all of it named
/// in the signature.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_with_trailing_checksums_pass_over_tls() {
    let (ca, files) = (Ca::new("clients"), Files::new());
    files.put_pair("fencepost", &ca.server(&["127.0.0.1"]));
    let trusted = files.put("ca.crt", ca.pem());
    let gateway = or_return!(Moto::start(&["backups"]).await);
    let tls = json!({ "tls": {
        "cert_file": files.path("fencepost.crt"), "key_file": files.path("fencepost.key") } });
    let (config, url) = page("object-storage", &gateway.url());
    let _proxy = Proxy::start(&config.with(&tls.to_string())).await;
    let url = url.replace("http:", "https:");
    // Below body.buffer, and streamed.
    let sizes = [10, 3 << 20];
    let steps = sizes.map(|size| {
        let mut put = put_object(&url, "42", &size.to_string(), "");
        put["size"] = json!(size);
        let mut stale = put.clone();
        stale["token"] = json!("41");
        let read = json!({ "Key": size.to_string() });
        [put, stale, call(&url, "42", "get_object", read)]
    });
    let trusting = [("AWS_CA_BUNDLE", &*trusted)];
    let answers = gateway.calls_in(&trusting, &steps.concat()).await;
    for (answers, size) in answers.chunks(3).zip(sizes) {
        assert_eq!(answers[0]["code"], "", "{answers:?}");
        assert_eq!(answers[1]["outcome"], "stale-token");
        assert!(answers[2]["body"] == "x".repeat(size), "{size}");
    }
}

/// How the page's program ends, which uploads nine MiB: two parts.
async fn run(gateway: &Moto, url: &str, token: &str) -> Ran {
    let dir = TempDir::new().expect("a directory");
    recipe("python.md", "fenced.py", dir.path());
    let program = recipe("../object-storage.md", "nightly_backup.py", dir.path());
    let dump = dir.path().join("dump.sql");
    std::fs::write(&dump, vec![b'd'; 9 << 20]).expect("the directory is writable");
    let mut command = gateway.program(&program);
    command.arg(dump).env("FENCEPOST_URL", url);
    client_recipes::run(command.env("ETCD_LOCK_REV", token)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_writes_waits_and_stops() {
    let (gateway, proxy, url) = or_return!(fenced("barrier: { wait: 1s }").await);
    // An older upload is on its way: the program's claim waits, and is made again.
    let half = vec![b'o'; 2 << 20];
    let older = put("/backups/nightly/dump").header("Content-Length", (4 << 20).to_string());
    let mut older = proxy.begin(&older.token(41), &half).await;
    proxy.until_some("fencepost_upstream_in_flight").await;
    let release = async {
        proxy.until_outcome("older-in-flight", 1).await;
        older.push(&half).await;
        older.finish().await
    };
    let (ran, older) = tokio::join!(run(&gateway, &url, "42"), release);
    assert!(ran.good, "{}", ran.said);
    assert_eq!(older.outcome(), None, "the older one went first");
    let state = gateway.state("backups").await;
    let dump_tag = state["objects"]["nightly/dump"].as_str();
    assert!(dump_tag.is_some_and(|tag| tag.ends_with("-2\"")), "{state}");

    // Another holder has claimed since.
    let claim = post("/.well-known/fencing/claim");
    let claim = claim.header("X-Fencing-Resource", "bucket:backups");
    assert_eq!(proxy.send(claim.token(43)).await.status(), 204);
    let Ran { good, said } = run(&gateway, &url, "42").await;
    let told = said.contains("claim: stale-token: never");
    assert!(!good && told, "{said}");
    assert_eq!(gateway.state("backups").await, state);

    // The answer to a write is lost.
    let lost = Upstream::start().await;
    let (config, url) = page("object-storage", lost.url());
    let _proxy = Proxy::start(&config).await;
    lost.next([Step::Close]);
    let Ran { good, said } = run(&gateway, &url, "42").await;
    let told = said.contains("put: outcome-unknown: check-first");
    assert!(!good && told, "{said}");
    assert_eq!(lost.count(), 1);
}

/// A program that adds no token gets it from `fencepost attach`: as a proxy, so that the host which
/// it signs stays.
#[tokio::test(flavor = "multi_thread")]
async fn attach_as_a_proxy_keeps_the_signature() {
    let (gateway, proxy, url) = or_return!(fenced("{}").await);
    let inner = gateway.program("object_storage/calls.py");
    for (token, code) in [("42", 0), ("41", 75)] {
        let mut command = fencepost();
        command.args(["attach", "--to", &url, "--token", token, "--http-proxy"]);
        command.arg("--").arg(inner.get_program());
        let step = json!([put_object(&url, "", "a", token)]);
        command.args(inner.get_args()).arg(step.to_string());
        let own = inner.get_envs();
        command.envs(own.filter_map(|(name, value)| Some((name, value?))));
        let mut process = Process::start(&mut command);
        let status = process.exit().await;
        assert_eq!(status.code(), Some(code), "{token}: {}", process.output());
    }
    let read = call(&gateway.url(), "", "get_object", json!({ "Key": "a" }));
    assert_eq!(gateway.calls(&[read]).await[0]["body"], "42");
    assert_eq!(proxy.token("bucket:backups").await, Some(42));
}
