//! [`AdminAddress`]: the address of the admin port, read from a file alone. A health check neither
//! needs nor checks the rest of the file.

use std::path::Path;

use serde_json::Value;

use super::yaml::{Report, at, parse};

/// The admin port's address, as far as a file gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminAddress {
    /// `admin.listen`.
    pub listen: Option<String>,
    /// There is a block `admin.tls`.
    pub tls: bool,
}

impl AdminAddress {
    /// Reads it. An error says what is wrong with the file.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
        Self::of(&text).ok_or_else(|| {
            let file = file.display();
            format!("{file} is not a valid configuration; `fencepost check {file}` says why")
        })
    }

    fn of(text: &str) -> Option<Self> {
        let tree = parse(text, &mut Report::default())?;
        let listen = at(&tree, "admin.listen").and_then(Value::as_str);
        Some(Self {
            listen: listen.map(str::to_owned),
            tls: at(&tree, "admin.tls").is_some_and(Value::is_object),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_admin_block_is_looked_at() {
        for (text, listen, tls) in [
            ("", None, false),
            ("admin:", None, false),
            ("admin: { listen: off }", Some("off"), false),
            (
                "admin: { listen: 'unix:/run/a' }",
                Some("unix:/run/a"),
                false,
            ),
            ("admin: { tls: { cert_file: a } }", None, true),
            ("admin: { listen: '[::]:9', tls: }", Some("[::]:9"), false),
            ("lisen: 7\nadmin: { listen: a:1 }", Some("a:1"), false),
        ] {
            let listen = listen.map(str::to_owned);
            assert_eq!(
                AdminAddress::of(text),
                Some(AdminAddress { listen, tls }),
                "{text}"
            );
        }
        assert_eq!(AdminAddress::of("admin: ["), None);
    }
}
