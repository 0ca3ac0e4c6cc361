//! docs/when.md, as it stands there: the fence in front of a third party's API, and the lock in
//! `DynamoDB` whose number grows.

use serde_json::json;
use tempfile::TempDir;

use super::client_recipes::{recipe, run};
use crate::support::moto::Moto;
use crate::support::pages::config;
use crate::support::tls::{Ca, Files, server};
use crate::support::{
    Config, Gate, Proxy, Request, Step, Store, Upstream, forwarded, or_return, post, put,
};

fn charge(token: u64, operation: &str) -> Request {
    post("/v1/accounts/7/charges")
        .host(Some("fence.workers.internal"))
        .token(token)
        .header("X-Fencing-Operation", operation)
        .body("30")
}

/// A provider that speaks TLS, and the page's configuration in front of it.
#[tokio::test]
async fn a_third_partys_api_is_fenced_where_requests_leave() {
    let (ca, files) = (Ca::new("provider"), Files::new());
    let provider = Upstream::start_tls(server(&ca.server(&["localhost"]), None, &[])).await;
    let tls = json!({ "ca_file": files.put("ca.crt", ca.pem()) });
    let own = json!({ "upstream": { "url": provider.url(), "tls": tls } });
    let config = Config::to(provider.url(), &Store::sqlite())
        .with(&config("when.md", "payments"))
        .with(&own.to_string())
        .with("barrier: { wait: 300ms }");
    let proxy = Proxy::start(&config).await;
    let november = "invoice-2026-11";
    // Two workers. The first one's charge is still at the provider when the second one comes.
    let gate = Gate::shut();
    provider.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let first = charge(41, november).header("Idempotency-Key", november);
    let first = proxy.start_request(first);
    provider.reached(1).await;
    proxy
        .refuse(charge(42, november), 503, "older-in-flight")
        .await;
    gate.open();
    forwarded(first).await;
    // The second one repeats the charge, and the provider hears of it once.
    for _ in 0..2 {
        let again = proxy.send(charge(42, november)).await;
        let replayed = again.header("idempotency-replayed");
        assert_eq!((again.status(), replayed), (200, Some("true")));
    }

    // The first one wakes up: the provider sees nothing of it, on no path of the account.
    for stale in [
        charge(41, november),
        put("/v1/accounts/7").token(41),
        put("/v1/accounts/7/limits/x").token(41),
    ] {
        proxy.stale(stale).await;
    }
    proxy.forward(charge(42, "invoice-2026-12")).await;

    let arrivals = provider.arrivals();
    assert_eq!(provider.tokens("account:7"), [41, 42]);
    provider.assert_no_overtaking();
    let host = provider.url().trim_start_matches("https://");
    for arrival in &arrivals {
        let field = |name| arrival.head.get(name);
        assert_eq!(field("host"), Some(host), "the provider's own name");
        assert_eq!(field("x-forwarded-host"), Some("fence.workers.internal"));
        assert_eq!(arrival.resource(), Some("account:7"));
    }
    let keys = [0, 1].map(|at| arrivals[at].head.get("idempotency-key").expect("a key"));
    // The key of the operation takes the place of the client's own.
    assert!(keys[0] != november && keys[1] != keys[0], "{keys:?}");

    // After a charge whose answer was lost, the next holder waits for as long as the provider may
    // take.
    provider.next([Step::Close]);
    let lost = |token| charge(token, "invoice-2027-01");
    proxy.refuse(lost(42), 502, "outcome-unknown").await;
    let waits = proxy.send(lost(43)).await;
    waits.assert_problem(503, "older-in-flight");
    let left = waits.retry_after().expect("it says for how long");
    assert!((61..=120).contains(&left), "{left}");
    assert_eq!(provider.count(), 3);
}

/// What two holders get from the lock of the page, in order.
const HOLDERS: &str = "
import boto3, json
boto3.client('dynamodb').create_table(
    TableName='locks', BillingMode='PAY_PER_REQUEST',
    KeySchema=[{'AttributeName': 'lock', 'KeyType': 'HASH'}],
    AttributeDefinitions=[{'AttributeName': 'lock', 'AttributeType': 'S'}])
import dynamodb_lock as locks
got = [locks.acquire('orders', 'A', 3600), locks.acquire('orders', 'B', 3600)]
locks.release('orders', 'B')
got.append(locks.acquire('orders', 'B', 3600))
locks.release('orders', 'A')
got.append(locks.acquire('orders', 'B', -1))
got.append(locks.acquire('orders', 'C', 3600))
locks.release('orders', 'B')
got.append(locks.acquire('orders', 'D', 3600))
locks.release('orders', 'C')
got.append(locks.acquire('orders', 'D', 3600))
print(json.dumps(got))
";

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_in_dynamodb_has_a_number_that_grows() {
    let moto = or_return!(Moto::start(&[]).await);
    let dir = TempDir::new().expect("a directory");
    recipe("../when.md", "dynamodb_lock.py", dir.path());
    let holders = dir.path().join("holders.py");
    std::fs::write(&holders, HOLDERS).expect("the directory is writable");
    let ran = run(moto.program(&holders).env("AWS_ENDPOINT_URL", moto.url())).await;
    assert!(ran.good, "{}", ran.said);
    let got: Vec<Option<u64>> = serde_json::from_str(&ran.said).expect("a list");
    // B gets it only once A has let it go; C once B's lease is over; and what is no longer B's,
    // B cannot give up.
    let expected = [Some(1), None, None, Some(2), Some(3), None, Some(4)];
    assert_eq!(got, expected);
}
