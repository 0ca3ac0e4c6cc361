//! Resources that get their first mark: as many as there are, and the length of their keys.

use crate::support::wire::Wire;
use crate::support::{Proxy, fenced, post, put};

const CONNECTIONS: u32 = 64;

/// Claims so many resources over connections enough that every worker serves some.
async fn burst(proxy: &Proxy, count: u32) {
    let data = proxy.data();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|client| {
            tokio::spawn(async move {
                let mut wire = Wire::connect(data).await.expect("the proxy listens");
                for n in (client..count).step_by(CONNECTIONS as usize) {
                    let claim = post("/.well-known/fencing/claim")
                        .header("X-Fencing-Resource", format!("order:{n}"))
                        .token(1);
                    assert_eq!(wire.status(&claim.bytes()).await, "204");
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no panic");
    }
}

/// A new order is a new resource, and a service may have thousands of them in a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_resource_gets_a_mark() {
    let (_upstream, proxy) = fenced("{}").await;
    burst(&proxy, 20_000).await;
    let made = proxy.count("fencepost_new_resources_total", &[]).await;
    assert_eq!(made, 20_000);
}

#[tokio::test]
async fn keys_have_at_most_1024_bytes() {
    let (upstream, proxy) = fenced("{}").await;
    let (fits, long) = ("x".repeat(1018), "x".repeat(1019));
    let path = |id: &str| format!("/orders/{id}");
    let by_key = |id: &str| {
        post("/.well-known/fencing/claim")
            .header("X-Fencing-Resource", format!("order:{id}"))
            .token(1)
    };
    proxy.forward(put(&path(&fits)).token(1)).await;
    assert_eq!(proxy.send(by_key(&fits)).await.status(), 204);
    for refused in [put(&path(&long)).token(1), by_key(&long)] {
        proxy
            .send(refused)
            .await
            .assert_problem(400, "ambiguous-request");
    }
    assert_eq!(upstream.count(), 1);
}
