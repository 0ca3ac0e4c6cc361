//! Each kind of warning, with its path. A start goes on in spite of it.

use super::{BASE, cases, good};
use crate::config::{ConfigProblem, Severity};

/// Fields that are doubtful, a part of the message, and the path that is reported where it is not
/// the last field's.
const WARNINGS: &str = r"
barrier.settle: 9s | given longer than `barrier.settle` | upstream.timeout
admin.token_file: /proc/version; admin.listen: '0.0.0.0:1' | can be read on their way
admin.token_file: /t | /t cannot be read: 
store.url_file: /t; store.namespace: a | /t cannot be read here | store.url_file
store.url: 'postgres://a/b'; store.namespace: a; store.tls: { ca_file: /t } | /t cannot be read here | store.tls.ca_file
store.url: 'postgres://a/b'; store.namespace: a; store.timeout: 6s | longer than `store.lease`
trusted_proxies: [10.0.0.0/8, '::/0'] | can name any address
store.namespace: a; store.url: 'postgres://h/d?sslmode=require' | the server is not verified
store.namespace: a; store.url: 'postgres://u:p@h/d?sslmode=insecure-require' | is not verified
body.buffer: 0 | gets no key | routes[0].idempotency
route.mode: bypass | bypass forwards without a check, so this has no effect | routes[0].resource
routes: [{ path: '/{*path}', resource: '{path}', mode: observe }] | observe refuses nothing | routes[0].mode
route.upstream: { timeout: 11s } | longer than `barrier.settle` | routes[0].upstream.timeout
routes: [{ path: /a, resource: '{header.cookie}' }] | is a secret | routes[0].resource
routes: [{ path: /a, resource: '{header.x-request-id}' }] | many keys | routes[0].resource
routes: [{ path: '/o/{id}', resource: 'order' }] | all paths of /o/{id} have one key | routes[0].resource
routes: [{ path: '/o/{id}', resource: 'o:{host}' }] | all paths of /o/{id} have one key | routes[0].resource
routes: [{ path: '/o/{id}', resource: 'o:{id}' }, { path: '/{*rest}', mode: bypass }] | lets through without a check `/o/x/` and `/O/x`, which the upstream may take for `/o/x`, and /o/{id} enforces that | routes[1].path
routes: [{ path: '/o/{*rest}', mode: bypass }, { path: '/o/{id}', resource: 'o:{id}' }] | `/o/x/` | routes[0].path
routes: [{ path: '/o', resource: o }, { path: '/o/{id}', resource: 'o:{id}' }] | DELETE of `/o` can take away | routes[0].methods
routes: [{ path: '/o/{id}', resource: 'o:{id}' }, { path: '/o/{id}/items/{*rest}', resource: 'i:{id}' }] | such as `/o/x/items/x`, which /o/{id}/items/{*rest} fences | routes[0].methods
routes: [{ path: '/o/{id}', resource: 'o:{id}', methods: [PUT, MOVE] }, { path: '/o/{id}/b', resource: 'b:{id}' }] | MOVE of `/o/x` can | routes[0].methods
routes: [{ path: '/o', mode: bypass }, { path: '/o/{id}', resource: 'o:{id}' }] | DELETE of `/o` can | routes[0].methods
routes: [{ path: '/o/:id', resource: o }] | `:id` is literal text here | routes[0].path
routes: [{ path: '/o/<int:ID>', resource: o }] | `<int:ID>` is literal text here | routes[0].path
routes: [{ path: '/o/[...slug]', resource: o }] | `[...slug]` is literal text here | routes[0].path
routes: [{ path: '/o/$userId', resource: o }] | `$userId` is literal text here | routes[0].path
routes: [{ path: '/o/(.+)', resource: o }] | `(.+)` is literal text here | routes[0].path
";

#[test]
fn warnings_do_not_stop_a_start() {
    for (text, path, part) in cases(WARNINGS) {
        let (_, warnings) = good(&format!("{BASE}{text}\n"));
        let [warning] = &warnings[..] else {
            panic!("one warning: {warnings:?}\n{text}")
        };
        assert_eq!(
            (&warning.path, warning.severity),
            (&path, Severity::Warning),
            "{text}"
        );
        assert!(
            warning.message.contains(part),
            "{part:?} is not in: {warning}"
        );
        let block = path.split(['.', '[']).next().unwrap_or(&path);
        let given = block == "upstream" || text.contains(&format!("{block}:"));
        assert_eq!(warning.line().is_some(), given, "{text}");
    }
}

/// A letter may have several bytes.
#[test]
fn a_path_may_begin_with_any_letter() {
    for path in ["/é/{id}", "/%C3%A9/{id}", "/ß"] {
        good(&format!(
            "{BASE}routes: [{{ path: '{path}', resource: 'o:{{path}}' }}, {{ path: '/{{*rest}}', mode: bypass }}]\n"
        ));
    }
}

#[test]
fn a_thing_that_goes_with_its_parent_under_one_key_is_not_warned_of() {
    for routes in [
        "{ path: '/o/{id}', resource: 'o:{id}' }, { path: '/o/{id}/items/{item}', resource: 'o:{id}' }",
        "{ path: '/o', resource: all }, { path: '/o/x', resource: all }",
        "{ path: '/o', resource: o, methods: [POST] }, { path: '/o/{id}', resource: 'o:{id}' }",
        "{ path: '/o/{id}/x', resource: 'o:{id}' }, { path: '/p/{id}', resource: 'p:{id}' }",
        "{ path: '/o/{id}', resource: 'o:{id}' }, { path: '/o/{id}/x', mode: bypass }",
        "{ path: '/{*path}', resource: '{path}' }",
        // Literal in spite of their looks.
        "{ path: '/o/%3Aid', resource: o }, { path: '/$metadata', resource: m }",
        "{ path: '/o:cancel', resource: o }, { path: '/Orders(7)', resource: m }",
    ] {
        let (_, warnings) = good(&format!("{BASE}routes: [{routes}]\n"));
        assert!(warnings.is_empty(), "{routes}: {warnings:?}");
    }
}

#[test]
fn copy_and_move_need_the_host_of_the_client() {
    let route = "path: '/o/{id}', resource: 'o:{id}'";
    for (url, host, methods, warns) in [
        ("http://a", "rewrite", "[PUT, COPY]", true),
        ("http://a", "b.test", "[MOVE]", true),
        ("h2c://a", "preserve", "[MOVE]", true),
        ("http://a", "preserve", "[PUT, COPY]", false),
        ("http://a", "rewrite", "[PUT]", false),
    ] {
        let (_, warnings) = good(&format!(
            "upstream: {{ url: '{url}', host: {host} }}\nroutes: [{{ {route}, methods: {methods} }}]\n"
        ));
        let is_it = |warning: &ConfigProblem| warning.message.contains("does not see");
        let paths: Vec<&str> = warnings.iter().map(|one| &*one.path).collect();
        assert_eq!(
            warnings.iter().any(is_it),
            warns,
            "{url} {host} {methods}: {paths:?}"
        );
    }
}
