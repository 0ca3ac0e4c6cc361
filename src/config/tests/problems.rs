//! Each kind of problem, with its path and its line.

use super::super::{ConfigProblem, Severity, UnknownStatuses};
use super::{BASE, bad, good};

/// Text that is wrong in its last line, the path told, and a part of the message or hint.
const ERRORS: [(&str, &str, &str); 107] = [
    ("lissen: a:1", "lissen", "did you mean `listen`?"),
    ("zebra: 1", "zebra", "known here: listen, listen_mode"),
    (
        "barrier:\n  weit: 1s",
        "barrier.weit",
        "did you mean `wait`?",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  methodes: [PUT]",
        "routes[0].methodes",
        "did you mean `methods`?",
    ),
    ("listen: 7080", "listen", "has no port"),
    ("listen: ':7080'", "listen", "has no host"),
    ("listen: [a]", "listen", "found a list"),
    (
        "listen: 127.0.0.1:7081",
        "admin.listen",
        "address of the data port",
    ),
    (
        "admin:\n  listen: 0.0.0.0:7080",
        "admin.listen",
        "address of the data port",
    ),
    ("barrier:\n  wait: 5", "barrier.wait", "is it 5s?"),
    (
        "routes:\n- path: /a\n  resource: a\n  upstream:\n    unknown_statuses: [502, 600]",
        "routes[0].upstream.unknown_statuses[1]",
        "200 to 599",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  upstream:\n    unknown_statuses: [bad]",
        "routes[0].upstream.unknown_statuses[0]",
        "whole number",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  allow: [path-overide]",
        "routes[0].allow[0]",
        "did you mean path-override?",
    ),
    (
        "barrier:\n  grace: 0s",
        "barrier.grace",
        "must be greater than zero",
    ),
    (
        "barrier:\n  settle: 0s",
        "barrier.settle",
        "must be greater than zero",
    ),
    ("barrier:\n  settle: soon", "barrier.settle", "250ms, 5s"),
    (
        "barrier:\n  queue: 0",
        "barrier.queue",
        "must be greater than zero",
    ),
    ("barrier:\n  queue: -1", "barrier.queue", "whole number"),
    ("barrier: 5s", "barrier", "found `5s`"),
    ("body:\n  buffer: 1 mile", "body.buffer", "is not a size"),
    ("body:\n  buffer: none", "body.buffer", "is not a size"),
    ("body:\n  buffer: 2GiB", "body.buffer", "1GiB at most"),
    (
        "body:\n  stream_after: 0s",
        "body.stream_after",
        "must be greater than zero",
    ),
    (
        "body:\n  timeout: 0s",
        "body.timeout",
        "must be greater than zero",
    ),
    ("listen_mode: 0660", "listen_mode", "TCP port has no mode"),
    ("listen_mode: 999", "listen_mode", "is not a mode"),
    ("listen_mode: 4660", "listen_mode", "octal digits"),
    (
        "limits:\n  in_flight: 0",
        "limits.in_flight",
        "must be greater than zero",
    ),
    (
        "limits:\n  connections: 99999999999",
        "limits.connections",
        "is too large",
    ),
    (
        "limits:\n  http2_streams: 1073741825",
        "limits.http2_streams",
        "no stream ids for this many",
    ),
    (
        "limits:\n  head_timeout: 0s",
        "limits.head_timeout",
        "must be greater than zero",
    ),
    (
        "limits:\n  idle_timeout: 0s",
        "limits.idle_timeout",
        "must be greater than zero",
    ),
    (
        "limits:\n  connections_per_client: many",
        "limits.connections_per_client",
        "whole number, or none",
    ),
    (
        "limits:\n  in_flight_per_connection: 0",
        "limits.in_flight_per_connection",
        "must be greater than zero",
    ),
    (
        "limits:\n  in_flight_per_client: 0",
        "limits.in_flight_per_client",
        "must be greater than zero",
    ),
    (
        "limits:\n  in_flight_per_resource: many",
        "limits.in_flight_per_resource",
        "whole number, or none",
    ),
    (
        "limits:\n  body_rate: 0",
        "limits.body_rate",
        "must be greater than zero",
    ),
    (
        "limits:\n  header_count: 10001",
        "limits.header_count",
        "10000 at most",
    ),
    (
        "limits:\n  header_bytes: 2MiB",
        "limits.header_bytes",
        "1MiB at most",
    ),
    (
        "limits:\n  key_bytes: 1025",
        "limits.key_bytes",
        "1024 at most",
    ),
    (
        "limits:\n  new_resources: 0",
        "limits.new_resources",
        "must be greater than zero",
    ),
    (
        "limits:\n  body_memory: 0",
        "limits.body_memory",
        "must be greater than zero",
    ),
    (
        "body:\n  progress_timeout: 0s",
        "body.progress_timeout",
        "must be greater than zero",
    ),
    (
        "shutdown:\n  deadline: 0s",
        "shutdown.deadline",
        "must be greater than zero",
    ),
    (
        "store:\n  url: mysql://a",
        "store.url",
        "unknown store type",
    ),
    (
        "store:\n  url: 'sqlite::memory:'",
        "store.url",
        "after a restart",
    ),
    (
        "store:\n  url: postgres://a/b",
        "store.namespace",
        "a namespace is required",
    ),
    (
        "store:\n  namespace: a\n  url: postgres://u:p@h/d?sslmode=require",
        "store.url",
        "would get the password",
    ),
    (
        "store:\n  namespace: a\n  url: postgres://u:p@h/d?sslrootcert=/a\n  tls: { ca_file: /b }",
        "store.url",
        "store.tls.ca_file too",
    ),
    (
        "store:\n  namespace: a\n  url: postgres://h/d\n  tls: { key_file: /b }",
        "store.tls",
        "only one of",
    ),
    (
        "store:\n  tls: { ca_file: /b }",
        "store.tls",
        "TLS does not apply",
    ),
    (
        "store:\n  url_file: /a",
        "store.namespace",
        "a namespace is required",
    ),
    (
        "store:\n  url: sqlite:a\n  url_file: /a",
        "store.url_file",
        "both",
    ),
    (
        "store:\n  namespace: a b",
        "store.namespace",
        "cannot be a namespace",
    ),
    (
        "store:\n  namespace: ''",
        "store.namespace",
        "cannot be a namespace",
    ),
    ("store:\n  lease: 500ms", "store.lease", "shorter than 1s"),
    (
        "store:\n  timeout: 0s",
        "store.timeout",
        "must be greater than zero",
    ),
    (
        "store:\n  cached_marks: 0",
        "store.cached_marks",
        "must be greater than zero",
    ),
    ("store:\n  migrate: yes", "store.migrate", "true or false"),
    ("log:\n  format: xml", "log.format", "json, text"),
    (
        "log:\n  level: info,fencepost=loud",
        "log.level",
        "is no level",
    ),
    ("unmatched: pass", "unmatched", "safe-only, refuse"),
    (
        "safe_methods: require",
        "safe_methods",
        "did you mean `required`?",
    ),
    ("stale_status: 400", "stale_status", "412 or 409"),
    ("stale_status: gone", "stale_status", "whole number"),
    ("claim: on", "claim", "off or a map"),
    ("claim:\n  path: claim", "claim.path", "/.well-known"),
    ("claim:\n  path: /a/{b}", "claim.path", "captures"),
    ("claim:\n  path: /", "claim.path", "path of their own"),
    (
        "claim:\n  addresses: []",
        "claim.addresses",
        "no address may claim",
    ),
    (
        "claim:\n  addresses: [10.1.0.0/8]",
        "claim.addresses[0]",
        "bits behind its prefix",
    ),
    (
        "listen: unix:/run/f.sock\nclaim:\n  addresses: [10.0.0.0/8]",
        "claim.addresses",
        "Unix socket have no address",
    ),
    (
        "claim:\n  require_client: [a.svc]",
        "claim.require_client",
        "not asked for certificates",
    ),
    (
        "claim:\n  token_file: ''",
        "claim.token_file",
        "the path is empty",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  token: { max_jump: 0 }",
        "routes[0].token.max_jump",
        "raise a mark",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  token: { max: 9223372036854775808 }",
        "routes[0].token.max",
        "above 2^63-1",
    ),
    ("routes: []", "routes", "nothing is fenced"),
    ("routes:", "routes", "nothing is fenced"),
    ("routes: [ '/a' ]", "routes[0]", "found `/a`"),
    ("routes:\n-", "routes[0]", "this route is empty"),
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
        "routes:\n- path: /a\n  body: { buffer: 0 }\n  resource: '{json.id}'",
        "routes[0].resource",
        "no body is ever read",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  mode: enforced",
        "routes[0].mode",
        "did you mean `enforce`?",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  upgrade: allowed",
        "routes[0].upgrade",
        "did you mean `allow`?",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  methods: []",
        "routes[0].methods",
        "no method",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  methods: [PUT, GET]",
        "routes[0].methods[1]",
        "safe_methods",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  methods: [TRACE]",
        "routes[0].methods[0]",
        "never forwarded",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  methods: [put]",
        "routes[0].methods[0]",
        "write PUT",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  methods: ['P T']",
        "routes[0].methods[0]",
        "is no method",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  allow: [semicolons]",
        "routes[0].allow[0]",
        "did you mean semicolon?",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  name: ''",
        "routes[0].name",
        "is empty",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  name: claim",
        "routes[0].name",
        "something else",
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
    (
        "routes:\n- path: /a\n  resource: a\n  token: { format: octal }",
        "routes[0].token.format",
        "decimal, hex",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  require_client: [a.svc]",
        "routes[0].require_client",
        "not asked for certificates",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  require_client: []",
        "routes[0].require_client",
        "no client is allowed",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  reuse: twice",
        "routes[0].reuse",
        "allow, once",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  upstream: { timeout: 0s }",
        "routes[0].upstream.timeout",
        "zero",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  idempotency:\n    key: '{token}'",
        "routes[0].idempotency.key",
        "{resource}",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  idempotency:\n    header: Host",
        "routes[0].idempotency.header",
        "cannot carry",
    ),
    (
        "routes:\n- path: /a\n  resource: a\n  idempotency: none",
        "routes[0].idempotency",
        "off or a map",
    ),
];

