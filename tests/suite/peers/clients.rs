//! Clients that others wrote: git over smart HTTP, boto3 over moto, and h2load.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::Way::{Attach, Bypass, Fenced, Nginx, Straight};
use super::{Outcomes, Suite, compare};
use crate::support::moto::Moto;
use crate::support::nginx;
use crate::support::process::Group;
use crate::support::store::tool;
use crate::support::{eventually, or_return};

const GIT: Suite = Suite {
    name: "git",
    tests: 18,
    ways: &[Bypass, Fenced, Attach],
    differences: &[],
};

/// Steps in the directory of one run. `big` needs more than `http.postBuffer`: it goes in chunks.
const STEPS: &str = "
git clone -q $URL/a.git one
cd one && echo a >a && git add a && git commit -q -m a
cd one && git push -q origin HEAD:main
git clone -q $URL/a.git two && cat two/a
cd one && head -c 3000000 /dev/zero | openssl enc -aes-128-ctr -K 00 -iv 00 >big && git add big && git commit -q -m big
cd one && git push -q origin HEAD:main
cd two && git pull -q && cksum big
cd two && echo b >b && git add b && git commit -q -m b && git push -q origin HEAD:main
cd one && git commit -q --allow-empty -m c && git push -q origin HEAD:main
cd one && git push -q --force origin HEAD:main
cd one && git tag v1 && git push -q --tags && git push -q origin HEAD:refs/heads/side
cd one && git push -q --atomic origin HEAD:refs/heads/x HEAD:refs/heads/y
cd one && git push -q origin --delete side
cd one && git push -q --force-with-lease=main:HEAD~1 origin HEAD:main
git ls-remote $URL/a.git
git clone -q --depth 1 $URL/a.git shallow && git -C shallow log --format=%s
git -C shallow fetch -q --unshallow && git -C shallow log --format=%H
git clone -q --filter=blob:none $URL/a.git partial && git -C partial rev-list --count HEAD
git -c protocol.version=0 ls-remote $URL/a.git
git -c http.postBuffer=1000 clone -q --bare $URL/a.git bare && git -C bare fsck --full
git archive --remote=$URL/a.git HEAD
git clone -q $URL/none.git
";

/// nginx before git's own program for the server, by `FastCGI`.
async fn git_server(nginx: &Path, fcgiwrap: &Path, git: &Path) -> (nginx::Nginx, Group) {
    let paths = Command::new(git).arg("--exec-path").output();
    let paths = String::from_utf8(paths.expect("git runs").stdout).expect("a path");
    let location = format!(
        "client_max_body_size 0; fastcgi_pass unix:fcgi; include /etc/nginx/fastcgi_params;
         fastcgi_param SCRIPT_FILENAME {}/git-http-backend; fastcgi_param PATH_INFO $uri;
         fastcgi_param GIT_HTTP_EXPORT_ALL 1; fastcgi_param REMOTE_USER peer;
         fastcgi_param GIT_PROJECT_ROOT $document_root;",
        paths.trim()
    );
    let server = nginx::Nginx::start(nginx, &location, "").await;
    let (root, socket) = (
        server.dir.path().join("root/a.git"),
        server.dir.path().join("fcgi"),
    );
    let mut init = Command::new(git);
    init.args(["init", "-q", "--bare", "-b", "main"]).arg(root);
    assert!(init.status().expect("git runs").success());
    let mut wrap = Command::new(fcgiwrap);
    wrap.args(["-c", "2", "-s", &format!("unix:{}", socket.display())]);
    // It forks, and its children would outlive it.
    let wrap = Group::start(&mut wrap);
    eventually("fcgiwrap to listen", async || socket.exists().then_some(())).await;
    (server, wrap)
}

/// The environment of git: nothing of the machine's settings.
const OF_GIT: [(&str, &str); 9] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "http.extraHeader"),
    ("GIT_AUTHOR_NAME", "a"),
    ("GIT_AUTHOR_EMAIL", "a"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "c"),
    ("GIT_COMMITTER_EMAIL", "c"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];

#[tokio::test]
async fn git() {
    let (git, wrap) = (or_return!(tool("git")), or_return!(tool("fcgiwrap")));
    let nginx = or_return!(tool("nginx"));
    let upstream = async || {
        let server = git_server(&nginx, &wrap, &git).await;
        (server.0.url(), server)
    };
    compare(&GIT, upstream, async |route, _| {
        let mut outcomes = Outcomes::new();
        for step in STEPS.lines().filter(|line| !line.is_empty()) {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{{ {step}; }} 2>&1; echo code $?")]);
            command.env("URL", &route.url).env("HOME", route.dir.path());
            let token = route.token().unwrap_or("X-Peer: none");
            command.envs(OF_GIT).env("GIT_CONFIG_VALUE_0", token);
            let said = route.run(command).await.replace(&route.url, "URL");
            outcomes.push((step.to_owned(), said));
        }
        outcomes
    })
    .await;
}

const SPELLINGS: &str = "a key that servers read in several ways is refused, as long as the route \
    does not allow it";

const BOTO3: Suite = Suite {
    name: "boto3",
    tests: 30,
    ways: &[Bypass, Fenced],
    differences: &[
        ("put_object 空 ?&=#%", &[Bypass, Fenced], SPELLINGS),
        ("get_object 空 ?&=#%", &[Bypass, Fenced], SPELLINGS),
        ("put_object a//b", &[Bypass, Fenced], SPELLINGS),
    ],
};

