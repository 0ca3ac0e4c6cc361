//! Names of fields that identify a client by its certificate. If fencepost requires certificates,
//! it removes such fields from requests, so that no key can be made of one.

/// The beginnings of such names, in dashes: those of Envoy, `HAProxy` and Apache, ingress-nginx,
/// Traefik, AWS, Azure, Cloudflare, `WebLogic`, RFC 9440 (`Client-Cert`, `Client-Cert-Chain`), and
/// common nginx configurations. docs/SECURITY.md lists them.
const BEGINNINGS: [&str; 20] = [
    "x-forwarded-client-cert",
    "x-forwarded-tls-client",
    "x-forwarded-ssl-client",
    "x-ssl",
    "ssl-client",
    "x-tls-client",
    "tls-client-cert",
    "client-cert",
    "x-client-cert",
    "x-client-verify",
    "x-client-dn",
    "x-client-subject",
    "x-user-cert",
    "x-certificate",
    "x-spiffe",
    "x-amzn-mtls-",
    "x-arr-clientcert",
    "x-mtls-",
    "cf-client-cert",
    "wl-proxy-client",
];

/// True if an upstream may trust this field as set by the server that terminated TLS. Upstreams
/// ignore the case of letters, and some treat any other sign like a dash.
#[must_use]
pub fn names_a_peer(field: &str) -> bool {
    BEGINNINGS.iter().any(|start| {
        let letters = field.bytes().map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() => byte.to_ascii_lowercase(),
            _ => b'-',
        });
        letters.take(start.len()).eq(start.bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_the_documentation_lists() {
        let page = include_str!("../../docs/SECURITY.md");
        for start in BEGINNINGS {
            assert!(page.contains(&format!("`{start}`")), "{start}");
        }
    }
}