#[test]
fn each_error_is_told_alone_with_its_path_and_what_to_do() {
    let mut wrong = Vec::new();
    for (text, path, part) in ERRORS {
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
    for (text, path, _) in ERRORS {
        // What is missing is told at what it is missing from.
        if path.ends_with("namespace") && !text.contains("namespace:")
            || path.ends_with(".resource") && !text.contains("resource:")
            || path == "routes[0].path" && !text.contains("path:")
            || path == "admin.listen" && !text.contains("admin:")
        {
            continue;
        }
        let text = format!("{BASE}{text}");
        let problems = bad(&text);
        let last = path.rsplit('.').next().unwrap_or(path);
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

#[test]
fn what_tls_lacks_or_has_no_use_for_is_told() {
    for (text, path, part) in [
        ("tls: { key_file: /none }", "tls.cert_file", "is missing"),
        ("tls: { cert_file: /none }", "tls.key_file", "is missing"),
        ("tls: {}", "tls.cert_file", "is missing"),
        (
            "tls: { cert_file: /none, key_file: '' }",
            "tls.key_file",
            "empty",
        ),
        ("tls: { client_auth: required }", "tls.client_auth", "no CA"),
        ("tls: { crl_file: /none }", "tls.crl_file", "no CA"),
        ("tls: { client_max_age: 1h }", "tls.client_max_age", "no CA"),
        (
            "upstream: { url: http://a, tls: { server_name: b } }",
            "upstream.tls",
            "not https",
        ),
        (
            "upstream: { url: h2c://a, tls: {} }",
            "upstream.tls",
            "not https",
        ),
        (
            "upstream: { url: http://a, http2: true }",
            "upstream.http2",
            "h2c://",
        ),
        (
            "upstream: { url: h2c://a, http2_connections: 10001 }",
            "upstream.http2_connections",
            "1 to 10000",
        ),
        (
            "upstream: { url: https://a, tls: { cert_file: /none } }",
            "upstream.tls.key_file",
            "is missing",
        ),
        (
            "upstream: { url: https://a, tls: { server_name: 'b:1' } }",
            "upstream.tls.server_name",
            "without a port",
        ),
        (
            "upstream: { url: https://a, tls: { ca_file: /none } }",
            "upstream.tls.ca_file",
            "/none cannot be read",
        ),
    ] {
        let base = if text.starts_with("upstream") {
            ""
        } else {
            BASE
        };
        let problems = bad(&format!("{base}{text}\n"));
        let found = problems.list.iter().find(|problem| problem.path == path);
        let found = found.unwrap_or_else(|| panic!("{text}: {problems}"));
        assert!(found.to_string().contains(part), "{text}: {problems}");
        assert!(found.hint.is_some(), "{text}: {problems}");
        assert!(found.line().is_some(), "{text}: {problems}");
    }
}

/// A file with mTLS, and a list of routes to come. The directory holds its certificates.
fn mutual() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a pair");
    let (cert, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).expect("it is writable");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("it is writable");
    let text = format!(
        "{BASE}tls: {{ cert_file: {cert}, key_file: {key}, client_ca_file: {cert} }}\n",
        cert = cert.display(),
        key = key.display()
    );
    (dir, text)
}

#[test]
fn ways_around_a_guarded_route_are_told() {
    let (_dir, base) = mutual();
    let guarded = "{ path: '/a/{id}', resource: 'a:{id}', require_client: [b.svc] }";
    for (routes, told) in [
        (format!("[{guarded}]"), &["unmatched"][..]),
        (
            format!("[{guarded}, {{ path: '/{{*all}}', resource: '{{path}}' }}]"),
            &["routes[1].path", "unmatched"],
        ),
        (
            format!("[{guarded}, {{ path: '/{{x}}/{{*all}}', resource: '{{path}}' }}]"),
            &["routes[1].path", "unmatched"],
        ),
        (
            format!("[{guarded}, {{ path: '/b/{{*all}}', resource: '{{path}}' }}]"),
            &["unmatched"],
        ),
        (
            "[{ path: '/a/{*all}', resource: a, require_client: [b.svc] }, { path: '/{*all}', resource: '{path}' }]"
                .to_owned(),
            &["unmatched"],
        ),
    ] {
        let (settings, warnings) = good(&format!("{base}routes: {routes}\n"));
        assert_eq!(settings.routes[0].require_client.len(), 1);
        let mut paths: Vec<_> = warnings.iter().map(|w| w.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, told, "{routes}: {warnings:?}");
        let (_, warnings) = good(&format!("{base}unmatched: refuse\nroutes: {routes}\n"));
        assert!(warnings.iter().all(|w| w.path != "unmatched"), "{warnings:?}");
    }
}

#[test]
fn no_key_is_made_of_a_field_that_is_taken_off() {
    let (_dir, base) = mutual();
    let routes = |field: &str| {
        format!("routes: [{{ path: '/a/{{id}}', resource: 'a:{{header.{field}}}:{{id}}' }}]\n")
    };
    for field in ["x-client-cert-dn", "X_SSL_Client_S_DN", "x-spiffe-id"] {
        let problems = bad(&format!("{base}{}", routes(field)));
        assert_eq!(problems.list[0].path, "routes[0].resource", "{problems}");
        assert!(problems.to_string().contains("taken off"), "{problems}");
        good(&format!("{BASE}{}", routes(field)));
    }
    good(&format!("{base}{}", routes("x-tenant")));
}

#[test]
fn limits_of_claims_that_requests_go_around_are_told() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "sixteen letters!").expect("it is writable");
    let token = format!("token_file: {}", token.display());
    let (_dir, mutual) = mutual();
    let route = "{ path: /a, resource: a }";
    let guarded = "{ path: /a, resource: a, require_client: [b.svc] }";
    let observed = "{ path: /a, resource: a, mode: observe }";
    for (base, claim, route, told) in [
        (BASE, &*token, route, Some("claim.token_file")),
        (
            BASE,
            "addresses: [10.0.0.0/8]",
            route,
            Some("claim.addresses"),
        ),
        (BASE, "path: /claim", route, None),
        (BASE, &*token, observed, None),
        (&mutual, &*token, guarded, None),
        (
            &mutual,
            "require_client: [c.svc]",
            route,
            Some("claim.require_client"),
        ),
    ] {
        let text = format!("{base}claim: {{ {claim} }}\nroutes: [{route}]\n");
        let (_, warnings) = good(&text);
        let told_of: Vec<_> = warnings
            .iter()
            .filter(|warning| warning.path.starts_with("claim"))
            .map(|warning| warning.path.as_str())
            .collect();
        assert_eq!(told_of, told.as_slice(), "{text}");
    }
}