/// Calls of one bucket, in their order.
const CALLS: &str = r#"
- head_bucket: {}
- get_bucket_location: {}
- put_object: { Key: dir/a b+c, Body: "0123456789", ContentType: text/plain, Metadata: { m: v } }
- get_object: { Key: dir/a b+c }
- get_object: { Key: dir/a b+c, Range: "bytes=2-5" }
- get_object: { Key: dir/a b+c, Range: "bytes=20-" }
- get_object: { Key: dir/a b+c, IfNoneMatch: "*" }
- get_object: { Key: dir/a b+c, IfMatch: '"other"' }
- get_object: { Key: none }
- head_object: { Key: dir/a b+c }
- head_object: { Key: none }
- put_object: { Key: dir/a b+c, Body: again, IfNoneMatch: "*" }
- put_object: { Key: sha, Body: x, ChecksumAlgorithm: SHA256 }
- put_object: { Key: "空 ?&=#%", Body: odd }
- get_object: { Key: "空 ?&=#%" }
- put_object: { Key: a//b, Body: odd }
- put_object: { Key: empty, Body: "" }
- get_object: { Key: empty }
- copy_object: { Key: copy, CopySource: { Bucket: peer, Key: dir/a b+c } }
- get_object: { Key: copy }
- put_object_tagging: { Key: dir/a b+c, Tagging: { TagSet: [{ Key: k, Value: v }] } }
- get_object_tagging: { Key: dir/a b+c }
- list_objects: { Prefix: dir/, Delimiter: / }
- list_objects_v2: { MaxKeys: 2 }
- create_multipart_upload: { Key: parts }
- upload_part: { Key: parts, UploadId: $UploadId, PartNumber: 1, Body: part }
- list_parts: { Key: parts, UploadId: $UploadId }
- list_multipart_uploads: {}
- complete_multipart_upload: { Key: parts, UploadId: $UploadId, MultipartUpload: {
    Parts: [{ PartNumber: 1, ETag: $ETag }] } }
- create_multipart_upload: { Key: parts }
- abort_multipart_upload: { Key: parts, UploadId: $UploadId }
- delete_objects: { Delete: { Objects: [{ Key: copy }, { Key: sha }] } }
- delete_object: { Key: dir/a b+c }
- delete_bucket: {}
"#;

#[tokio::test]
async fn boto3() {
    if Moto::start(&["peer"]).await.is_none() {
        return;
    }
    let upstream = async || {
        let moto = Moto::start(&["peer"]).await.expect("it has just run");
        (moto.url(), moto)
    };
    compare(&BOTO3, upstream, async |route, moto| {
        let token = route.token().and_then(|field| field.rsplit(' ').next());
        let calls: Vec<BTreeMap<String, Value>> = serde_saphyr::from_str(CALLS).expect("YAML");
        let mut calls: Vec<(String, Value)> = calls.into_iter().flatten().collect();
        let steps = calls.iter_mut().map(|(call, with)| {
            with["Bucket"] = json!("peer");
            json!({ "url": route.url, "call": call, "with": with, "token": token })
        });
        let answers = moto.calls(&steps.collect::<Vec<_>>()).await;
        let all = calls
            .into_iter()
            .zip(answers)
            .map(|((call, with), answer)| {
                let key = with["Key"].as_str().unwrap_or_default();
                (format!("{call} {key}"), answer.to_string())
            });
        all.collect()
    })
    .await;
}

const H2LOAD: Suite = Suite {
    name: "h2load",
    tests: 8,
    ways: &[Bypass, Fenced],
    differences: &[],
};

/// The upstream has a page of 1 KiB and one of 1 MiB, and answers 200 to everything else.
#[tokio::test]
async fn h2load() {
    let (h2load, nginx) = (or_return!(tool("h2load")), or_return!(tool("nginx")));
    let upstream = async || {
        let location = "client_max_body_size 0; error_page 405 404 =200 /small;";
        let server = nginx::Nginx::start(&nginx, location, "").await;
        for (name, size) in [("small", 1 << 10), ("large", 1 << 20)] {
            let page = server.dir.path().join("root").join(name);
            std::fs::write(page, vec![b'x'; size]).expect("a page");
        }
        (server.url(), server)
    };
    compare(&H2LOAD, upstream, async |route, _| {
        let body = route.dir.path().join("body");
        std::fs::write(&body, vec![b'x'; 50_000]).expect("a file");
        let mut outcomes = Outcomes::new();
        for protocol in ["HTTP/1.1", "HTTP/2"] {
            for load in [
                "-n 2000 -c 20 -m 10 /small",
                "-n 40 -c 4 -m 5 /large",
                "-n 300 -c 10 -m 10 -d body /write",
                "-n 300 -c 10 -m 3 -H :method:PUT /write",
            ] {
                let mut command = Command::new(&h2load);
                // nginx speaks one protocol on a port, so it is asked by HTTP/1.1 throughout.
                if protocol == "HTTP/1.1" || [Straight, Nginx].contains(&route.way) {
                    command.arg("--h1");
                }
                command.args(route.token().iter().flat_map(|token| ["-H", token]));
                for word in load.split(' ') {
                    match word.strip_prefix('/') {
                        Some(path) => command.arg(format!("{}/{path}", route.url)),
                        None => command.arg(word),
                    };
                }
                let said = route.run(command).await;
                let is_count = |line: &&str| {
                    line.starts_with("requests: ") || line.starts_with("status codes: ")
                };
                let counts = said.lines().filter(is_count).collect::<Vec<_>>().join("; ");
                let mut parts = said.split(['(', ')', ',']);
                let data = parts
                    .find(|part| part.ends_with(" data"))
                    .unwrap_or_default();
                outcomes.push((format!("{protocol} {load}"), format!("{counts}; {data}")));
            }
        }
        outcomes
    })
    .await;
}
