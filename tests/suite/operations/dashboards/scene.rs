//! Proxies to which everything happens that an alert is for, each under a job of its own; and one
//! to which nothing does.

use std::net::SocketAddr;

use serde_json::json;

use crate::support::postgres::{Cluster, free_port};
use crate::support::store::has_postgres;
use crate::support::tls::{Ca, Files};
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, forwarded, get, joined, post, put,
};

const CUT_OFF: &str = "{ store: { lease: 4s, timeout: 3s } }";

/// The routes of the job `orders`; `imports` is gone on the way, by another name for the route.
fn routes(imports: &str) -> String {
    format!(
        "{{ barrier: {{ wait: 4s, settle: 100s, queue: 25 }},
           routes: [
             {{ path: '/orders/{{id}}', name: orders, resource: 'order:{{id}}' }},
             {{ path: '/imports/{{id}}', name: {imports}, resource: 'import:{{id}}' }},
             {{ path: '/trial/{{id}}', name: trial, resource: 'trial:{{id}}', mode: observe }},
             {{ path: /health, name: health, mode: bypass }},
           ] }}"
    )
}

pub struct Scene {
    upstream: Upstream,
    store: Store,
    orders: Proxy,
    /// On the store of `orders`, with other routes.
    _beside: Proxy,
    quiet: Proxy,
    reset: Proxy,
    dead_end: Proxy,
    cut_off: Proxy,
    cluster: Cluster,
    /// TLS with a certificate whose time is over.
    gone: Proxy,
    /// Its file is deleted, and it is started again.
    emptied: (Proxy, Config, Store),
    _files: Files,
}

