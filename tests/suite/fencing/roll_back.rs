//! An operator stops enforcing, or removes a route, without stopping the proxies.

use super::route_table::{ORDERS, accept, logged, reload, routes};
use crate::support::{Config, Proxy, Store, Upstream, or_return, over_both_stores, put};

/// The log line of a change, which `docs/guarantees.md` names.
const DIFFERENTLY: &str = "the new routes treat some requests differently";
/// A finding about a route that observes.
const OBSERVES: &str = "unfenced: the route only observes (route /orders/{id}/{*rest})";
/// A finding about a route that has enforced before.
const EARLIER: &str = "under earlier routes it is fenced as order:{id}";

over_both_stores! {
    /// An operator rolls back without a stop, and the marks are there when he enforces again.
    async fn a_route_that_enforces_only_observes_after_a_reload_and_keeps_its_keys(store: Store) {
        let upstream = Upstream::start().await;
        let enforced = Config::new(&upstream, &store).with(&routes(&[ORDERS]));
        let with = |more: &str| {
            let route = ORDERS.replace(" }", &format!(", {more} }}"));
            enforced.clone().with(&routes(&[&route]))
        };
        let observed = with("mode: observe");
        let mut proxy = Proxy::start(&enforced).await;
        proxy.forward(put("/orders/7").token(42)).await;
        reload(&proxy, &observed, true).await;
        logged(&proxy, &[&format!("with the new routes it passes {OBSERVES}")]).await;
        proxy.forward(put("/orders/7").token(41)).await;
        proxy.forward(put("/orders/7").token(43)).await;
        proxy.stop().await;
        // At the next start it has not forgotten: no route for these paths may give the requests
        // another key, or pass them unseen.
        let mut proxy = Proxy::start(&observed).await;
        let other = routes(&["{ path: '/orders/{id}/{*rest}', resource: 'other:{id}' }"]);
        let other = enforced.clone().with(&other);
        for wrong in [&other, &with("mode: bypass")] {
            reload(&proxy, wrong, false).await;
            logged(&proxy, &["was not reloaded", EARLIER]).await;
        }
        reload(&proxy, &enforced, true).await;
        proxy.stale(put("/orders/7").token(42)).await;
        let begins = "with the new routes it is fenced as order:{id}";
        logged(&proxy, &[DIFFERENTLY, &format!("until now it passes {OBSERVES}; {begins}")]).await;
        proxy.stop().await;
        assert_eq!(upstream.count(), 3);
        // What was accepted keeps nothing.
        accept(&other, "earlier routes that do not enforce now are no longer remembered").await;
        let proxy = Proxy::start(&other).await;
        proxy.forward(put("/orders/7").token(1)).await;
    }

    async fn a_route_is_removed_by_a_reload_and_keeps_its_keys(store: Store) {
        let upstream = Upstream::start().await;
        let bills = "{ path: '/bills/{id}', resource: 'bill:{id}' }";
        let both = Config::new(&upstream, &store).with(&routes(&[ORDERS, bills]));
        let one = both.clone().with(&routes(&[bills]));
        let mut proxy = Proxy::start(&both).await;
        proxy.forward(put("/orders/7").token(42)).await;
        reload(&proxy, &one, true).await;
        logged(&proxy, &["(route /orders/{id}/{*rest}); with the new routes it gets a 404"]).await;
        proxy.refuse(put("/orders/7").token(43), 404, "no-route").await;
        proxy.stop().await;
        let mut proxy = Proxy::start(&one).await;
        let other = ORDERS.replace("order:", "other:");
        let other = one.clone().with(&routes(&[&other, bills]));
        reload(&proxy, &other, false).await;
        logged(&proxy, &["was not reloaded", EARLIER]).await;
        proxy.stop().await;
        Proxy::refused_for(&other, &[EARLIER]).await;
        let proxy = Proxy::start(&both).await;
        proxy.stale(put("/orders/7").token(41)).await;
    }
}

/// As a Deployment does it: a new proxy starts before the old one ends.
#[tokio::test]
async fn a_roll_out_leads_to_observing_and_back() {
    let store = or_return!(Store::postgres().await);
    let (upstream, config, mut old) = Proxy::with_config(&store, "{}").await;
    old.forward(put("/orders/7").token(42)).await;
    old.stale(put("/orders/7").token(41)).await;
    let mut observing = Proxy::start(&config.clone().route("mode: observe")).await;
    old.stale(put("/orders/7").token(41)).await;
    old.stop().await;
    observing.forward(put("/orders/7").token(41)).await;
    observing.forward(put("/orders/7").token(43)).await;
    let again = Proxy::start(&config).await;
    let before = "until now it passes unfenced: the route only observes (route /orders/{id})";
    let begins = [DIFFERENTLY, before, "with the new routes it is fenced as"];
    logged(&again, &begins).await;
    again.stale(put("/orders/7").token(42)).await;
    observing.stop().await;
    again.stale(put("/orders/7").token(42)).await;
    assert_eq!(upstream.count(), 3);
}
