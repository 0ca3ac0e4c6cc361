//! Names of fields that say who a client is by its certificate. Where fencepost asks clients for
//! certificates it takes such fields off requests, so that no key can be made of one.

/// The beginnings of such names, in dashes: those of Envoy, `HAProxy` and Apache, ingress-nginx,
/// Traefik, AWS, Azure, Cloudflare, `WebLogic`, RFC 9440 (`Client-Cert`, `Client-Cert-Chain`), and
/// what people write into nginx. docs/SECURITY.md lists them.
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

/// Whether a service may take this field for the word of the server that has ended TLS. Services
/// tell neither the case of a letter apart nor, some of them, a dash from any other sign.
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
