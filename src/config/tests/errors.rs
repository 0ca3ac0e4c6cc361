//! Each kind of error, with its path, its line, and what to do about it.

use super::{BASE, bad, cases};
use crate::config::{ConfigProblem, Severity};

/// Fields that are wrong, a part of the message or the hint, and the path that is reported where it
/// is not the last field's. The last line is the wrong one.
const ERRORS: &str = r"
lissen: a:1 | did you mean `listen`?
zebra: 1 | known here: listen, trusted_proxies
barrier.weit: 1s | did you mean `wait`?
route.methodes: [PUT] | did you mean `methods`?
listen: 7080 | has no port
listen: ':7080' | has no host
listen: [a] | found a list
barrier.wait: 5 | is it 5s?
barrier.wait: 5M | is it 5m?
barrier.wait: 2MiB | write a number and its unit
route.upstream.unknown_statuses: [502, 600] | 200 to 599 | routes[0].upstream.unknown_statuses[1]
route.upstream.unknown_statuses: [bad] | whole number | routes[0].upstream.unknown_statuses[0]
route.allow: [encoded-slsh] | did you mean `encoded-slash`? | routes[0].allow[0]
barrier.grace: 0s | must be greater than zero
barrier.settle: 0s | must be greater than zero
barrier.settle: soon | 250ms, 5s
barrier.queue: 0 | must be greater than zero
barrier.queue: -1 | whole number
barrier: 5s | found `5s`
body.buffer: 1 mile | is not a size
body.buffer: none | is not a size
body.buffer: 2GiB | 1GiB at most
body.timeout: 0s | must be greater than zero
limits.in_flight: 0 | must be greater than zero
limits.connections: 99999999999 | is too large
limits.http2_streams: 1073741825 | 1073741824 at most
limits.head_timeout: 0s | must be greater than zero
limits.idle_timeout: 0s | must be greater than zero
limits.connections_per_client: many | whole number, or none
limits.in_flight_per_connection: 0 | must be greater than zero
limits.in_flight_per_client: 0 | must be greater than zero
limits.in_flight_per_resource: many | whole number, or none
limits.header_count: 10001 | 10000 at most
limits.header_bytes: 2MiB | 1MiB at most
limits.body_memory: 0 | must be greater than zero
body.progress_timeout: 0s | must be greater than zero
shutdown.deadline: 0s | must be greater than zero
store.url: mysql://a | unknown store type
store.url: 'sqlite::memory:' | after a restart
store.url: postgres://a/b | a namespace is required | store.namespace
store.url: postgres:// | ends after its scheme
store.url: postgres://a b | has a space
store.namespace: a; store.url: postgres://u:p@h/d?sslmode=require | would get the password
store.namespace: a; store.url: postgres://u:p@h/d?sslrootcert=/a; store.tls: { ca_file: /b } | store.tls.ca_file too | store.url
store.namespace: a; store.url: postgres://h/d; store.tls: { key_file: /b } | only one of
store.tls: { ca_file: /b } | TLS does not apply
store.url_file: /a | a namespace is required | store.namespace
store.url: sqlite:a; store.url_file: /a | both
store.namespace: a b | cannot be a namespace
store.namespace: '' | cannot be a namespace
store.lease: 500ms | shorter than 1s
store.timeout: 0s | must be greater than zero
store.cached_marks: 0 | must be greater than zero
store.migrate: yes | true or false
log.format: xml | json, text
log.level: info,fencepost=loud | `loud` is not a level
log.level: warning | did you mean `warn`?
unmatched: pass | safe-only, refuse
safe_methods: require | did you mean `required`?
stale_status: 400 | 412 or 409
stale_status: gone | whole number
claim: on | off or a map
tracing: on | off or a map
tracing: { sample: 1 } | no collector is given | tracing.otlp
tracing.otlp: c:4318 | has no scheme
tracing.otlp: http://u:p@c | OTEL_EXPORTER_OTLP_HEADERS
tracing: { otlp: 'http://c', sample: 2 } | from 0 (none) to 1 (all) | tracing.sample
claim.path: claim | /.well-known
claim.path: /a/{b} | captures
claim.path: / | path of their own
claim.addresses: [] | no address may claim
claim.addresses: [10.1.0.0/8] | bits set after its prefix | claim.addresses[0]
trusted_proxies: [10.1.0.0/8] | bits set after its prefix | trusted_proxies[0]
trusted_proxies: [proxy.svc] | is not an address | trusted_proxies[0]
listen: unix:/run/f.sock; trusted_proxies: [10.0.0.0/8] | Unix socket have no address
claim.require_client: [a.svc] | not asked for certificates
claim.token_file: '' | No such file
route.token: { max_jump: 0 } | greater than zero | routes[0].token.max_jump
route.token: { max: 9223372036854775808 } | 9223372036854775807 at most | routes[0].token.max
routes: [] | nothing is fenced
routes: [ '/a' ] | found `/a` | routes[0]
route.mode: enforced | did you mean `enforce`?
route.methods: [] | no method
route.methods: [PUT, GET] | safe_methods | routes[0].methods[1]
route.methods: [PUT, PROPFIND] | safe_methods | routes[0].methods[1]
route.methods: [BIND] | no key covers | routes[0].methods[0]
route.methods: [TRACE] | never forwarded | routes[0].methods[0]
route.methods: [put] | in capitals | routes[0].methods[0]
route.methods: ['P T'] | is not a method | routes[0].methods[0]
route.allow: [semicolons] | did you mean `semicolon`? | routes[0].allow[0]
route.name: '' | is empty
route.name: claim | something else
route.token: { format: octal } | decimal, hex | routes[0].token.format
route.require_client: [a.svc] | not asked for certificates
route.require_client: [] | no client is allowed
route.reuse: twice | allow, once
route.upstream: { timeout: 0s } | zero | routes[0].upstream.timeout
route.idempotency.key: '{token}' | operation, epoch
route.idempotency.header: Host | cannot carry
route.idempotency.header: Authorization | cannot carry
route.idempotency: none | off or a map
route.outcome.look_up.get: '/charges/{id}/{operation}' | not the target of a look-up
route.outcome.look_up.get: '/charges#{operation}' | not the target of a look-up
route.outcome.look_up.get: '/charges' | not the target of a look-up
route.outcome.look_up: { get: '/{operation}', found: data } | not a JSON pointer | routes[0].outcome.look_up.found
route.outcome.headers: [Content-Length] | belongs to one message | routes[0].outcome.headers[0]
";

