//! Summarises a configuration in one line, for the log at the start. It contains no secret.

use std::collections::BTreeSet;

use super::addresses::{Listen, StoreTarget, UpstreamUrl, store_place};
use super::judging::Mode;
use super::route::RouteSettings;
use super::settings::Settings;
use super::tls_settings::ClientAuth;
use crate::routing::KeyTemplate;

/// Says which routes are fenced by which key, where the marks are, and which routes do not enforce.
#[must_use]
pub fn describe(settings: &Settings) -> Vec<String> {
    let upstream = match &settings.upstream.url {
        UpstreamUrl::Http(authority) => format!("http://{authority}"),
        UpstreamUrl::Https(authority) => format!("https://{authority}"),
        UpstreamUrl::H2c(authority) => format!("h2c://{authority}"),
        UpstreamUrl::Unix(path) => format!("unix:{}", path.display()),
    };
    let listen = match &settings.listen {
        Listen::Tcp(address) => address.clone(),
        Listen::Unix(path) => format!("unix:{}", path.display()),
    };
    let tls = settings.tls.as_ref().map_or("", |tls| match tls.clients {
        None => " over TLS",
        Some(ClientAuth::Optional) => " over TLS, client certificates optional",
        Some(ClientAuth::Required) => " over TLS, client certificates required",
    });
    let mut lines = vec![format!("fencing {upstream} behind {listen}{tls}")];
    let keyed = |mode: Mode| {
        let routes = settings
            .routes
            .iter()
            .filter(move |route| route.mode == mode);
        routes.map(move |route| match &route.key {
            Some(key) if mode != Mode::Bypass => format!("{} by key {}", route.path, key.as_str()),
            _ => route.path.to_string(),
        })
    };
    let enforced: Vec<_> = keyed(Mode::Enforce).collect();
    lines.push(if enforced.is_empty() {
        "NOTHING IS ENFORCED".to_owned()
    } else {
        format!("enforced: {}", enforced.join(", "))
    });
    for (mode, words) in [
        (Mode::Observe, "NOT ENFORCED, observed only"),
        (Mode::Bypass, "NOT ENFORCED, bypassed"),
    ] {
        let routes: Vec<_> = keyed(mode).collect();
        if !routes.is_empty() {
            lines.push(format!("{words}: {}", routes.join(", ")));
        }
    }
    let shared = match settings.store.target {
        StoreTarget::Sqlite { .. } => "this proxy only",
        StoreTarget::Postgres(_) => "shared",
    };
    lines.push(format!(
        "marks in {}, namespace {} ({shared})",
        store_place(&settings.store.target),
        settings.store.namespace,
    ));
    lines
}

/// Advice about keys that are valid, but may be wrong for an upstream that reads names differently,
/// or that removes what is below a name with it.
#[must_use]
pub fn advice(settings: &Settings) -> Vec<String> {
    let judged = || {
        let routes = settings.routes.iter();
        routes.filter(|route| route.mode != Mode::Bypass)
    };
    let open: Vec<String> = judged()
        .filter_map(|route| {
            let captures = route.key.as_ref()?.open_captures();
            let captures: BTreeSet<String> = captures.map(ToString::to_string).collect();
            let captures: Vec<String> = captures.into_iter().collect();
            (!captures.is_empty()).then(|| format!("{} of {}", captures.join(", "), route.path))
        })
        .collect();
    let deletes = |route: &&RouteSettings| {
        let grows = route.key.as_ref().is_some_and(KeyTemplate::grows);
        grows && route.methods.contains("DELETE")
    };
    let deep: Vec<&str> = judged()
        .filter(deletes)
        .map(|route| route.path.as_str())
        .collect();
    let open = (!open.is_empty()).then(|| format!(
        "advice: any text has a key of its own in {}. To Rails, Django REST framework or an older \
         Spring, 7 and 7.json can be the same thing. With such an upstream, write {{id|plain}} in \
         the key, which accepts letters, digits, - and _ and refuses the rest",
        open.join("; ")
    ));
    let deep = (!deep.is_empty()).then(|| format!(
        "advice: each path of {} has a key of its own. An upstream that removes a directory with all \
         that is in it (WebDAV, file servers) does so whatever the marks of these are. With such an \
         upstream, give a whole directory one key, or leave DELETE out of `methods`",
        deep.join(", ")
    ));
    open.into_iter().chain(deep).collect()
}

/// [`describe`] as one line.
#[must_use]
pub fn summary(settings: &Settings) -> String {
    describe(settings).join("; ")
}
