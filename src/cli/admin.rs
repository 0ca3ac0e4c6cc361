//! The admin port of a running proxy, as `marks`, `status` and `health` talk to it, and its answers
//! as text.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, StatusCode, Url, redirect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::overrides::ConfigFile;
use crate::admin::api::Problem;
use crate::config::{ADMIN_LISTEN, admin_block};
use crate::printable::line;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of the proxy's admin port.
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// URL of the proxy's admin port: http://…, https://… or unix:/path [default: from
    /// --admin-listen]
    #[arg(long, value_name = "URL", env = "FENCEPOST_ADMIN_URL")]
    admin: Option<String>,
    /// PEM file with the CAs for an https:// admin port [default: the system's]
    #[arg(long, value_name = "FILE", env = "FENCEPOST_ADMIN_CA")]
    admin_ca: Option<PathBuf>,
    /// Admin address of the proxy, if --admin is not given: host:port or unix:/path [default: from
    /// --config]
    #[arg(long, value_name = "ADDR", env = "FENCEPOST_ADMIN_LISTEN")]
    admin_listen: Option<String>,
    #[command(flatten)]
    file: ConfigFile,
    /// Admin address if neither --admin-listen nor the file has one [default: 127.0.0.1:7081]
    #[arg(long, value_name = "ADDR", env = "FENCEPOST_DEFAULT_ADMIN_LISTEN")]
    default_admin_listen: Option<String>,
}

impl AdminArgs {
    /// The URL to ask. A port that listens on every address is asked on the loopback.
    pub fn url(&self) -> anyhow::Result<String> {
        if let Some(url) = &self.admin {
            return Ok(url.clone());
        }
        let file = match &self.file.config {
            Some(file) => admin_block(file).map_err(anyhow::Error::msg)?,
            None => Value::Null,
        };
        let (own, default) = (&self.admin_listen, &self.default_admin_listen);
        let listen = own.as_deref().or(file["listen"].as_str());
        let listen = listen.or(default.as_deref()).unwrap_or(ADMIN_LISTEN);
        if listen == "off" {
            bail!("admin.listen is off: this proxy has no admin port to ask");
        }
        if listen.starts_with("unix:") {
            return Ok(listen.to_owned());
        }
        let Some((host, port)) = listen.rsplit_once(':') else {
            bail!("--admin-listen {listen}: write host:port or unix:/path, 127.0.0.1:7081 say");
        };
        let host = match host {
            "0.0.0.0" => "127.0.0.1",
            "[::]" => "[::1]",
            host => host,
        };
        let scheme = if file["tls"].is_object() {
            "https"
        } else {
            "http"
        };
        Ok(format!("{scheme}://{host}:{port}"))
    }

    /// The proxy's admin port, for questions that carry no secret. `timeout`: for a whole request.
    /// If no CA is given, the certificate is not verified: it rarely names the loopback, and a
    /// probe trusts the address anyway.
    pub fn connect_for_a_probe(&self, timeout: Duration) -> anyhow::Result<Admin> {
        let unverified = self.admin_ca.is_none();
        self.connect(http_client(timeout).tls_danger_accept_invalid_certs(unverified))
    }

    fn connect(&self, mut client: ClientBuilder) -> anyhow::Result<Admin> {
        if let Some(file) = &self.admin_ca {
            client = client.tls_certs_only(roots("--admin-ca", file)?);
        }
        let url = self.url()?;
        let (client, base) = match url.strip_prefix("unix:") {
            Some(path) => (client.unix_socket(path), "http://localhost"),
            None => (client, url.as_str()),
        };
        let base = Url::parse(base).ok();
        let base = base.filter(|base| matches!(base.scheme(), "http" | "https"));
        let wrong = || format!("--admin {url}: begin it with http://, https:// or unix:/");
        let client = client.connect_timeout(CONNECT_TIMEOUT).build();
        Ok(Admin {
            base: base.with_context(wrong)?,
            client: client.context("cannot set up the HTTP client")?,
            token: None,
            url,
        })
    }
}

/// The address, the token, and the form of the answer.
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub struct AccessArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// File with the token of admin.token_file, for writes. Reads from outside the proxy's loopback
    /// need it too, or the token of admin.read_token_file
    #[arg(long, value_name = "FILE", env = "FENCEPOST_ADMIN_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Print the JSON of the admin API
    #[arg(long)]
    pub json: bool,
}

impl AccessArgs {
    /// The proxy's admin port; requests carry the token where one is given.
    pub fn connect(&self, timeout: Duration) -> anyhow::Result<Admin> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let admin = self.admin.connect(http_client(timeout))?;
        Ok(Admin { token, ..admin })
    }
}

/// The first token in the file of `--token-file`.
fn read_token(file: &Path) -> anyhow::Result<String> {
    let at = || format!("--token-file {}", file.display());
    let text = std::fs::read_to_string(file).with_context(at)?;
    let token = text.lines().map(str::trim).find(|token| !token.is_empty());
    let token = token.with_context(|| format!("{}: there is no token in it", at()))?;
    Ok(token.to_owned())
}

/// A client that ignores the proxies of the environment and follows nothing. `timeout`: for a whole
/// request.
pub(super) fn http_client(timeout: Duration) -> ClientBuilder {
    // reqwest takes the process's provider; an error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .timeout(timeout)
        .user_agent(concat!("fencepost/", env!("CARGO_PKG_VERSION")))
}

