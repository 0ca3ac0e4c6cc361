//! Two proxies on one Postgres, each with a relay of its own on the way there.

use std::time::Duration;

use super::postgres::Cluster;
use super::relay::{Action, Point, Relay, Statement, Trap};
use super::{Config, Gate, Proxy, Request, Store, Upstream};

/// The fields are dropped in this order: the proxies go first.
pub struct Pair {
    pub a: Proxy,
    pub b: Proxy,
    /// Between A and Postgres.
    pub way_of_a: Relay,
    /// Between B and Postgres.
    pub way_of_b: Relay,
    pub upstream: Upstream,
    pub store: Store,
}

impl Pair {
    /// Starts both with this laid over their configuration. `None`, and a line that says so,
    /// without Postgres.
    pub async fn start(more: &str) -> Option<Self> {
        Self::start_as(more, "{}").await
    }

    /// As [`Self::start`]; only A's lease is that short, and B outlives whatever keeps the machine
    /// from its renewals.
    pub async fn mortal_a(more: &str) -> Option<Self> {
        Self::start_as(more, "store: { lease: 30s }").await
    }

    /// Both, the way of A, the upstream and the store.
    pub fn parts(&self) -> (&Proxy, &Proxy, &Relay, &Upstream, &Store) {
        let Self { a, b, .. } = self;
        (a, b, &self.way_of_a, &self.upstream, &self.store)
    }

    async fn start_as(more: &str, of_b: &str) -> Option<Self> {
        let store = Store::postgres().await?;
        let upstream = Upstream::start().await;
        let port = Cluster::shared().port();
        let (way_of_a, way_of_b) = (Relay::start(port).await, Relay::start(port).await);
        let config = Config::new(&upstream, &store).with(more);
        let a = Proxy::start(&through(&config, &store, &way_of_a)).await;
        let b = Proxy::start(&through(&config, &store, &way_of_b).with(of_b)).await;
        Some(Self {
            a,
            b,
            way_of_a,
            way_of_b,
            upstream,
            store,
        })
    }
}

/// Before a statement has reached the store, and after the store has executed it.
pub fn around(statement: Statement) -> [Point; 2] {
    [Point::Before(statement), Point::After(statement)]
}

impl Relay {
    /// Cuts the connection that passes this point next.
    pub fn cut(&self, point: Point) -> Trap {
        self.arm(point, Action::Cut)
    }

    /// Holds what passes this point next.
    pub fn hold(&self, point: Point) -> Trap {
        self.arm(point, Action::Hold)
    }

    /// Notices the next answer to this statement, and lets it pass at once.
    pub fn answer_to(&self, statement: Statement) -> Trap {
        self.arm(Point::After(statement), Action::Delay(Duration::ZERO))
    }
}

impl Proxy {
    /// A proxy dies while the upstream has this request of its, which it works on until the gate
    /// opens.
    pub async fn dies_holding(config: &Config, upstream: &Upstream, request: Request) -> Gate {
        let mut proxy = Self::start(config).await;
        let (lost, gate) = proxy.begin_held(upstream, request).await;
        proxy.kill9();
        drop(lost);
        gate
    }
}

/// The configuration of a proxy that reaches its store by way of this relay.
pub fn through(config: &Config, store: &Store, relay: &Relay) -> Config {
    let url = relay.url(&store.url());
    config.clone().with(&format!("store: {{ url: '{url}' }}"))
}