/// Lists of routes that are wrong: the text, the path, a part of the message or the hint.
const ROUTES: [(&str, &str, &str); 15] = [
    ("routes:", "routes", "nothing is fenced"),
    ("routes:\n-", "routes[0]", "a map of fields, found nothing"),
    ("routes:\n- resource: a", "routes[0].path", "needs a path"),
    (
        "routes:\n- path: a\n  resource: a",
        "routes[0].path",
        "must start with `/`",
    ),
    (
        "routes:\n- path: /a",
        "routes[0].resource",
        "has no resource key",
    ),
    (
        "routes:\n- path: /a/{id}\n  resource: 'a:{idd}'",
        "routes[0].resource",
        "idd",
    ),
    (
        "routes:\n- path: /a\n  resource: '{header.x-fencing-token}'",
        "routes[0].resource",
        "fence nothing",
    ),
    (
        "routes:\n- path: /a\n  resource: '{header.X-Forwarded-Host}'",
        "routes[0].resource",
        "writes or removes",
    ),
    (
        "routes:\n- path: /a\n  resource: '{header.x_forwarded_for}'",
        "routes[0].resource",
        "writes or removes",
    ),
    (
        "routes:\n- path: /a\n  resource: 'a:{header.proxy-authorization}'",
        "routes[0].resource",
        "writes or removes",
    ),
    (
        "routes:\n- path: /a\n  idempotency: { header: x-op, client_key: replace }\n  resource: \
         '{header.x-op}'",
        "routes[0].resource",
        "does not get the client's",
    ),
    (
        "routes:\n- path: /a\n  body: { buffer: 0 }\n  resource: '{json.id}'",
        "routes[0].resource",
        "no body is ever read",
    ),
    (
        "routes:\n- path: /.well-known/fencing/claim\n  resource: a",
        "routes[0].path",
        "claim endpoint",
    ),
    (
        "routes:\n- path: /a/{b}\n  resource: a\n- path: /a/{c}\n  resource: a",
        "routes[1].path",
        "routes[0] and routes[1]",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  name: x\n- path: /b\n  resource: b\n  name: x",
        "routes[1].name",
        "both called",
    ),
];

/// The text, the path, and a part of the message of each error.
fn all() -> Vec<(String, String, &'static str)> {
    let mut all = cases(ERRORS);
    all.extend(ROUTES.map(|(text, path, part)| (text.to_owned(), path.to_owned(), part)));
    assert!(all.len() > 100, "{} errors", all.len());
    all
}

#[test]
fn each_error_is_told_alone_with_its_path_and_what_to_do() {
    let mut wrong = Vec::new();
    for (text, path, part) in all() {
        let text = format!("{BASE}{text}\n");
        let problems = bad(&text);
        let errors: Vec<_> = problems
            .list
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .collect();
        assert_eq!(errors.len(), 1, "{problems}\n{text}");
        assert_eq!(errors[0].path, path, "{problems}\n{text}");
        if !errors[0].to_string().contains(part) {
            wrong.push(format!("{part:?} is not in: {}", errors[0]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_error_has_the_line_of_what_is_wrong() {
    for (text, path, _) in all() {
        // A missing field is reported at its block.
        if path.ends_with("namespace") && !text.contains("namespace:")
            || path.ends_with(".resource") && !text.contains("resource:")
            || path == "routes[0].path" && !text.contains("path:")
            || path == "tracing.otlp" && !text.contains("otlp:")
        {
            continue;
        }
        let text = format!("{BASE}{text}");
        let problems = bad(&text);
        let last = path.rsplit('.').next().unwrap_or(&path);
        let key = last.split('[').next().unwrap_or(last);
        let lines: Vec<_> = text.lines().collect();
        let line = lines
            .iter()
            .rposition(|line| line.contains(key) || *line == "-");
        let line = line.map(|line| line as u64 + 1);
        let error = problems
            .list
            .iter()
            .find(|problem| problem.severity == Severity::Error);
        assert_eq!(
            error.and_then(ConfigProblem::line),
            line,
            "{problems}\n{text}"
        );
    }
}
