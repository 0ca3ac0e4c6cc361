//! `WebSocket`: the cases of Autobahn|Testsuite, which kosoku plays, over aiohttp.

use serde_json::Value;

use super::Way::Bypass;
use super::http::serve;
use super::{Suite, compare};
use crate::support::or_return;
use crate::support::python::{installed, python};

const AUTOBAHN: Suite = Suite {
    name: "Autobahn|Testsuite",
    tests: 255,
    ways: &[Bypass],
    differences: &[],
};

/// All cases but the long ones, messages of megabytes and thousands of them, which have only the
/// first of each kind.
const CASES: [&str; 13] = [
    "1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*.1", "10.*", "12.1.1", "12.1.2", "13.1.1",
    "13.7.1",
];

#[tokio::test]
async fn autobahn() {
    let python = or_return!(python());
    compare(
        &AUTOBAHN,
        async || serve(&python, "echo").await,
        async |route, _| {
            let mut command = installed(&python, "kosoku");
            command
                .args(["-p", "4", "-o", "report"])
                .args(CASES.map(|case| format!("-i{case}")));
            command.arg(&route.url);
            let said = route.run(command).await;
            let report = std::fs::read_to_string(route.dir.path().join("report/index.json"));
            let report: Value = serde_json::from_str(&report.expect(&said)).expect("JSON");
            let mut agents = report.as_object().expect("an object").values();
            let cases = agents.next().and_then(Value::as_object).expect("cases");
            let all = cases.iter().map(|(name, case)| {
                let ends = ["behavior", "behaviorClose", "remoteCloseCode"];
                let ends = ends.map(|end| case[end].to_string());
                (name.clone(), ends.join(" "))
            });
            all.collect()
        },
    )
    .await;
}