impl Scene {
    /// Starts them all; `None`, and a line that says so, without Postgres.
    pub async fn set() -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        let cluster = Cluster::start();
        let upstream = Upstream::start().await;
        let (store, files) = (Store::on(&cluster).await, Files::new());
        let other = Store::on(Cluster::shared()).await;
        files.put_pair(
            "tls",
            &Ca::new("the test's CA").server_until(&["localhost"], 2024),
        );
        let tls = format!(
            "{{ tls: {{ cert_file: {}, key_file: {} }} }}",
            files.path("tls.crt").display(),
            files.path("tls.key").display(),
        );
        let plain = || Config::new(&upstream, &Store::sqlite());
        let beside = routes("imports").replace("name: trial,", "name: trial, reuse: once,");
        let file = Store::sqlite();
        let emptied = Config::new(&upstream, &file)
            .with(&format!("admin: {{ listen: '127.0.0.1:{}' }}", free_port()));
        let nobody = format!("http://127.0.0.1:{}", free_port());
        Some(Self {
            orders: Proxy::start(&Config::new(&upstream, &other).with(&routes("imports"))).await,
            _beside: Proxy::start(&Config::new(&upstream, &other).with(&beside)).await,
            quiet: Proxy::start(&plain()).await,
            reset: Proxy::start(&plain()).await,
            dead_end: Proxy::start(&Config::to(&nobody, &Store::sqlite())).await,
            cut_off: Proxy::start(&Config::new(&upstream, &store).with(CUT_OFF)).await,
            // Scraped after its end too, so its port is to become nobody else's.
            gone: Proxy::start(
                &plain()
                    .with(&tls)
                    .with(&format!("admin: {{ listen: '127.0.0.1:{}' }}", free_port())),
            )
            .await,
            emptied: (Proxy::start(&emptied).await, emptied, file),
            store: other,
            upstream,
            cluster,
            _files: files,
        })
    }

    /// Job and admin port of each.
    pub fn targets(&self) -> Vec<(&'static str, SocketAddr)> {
        [
            ("orders", &self.orders),
            ("quiet", &self.quiet),
            ("reset", &self.reset),
            ("dead-end", &self.dead_end),
            ("cut-off", &self.cut_off),
            ("gone", &self.gone),
            ("emptied", &self.emptied.0),
        ]
        .map(|(job, proxy)| (job, proxy.admin()))
        .to_vec()
    }

    /// Everything, in a few seconds.
    pub async fn play(&self) {
        self.ordinary().await;
        self.refused().await;
        self.unknown().await;
        self.waiting().await;
        self.operated().await;
        self.a_reset().await;
        for n in 0..8 {
            let answer = self.dead_end.send(put("/orders/7").token(n)).await;
            answer.assert_problem(502, "upstream-unreachable");
        }
        self.an_outage().await;
        self.reloaded().await;
    }

    /// SIGKILL for the job `gone`.
    pub fn remove(&mut self) {
        self.gone.kill9();
    }

    /// A new file takes the place of the one of the job `emptied`.
    pub async fn empty(&mut self) {
        let (proxy, config, store) = &mut self.emptied;
        proxy.kill9();
        for suffix in ["", "-wal", "-shm"] {
            let mut file = store.path().into_os_string();
            file.push(suffix);
            std::fs::remove_file(file).expect("it is there");
        }
        *proxy = Proxy::start(config).await;
    }

    async fn ordinary(&self) {
        for n in 0..4 {
            let request = put(&format!("/orders/{n}")).token(5);
            self.emptied.0.send(request).await.assert_forwarded();
        }
        for n in 0..40 {
            let target = format!("/orders/{}", n % 4);
            self.quiet.forward(put(&target).token(5 + n / 8)).await;
        }
        // One zombie is what fencepost is for.
        self.quiet.stale(put("/orders/0").token(1)).await;
        let claim = post("/.well-known/fencing/claim")
            .token(3)
            .header("X-Fencing-Resource", "order:70");
        assert_eq!(self.orders.send(claim).await.status(), 204);
        for token in [5, 5, 6, 6] {
            for target in ["/orders/1", "/orders/2", "/imports/1", "/trial/1"] {
                self.orders.forward(put(target).token(token)).await;
            }
            self.orders.forward(get("/orders/1")).await;
            self.orders.forward(put("/health")).await;
        }
        self.upstream
            .next([Step::answer("500 Internal Server Error", "", "")]);
        assert_eq!(
            self.orders.send(put("/orders/1").token(6)).await.status(),
            500
        );
    }

    async fn refused(&self) {
        for n in 0..12 {
            let target = format!("/orders/{}", 1 + n % 2);
            self.orders.stale(put(&target).token(n % 4)).await;
            self.orders
                .refuse(put(&target), 428, "token-required")
                .await;
        }
        self.orders
            .refuse(put("/orders/1").token("0x7"), 400, "malformed-token")
            .await;
        self.orders
            .refuse(
                put("/orders/1").token(u64::MAX >> 1),
                422,
                "implausible-token",
            )
            .await;
        self.orders
            .refuse(put("/elsewhere").token(7), 404, "no-route")
            .await;
        // Observe mode lets this pass.
        self.orders.forward(put("/trial/1").token(1)).await;
        self.orders.forward(put("/trial/1")).await;
    }

    /// Three exchanges break; nothing settles before the test is over.
    async fn unknown(&self) {
        for token in [901, 902, 903] {
            self.upstream.on_token(token, [Step::Reset]);
            self.orders
                .send(put(&format!("/orders/{token}")).token(token))
                .await
                .assert_problem(502, "outcome-unknown");
        }
    }

    /// Forty newer holders come while an older one's request runs: 25 wait in vain, there is no
    /// room for the others.
    async fn waiting(&self) {
        let gate = Gate::shut();
        self.upstream
            .on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
        let older = self.orders.start_request(put("/orders/40").token(41));
        self.upstream
            .until("41 to arrive", |all| {
                all.iter().any(|one| one.token() == Some(41))
            })
            .await;
        let newer: Vec<_> = (0..40)
            .map(|_| self.orders.start_request(put("/orders/40").token(42)))
            .collect();
        for request in newer {
            let answer = joined(request).await;
            assert_eq!(answer.status(), 503, "{}", answer.text());
        }
        gate.open();
        forwarded(older).await;
    }

    async fn operated(&self) {
        let guess = get("/v1/marks")
            .header("Authorization", "Bearer a-guess-at-the-token")
            .send(self.orders.admin())
            .await;
        assert_eq!(guess.status(), 401, "{}", guess.text());
        let body = json!({ "token": "2", "reason": "a test" });
        let answer = self
            .orders
            .command("/v1/marks/order%3A70/override", &body)
            .await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        // Behind everybody's back, as a restored backup does it.
        self.store
            .execute("UPDATE marks SET token = 1 WHERE resource = 'order:2'")
            .await;
        self.orders
            .refuse(put("/orders/2").token(7), 503, "store-unavailable")
            .await;
        self.orders
            .until_some("fencepost_mark_regressions_total")
            .await;
    }

    /// The lock service counts from 1 again.
    async fn a_reset(&self) {
        for n in 0..30 {
            let target = format!("/orders/{n}");
            self.reset.forward(put(&target).token(1000 + n)).await;
            self.reset.stale(put(&target).token(1)).await;
        }
    }

    async fn an_outage(&self) {
        self.cut_off.forward(put("/orders/1").token(1)).await;
        self.cluster.stop();
        for n in 0..6 {
            self.cut_off
                .send(put(&format!("/orders/{n}")).token(9))
                .await
                .assert_problem(503, "store-unavailable");
        }
        self.cut_off
            .until_metric("fencepost_store_errors_total", &[], |value| value >= 5.0)
            .await;
        self.cut_off
            .until_metric("fencepost_lease_remaining_seconds", &[], |value| {
                value == 0.0
            })
            .await;
    }

    async fn reloaded(&self) {
        let changed = Config::new(&self.upstream, &self.store).with(&routes("others"));
        self.orders.reload(&changed);
        let enforces = &[("route", "others"), ("mode", "enforce")];
        self.orders
            .until_metric("fencepost_route_mode", enforces, |value| value > 0.0)
            .await;
        self.orders.rewrite_text("upstream: [");
        self.orders.hang_up();
        self.orders.until_none("fencepost_config_reload_ok").await;
    }
}
