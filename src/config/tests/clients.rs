//! TLS, client certificates and limits of claims.

use super::{BASE, bad, cases, good};

/// Blocks of TLS that lack something or are of no use, a part of the message, the path.
const TLS: &str = r"
tls.key_file: /none | is missing | tls.cert_file
tls.cert_file: /none | is missing | tls.key_file
tls: {} | is missing | tls.cert_file
tls.cert_file: /none; tls.key_file: '' | empty | tls.key_file
tls.client_auth: required | no CA | tls.client_auth
tls.crl_file: /none | no CA | tls.crl_file
upstream.url: http://a; upstream.tls: { server_name: b } | not https | upstream.tls
upstream.url: h2c://a; upstream.tls: {} | not https | upstream.tls
upstream.url: http://a; upstream.http2: true | h2c:// | upstream.http2
upstream.url: https://a; upstream.tls: { cert_file: /none } | is missing | upstream.tls.key_file
upstream.url: https://a; upstream.tls: { server_name: 'b:1' } | without a port | upstream.tls.server_name
upstream.url: https://a; upstream.tls: { ca_file: /none } | /none cannot be read | upstream.tls.ca_file
";

#[test]
fn what_tls_lacks_or_has_no_use_for_is_told() {
    for (text, path, part) in cases(TLS) {
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
            &["routes[1].methods", "routes[1].path", "unmatched"],
        ),
        (
            format!("[{guarded}, {{ path: '/{{x}}/{{*all}}', resource: '{{path}}' }}]"),
            &["routes[1].methods", "routes[1].path", "unmatched"],
        ),
        (
            format!("[{guarded}, {{ path: '/b/{{*all}}', resource: '{{path}}' }}]"),
            &["unmatched"],
        ),
        (
            "[{ path: '/a/{*all}', resource: 'a:{all}', require_client: [b.svc] }, { path: '/{*all}', \
             resource: '{path}' }]"
                .to_owned(),
            &["routes[1].path", "unmatched"],
        ),
    ] {
        let (settings, warnings) = good(&format!("{base}routes: {routes}\n"));
        assert_eq!(settings.routes[0].require_client.len(), 1);
        let mut paths: Vec<_> = warnings.iter().map(|w| w.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, told, "{routes}: {warnings:?}");
        let (_, warnings) = good(&format!("{base}unmatched: refuse\nroutes: {routes}\n"));
        assert!(
            warnings.iter().all(|w| w.path != "unmatched"),
            "{warnings:?}"
        );
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
        assert!(problems.to_string().contains("removed"), "{problems}");
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