/// The certificates in the file of a flag.
pub(super) fn roots(flag: &str, file: &Path) -> anyhow::Result<Vec<Certificate>> {
    let at = || format!("{flag} {}", file.display());
    let pem = std::fs::read(file).with_context(at)?;
    let roots = Certificate::from_pem_bundle(&pem).with_context(at)?;
    if roots.is_empty() {
        bail!("{}: there is no certificate in it", at());
    }
    Ok(roots)
}

/// A proxy's admin port.
pub struct Admin {
    client: Client,
    /// As the user wrote it.
    url: String,
    base: Url,
    token: Option<String>,
}

/// An answer that is a problem.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Refused {
    pub status: StatusCode,
    text: String,
}

impl Admin {
    /// Reads the resource at these segments of a path.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &impl Serialize,
    ) -> anyhow::Result<T> {
        let request = self.client.get(self.target(path)).query(query);
        self.answer(request, "").await
    }

    /// Writes, which needs the token.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.token.as_ref().context(
            "a write needs --token-file (or FENCEPOST_ADMIN_TOKEN_FILE): the file that the \
             proxy's admin.token_file names",
        )?;
        let request = self.client.post(self.target(path)).json(body);
        let doubt = "; the write may still take effect: look with `marks get` or `operations list`";
        self.answer(request, doubt).await
    }

    fn target(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Sends, and reads the answer. A problem is an error, [`Refused`]. `doubt`: the end of the
    /// message if no answer comes.
    async fn answer<T: DeserializeOwned>(
        &self,
        mut request: RequestBuilder,
        doubt: &str,
    ) -> anyhow::Result<T> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let exchange = async {
            let response = request.send().await?;
            Ok((response.status(), response.text().await?))
        };
        let broken = |error| self.broken(error, doubt);
        let (status, text) = exchange.await.map_err(broken)?;
        if !status.is_success()
            && let Ok(problem) = serde_json::from_str::<Problem>(&text)
        {
            let word = problem.kind.rsplit(':').next().unwrap_or_default();
            let (title, detail, word) = (line(&problem.title), line(&problem.detail), line(word));
            let text = format!("{title} ({}, {word}): {detail}", status.as_u16());
            return Err(Refused { status, text }.into());
        }
        serde_json::from_str(&text).with_context(|| {
            format!(
                "what answers at {} is not fencepost's admin port (that is admin.listen, not \
                 listen); it answered {status}",
                self.url
            )
        })
    }

    fn broken(&self, error: reqwest::Error, doubt: &str) -> anyhow::Error {
        let url = &self.url;
        let why = if error.is_connect() {
            format!(
                "cannot connect to {url}. Is fencepost running, and is its admin.listen that \
                 address? --admin or FENCEPOST_ADMIN_URL names another"
            )
        } else if error.is_timeout() {
            format!("{url} did not answer in time{doubt}")
        } else {
            format!("the exchange with {url} broke{doubt}")
        };
        anyhow::Error::new(error.without_url()).context(why)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct AdminArgsAlone {
        #[command(flatten)]
        admin: AdminArgs,
    }

    #[test]
    fn what_listens_everywhere_is_asked_on_the_loopback() {
        for (words, url) in [
            (vec![], Some("http://127.0.0.1:7081")),
            (
                vec!["--admin-listen", "0.0.0.0:9"],
                Some("http://127.0.0.1:9"),
            ),
            (vec!["--admin-listen", "[::]:9"], Some("http://[::1]:9")),
            (
                vec!["--admin-listen", "10.1.2.3:9"],
                Some("http://10.1.2.3:9"),
            ),
            (vec!["--admin-listen", "unix:/run/a"], Some("unix:/run/a")),
            (vec!["--admin-listen", "off"], None),
            (vec!["--admin-listen", "7081"], None),
            (
                vec!["--admin-listen", "off", "--admin", "http://a:1"],
                Some("http://a:1"),
            ),
        ] {
            let alone =
                AdminArgsAlone::parse_from(std::iter::once("x").chain(words.iter().copied()));
            assert_eq!(alone.admin.url().ok().as_deref(), url, "{words:?}");
        }
    }

    #[test]
    fn a_file_says_where_the_port_is_above_the_default_and_below_the_flag() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("fencepost.yaml");
        for (text, flags, url) in [
            ("", &[][..], Some("http://127.0.0.1:9")),
            ("admin: { listen: off }", &[], None),
            ("admin: { listen: 'unix:/run/a' }", &[], Some("unix:/run/a")),
            (
                "admin: { listen: '127.0.0.1:8', tls: { cert_file: a } }",
                &[],
                Some("https://127.0.0.1:8"),
            ),
            (
                "admin: { listen: off }",
                &["--admin-listen", "127.0.0.1:7"],
                Some("http://127.0.0.1:7"),
            ),
            ("admin: [", &[], None),
        ] {
            std::fs::write(&file, text).expect("written");
            let path = file.to_str().expect("text");
            let words = ["x", "--default-admin-listen", "0.0.0.0:9", "--config", path];
            let alone = AdminArgsAlone::parse_from(words.iter().chain(flags));
            assert_eq!(alone.admin.url().ok().as_deref(), url, "{text} {flags:?}");
        }
    }
}
