//! Problems of routes among each other and with the upstream.

use super::{BASE, bad, good};
use crate::config::UnknownStatuses;

#[test]
fn routes_that_share_keys_and_not_the_bounds_of_tokens_are_told() {
    let warned = |first: &str, second: &str| {
        let routes = format!(
            "routes: [{{ path: '/a/{{id}}', resource: 'a:{{id}}'{first} }}, {{ path: '/b/{{id}}', \
             resource: 'a:{{id}}'{second} }}]"
        );
        let (_, warnings) = good(&format!("{BASE}{routes}\n"));
        assert!(
            warnings
                .iter()
                .all(|warning| warning.path == "routes[1].resource"),
            "{warnings:?}"
        );
        let all = warnings.iter().map(|warning| warning.message.as_str());
        all.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(warned("", ""), "");
    let narrow = ", token: { max_jump: 9 }";
    assert_eq!(warned(narrow, narrow), "");
    for (first, second) in [(narrow, ""), ("", ", token: { max: 9 }")] {
        let told = warned(first, second);
        assert!(told.contains("`token.max_jump` or `token.max`"), "{told}");
    }
    // Their bounds differ because their formats do.
    let told = warned("", ", token: { format: hex }");
    assert!(
        told.contains("different formats") && !told.contains("max_jump"),
        "{told}"
    );
}

#[test]
fn statuses_that_leave_an_outcome_open_are_those_of_final_responses() {
    let base = "upstream: { url: http://a:3000, unknown_statuses: ";
    let problems = bad(&format!("{base}[502, 100] }}\n"));
    let at = "upstream.unknown_statuses[1]";
    assert!(
        problems.list.iter().any(|problem| problem.path == at),
        "{problems}"
    );
    let routes = "routes: [{ path: /a, resource: a }, { path: /b, resource: b, upstream: { \
                  unknown_statuses: [202] } }]\n";
    for (list, top) in [("[]", &[] as &[u16]), ("[503]", &[503])] {
        let (settings, _) = good(&format!("{base}{list} }}\n{routes}"));
        assert_eq!(*settings.routes[0].unknown.http, *top);
        assert_eq!(*settings.routes[1].unknown.http, [202]);
    }
    let (settings, _) = good(&format!("{BASE}{routes}"));
    let unknown = UnknownStatuses {
        http: [502, 504].into(),
        grpc: [1, 4, 14].into(),
    };
    assert_eq!(settings.routes[0].unknown, unknown);

    let base = "upstream: { url: http://a:3000, unknown_grpc_statuses: ";
    let (settings, _) = good(&format!("{base}[13] }}\n{routes}"));
    assert_eq!(*settings.routes[0].unknown.grpc, [13]);
    assert_eq!(*settings.routes[1].unknown.grpc, [13]);
    let problems = bad(&format!("{base}[14, 0, 17] }}\n"));
    for at in [1, 2] {
        let at = format!("upstream.unknown_grpc_statuses[{at}]");
        assert!(
            problems.list.iter().any(|problem| problem.path == at),
            "{problems}"
        );
    }
}