#[test]
fn routes_that_share_keys_and_not_the_bounds_of_tokens_are_told() {
    let warned = |first: &str, second: &str| {
        let routes = format!(
            "routes: [{{ path: '/a/{{id}}', resource: 'a:{{id}}'{first} }}, {{ path: '/b/{{id}}', resource: \
             'a:{{id}}'{second} }}]"
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
    let routes = "routes: [{ path: /a, resource: a }, { path: /b, resource: b, upstream: { unknown_statuses: [202] } }]\n";
    for (list, top) in [("[]", &[] as &[u16]), ("[503]", &[503])] {
        let (settings, _) = good(&format!("{base}{list} }}\n{routes}"));
        assert_eq!(*settings.routes[0].unknown.http, *top);
        assert_eq!(*settings.routes[1].unknown.http, [202]);
    }
    let (settings, warnings) = good(&format!("{base}[504, 504] }}\n{routes}"));
    assert_eq!(*settings.routes[0].unknown.http, [504]);
    assert!(warnings.iter().any(|warning| warning.path == at));
    let (settings, _) = good(&format!("{BASE}{routes}"));
    assert_eq!(settings.routes[0].unknown, UnknownStatuses::default());

    let base = "upstream: { url: http://a:3000, unknown_grpc_statuses: ";
    let routes = "routes: [{ path: /a, resource: a }, { path: /b, resource: b, upstream: { unknown_grpc_statuses: [2] } }]\n";
    let (settings, _) = good(&format!("{base}[13] }}\n{routes}"));
    assert_eq!(*settings.routes[0].unknown.grpc, [13]);
    assert_eq!(*settings.routes[1].unknown.grpc, [2]);
    let problems = bad(&format!("{base}[14, 0, 17] }}\n"));
    for at in [1, 2] {
        let at = format!("upstream.unknown_grpc_statuses[{at}]");
        assert!(
            problems.list.iter().any(|problem| problem.path == at),
            "{problems}"
        );
    }
}

#[test]
fn fields_with_an_old_name_are_told_the_new_one() {
    for (old, new) in crate::config::read::RENAMED {
        let (parents, name) = old.rsplit_once('.').expect("it stands in something");
        let inner = format!("{name}: 7s");
        let text =
            parents
                .rsplit('.')
                .fold(inner, |inner, parent| match parent.strip_suffix("[]") {
                    Some(list) => format!("{list}: [{{ path: /a, resource: a, {inner} }}]"),
                    None => format!("{parent}: {{ {inner} }}"),
                });
        let problems = bad(&format!("{BASE}{text}"));
        let [problem] = &problems.list[..] else {
            panic!("one problem: {problems}")
        };
        assert_eq!(problem.path, old.replace("[]", "[0]"));
        assert_eq!(problem.message, format!("unknown field `{name}`"));
        assert_eq!(problem.hint, Some(format!("renamed to `{new}`")));
        assert_eq!(problem.line(), Some(2));
    }
}

#[test]
fn keys_that_are_no_names_are_told_as_they_are() {
    for (text, path, message) in [
        (
            "store:\n  url: sqlite:a\nstore.url: b",
            "\"store.url\"",
            "unknown field `store.url`",
        ),
        (
            "\n\nstore: { url \"postgres://u:sesame@h/d\" }",
            "store.\"url \\\"postgres://…@h/d\\\"\"",
            "unknown field `url \"postgres://…@h/d\"`",
        ),
    ] {
        let problems = bad(&format!("{BASE}{text}"));
        let [problem] = &problems.list[..] else {
            panic!("one problem: {problems}")
        };
        assert_eq!((problem.path.as_str(), problem.line()), (path, Some(4)));
        assert_eq!(problem.message, message);
    }
}

#[test]
fn a_list_is_not_taken_for_the_fields_in_their_order() {
    for (text, path) in [
        ("- 127.0.0.1:1\n- [http://a]\n", ""),
        ("upstream: [http://a]\n", "upstream"),
        ("upstream: { url: http://a }\nbarrier: [5s]\n", "barrier"),
        (
            "upstream: { url: http://a }\nroutes: [[a, /a]]\n",
            "routes[0]",
        ),
    ] {
        let problems = bad(text);
        assert_eq!(problems.list[0].path, path, "{problems}");
        assert!(
            problems.list[0]
                .message
                .contains("a map of fields, found a list"),
            "{problems}"
        );
    }
}

#[test]
fn what_is_missing_has_the_line_of_what_it_is_missing_from() {
    let problems = bad("upstream: { url: http://a }\nroutes:\n  - path: /a\n    reuse: once\n");
    assert_eq!(problems.list[0].path, "routes[0].resource");
    assert_eq!(problems.list[0].line(), Some(3));
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_file() {
    let text = "\
listen: 7080
upstream:
  url: http://a/b
  timeout: 40s
store:
  urll: sqlite:a
barrier:
  settle: 0s
routes:
  - path: /a/{id}
    resorce: a
    methods: [GET, put]
  - path: /b
    path: /c
    resource: 'b:{id}'
    mode: observe
bogus: 1
";
    let problems = bad(text);
    let told: Vec<_> = problems
        .list
        .iter()
        .map(|p| (p.line(), p.path.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (Some(1), "listen"),
            (Some(3), "upstream.url"),
            (Some(6), "store.urll"),
            (Some(8), "barrier.settle"),
            (Some(11), "routes[0].resorce"),
            (Some(12), "routes[0].methods[0]"),
            (Some(12), "routes[0].methods[1]"),
            (Some(14), "routes[1].path"),
            (Some(15), "routes[1].resource"),
            (Some(16), "routes[1].mode"),
            (Some(17), "bogus"),
        ],
        "{problems}"
    );
    assert_eq!(problems.errors(), 10, "{problems}");
}

#[test]
fn an_upstream_of_http2_opens_no_tunnels() {
    let routes = "routes: [{ path: /a, resource: a }, { path: /b, resource: b, upgrade: allow }]";
    let problems = bad(&format!("upstream: {{ url: 'h2c://a:1' }}\n{routes}\n"));
    assert_eq!(problems.list[0].path, "routes[1].upgrade");
    good(&format!("{BASE}{routes}\n"));
}

#[test]
fn warnings_do_not_stop_a_start() {
    for (text, path) in [
        ("barrier: { settle: 29s }", "upstream.timeout"),
        ("barrier: { wait: 0s }", "barrier.wait"),
        ("shutdown: { deadline: 9s }", "shutdown.deadline"),
        (
            "admin: { listen: '0.0.0.0:1', token_file: /t }",
            "admin.listen",
        ),
        (
            "store: { url: 'postgres://a/b', namespace: a, timeout: 6s }",
            "store.timeout",
        ),
        (
            "store: { url: 'postgres://h/d?sslmode=require', namespace: a }",
            "store.url",
        ),
        (
            "store: { url: 'postgres://u:p@h/d?sslmode=insecure-require', namespace: a }",
            "store.url",
        ),
        ("store: { lease: 2m }", "store.lease"),
        (
            "store: { url: 'postgres://a/b', namespace: a, create: never }",
            "store.create",
        ),
        ("body: { max: 1KiB, buffer: 2KiB }", "body.buffer"),
        ("body: { max: 0 }", "body.max"),
        ("body: { buffer: 0 }", "routes[0].idempotency"),
        ("body: { buffer: 257MiB }", "body.buffer"),
        ("limits: { body_memory: 512KiB }", "body.buffer"),
        (
            "limits: { in_flight: 128, in_flight_per_connection: 128 }",
            "limits.in_flight_per_connection",
        ),
        (
            "limits: { in_flight: 128, http2_streams: 128 }",
            "limits.http2_streams",
        ),
        (
            "limits: { in_flight: 128, in_flight_per_client: 128 }",
            "limits.in_flight_per_client",
        ),
        (
            "limits: { connections: 128, connections_per_client: 200 }",
            "limits.connections_per_client",
        ),
        (
            "limits: { in_flight: 128, in_flight_per_resource: 128 }",
            "limits.in_flight_per_resource",
        ),
        (
            "barrier: { queue: 97 }\nlimits: { in_flight: 128 }",
            "barrier.queue",
        ),
        (
            "barrier: { queue: 128 }\nlimits: { in_flight: 128, in_flight_per_resource: none }",
            "barrier.queue",
        ),
        (
            "routes: [{ path: /a, resource: a, body: { buffer: 257MiB } }]",
            "routes[0].body.buffer",
        ),
        (
            "routes: [{ path: /a, resource: a, mode: observe }]",
            "routes[0].mode",
        ),
        (
            "routes: [{ path: /a, resource: a, mode: bypass }]",
            "routes[0].mode",
        ),
        (
            "routes: [{ path: /a, resource: a, upstream: { timeout: 31s } }]",
            "routes[0].upstream.timeout",
        ),
        (
            "routes: [{ path: /a, resource: a, methods: [PUT, PUT] }]",
            "routes[0].methods[1]",
        ),
        (
            "routes: [{ path: /a, resource: '{header.cookie}' }]",
            "routes[0].resource",
        ),
        (
            "routes: [{ path: /a, resource: '{header.x-request-id}' }]",
            "routes[0].resource",
        ),
    ] {
        let (_, warnings) = good(&format!("{BASE}{text}\n"));
        let told: Vec<_> = warnings
            .iter()
            .map(|warning| warning.path.as_str())
            .collect();
        assert_eq!(told, [path], "{text}");
        assert_eq!(warnings[0].severity, Severity::Warning);
        let given = path.starts_with("upstream") || text.starts_with(&path[..4]);
        assert_eq!(warnings[0].line().is_some(), given, "{text}");
    }
}

#[test]
fn shares_that_leave_room_are_not_warned_of() {
    for text in [
        "limits: { in_flight: 128 }",
        "limits: { in_flight: 128, in_flight_per_client: none, in_flight_per_resource: none }",
        "limits: { in_flight: 128, in_flight_per_connection: 127, http2_streams: 127 }",
        "barrier: { queue: 96 }\nlimits: { in_flight: 128 }",
    ] {
        let (_, warnings) = good(&format!("{BASE}{text}\n"));
        assert!(warnings.is_empty(), "{text}: {warnings:?}");
    }
}

#[test]
fn no_secret_is_ever_shown() {
    for text in [
        "store: { url: 'postgres://u:sesame@h/d' }",
        "store: { url: 'mysql://u:sesame@h/d' }",
        "store: { url: 'host=h password=sesame' }",
        "store: { url: 'postgres://u:ses ame sesame@h/d', namespace: a }",
        "store: { url: [ 'postgres://u:sesame@h/d' ] }",
        "store: 'postgres://u:sesame@h/d'",
        "store: 'host=h password=sesame'",
        "store: { urll: 'postgres://u:sesame@h/d' }",
        "upstream: { url: 'http://u:sesame@h' }",
        "store: { url: 'postgres://u:sesame@h/d', url: 'postgres://u:sesame@h/d' }",
        "store:\n  url: postgres://u:sesame@h/d: x\n",
        "store:\n  url: \"postgres://u:sesame@h/d\n",
    ] {
        let problems = bad(&format!("listen: bad\n{text}\n"));
        assert!(
            !format!("{problems} {problems:?}").contains("sesame"),
            "{problems:?}"
        );
    }
    let (settings, _) = good(&format!(
        "{BASE}store: {{ url: 'postgres://u:sesame@h/d', namespace: a }}\n"
    ));
    assert!(!format!("{settings:?}").contains("sesame"));
    assert!(!super::super::summary(&settings).contains("sesame"));
}
