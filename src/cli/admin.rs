//! The admin port of a running proxy, as `marks`, `status` and `health` talk to it, and its answers
//! as text.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{
    Certificate, Client, ClientBuilder, Method, RequestBuilder, StatusCode, Url, redirect,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::overrides::ConfigFile;
use crate::admin::api::Problem;
use crate::config::{ADMIN_LISTEN, AdminAddress};
use crate::printable::line;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of the proxy's admin port.
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// URL of the proxy's admin port: http://…, https://… or unix:/path [default: from
    /// --admin-listen]
    #[arg(long, global = true, value_name = "URL", env = "FENCEPOST_ADMIN_URL")]
    admin: Option<String>,
    /// PEM file with the CAs for an https:// admin port [default: the system's]
    #[arg(long, global = true, value_name = "FILE", env = "FENCEPOST_ADMIN_CA")]
    admin_ca: Option<PathBuf>,
    /// Admin address of the proxy, if --admin is not given: host:port or unix:/path [default: from
    /// --config]
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "FENCEPOST_ADMIN_LISTEN"
    )]
    admin_listen: Option<String>,
    #[command(flatten)]
    file: ConfigFile,
    /// Admin address if neither --admin-listen nor the file has one [default: 127.0.0.1:7081]
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "FENCEPOST_DEFAULT_ADMIN_LISTEN"
    )]
    default_admin_listen: Option<String>,
}

impl AdminArgs {
    /// The URL to ask. A port that listens on every address is asked on the loopback.
    pub fn url(&self) -> anyhow::Result<String> {
        if let Some(url) = &self.admin {
            return Ok(url.clone());
        }
        let file = match &self.file.config {
            Some(file) => AdminAddress::read(file).map_err(anyhow::Error::msg)?,
            None => AdminAddress::default(),
        };
        let listens = [&self.admin_listen, &file.listen, &self.default_admin_listen];
        let listen = listens.into_iter().flatten().next();
        let listen = listen.map_or(ADMIN_LISTEN, String::as_str);
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
        let scheme = if file.tls { "https" } else { "http" };
        Ok(format!("{scheme}://{host}:{port}"))
    }

    /// The proxy's admin port. `timeout`: for a whole request.
    pub fn connect(&self, timeout: Duration) -> anyhow::Result<Admin> {
        let mut client = http_client(timeout);
        if let Some(file) = &self.admin_ca {
            client = client.tls_certs_only(roots("--admin-ca", file)?);
        }
        Admin::new(&self.url()?, client)
    }

    /// As [`Self::connect`], for questions that carry no secret. If no CA is given, the
    /// certificate is not verified: it rarely names the loopback, and a probe trusts the address
    /// anyway.
    pub fn connect_for_a_probe(&self, timeout: Duration) -> anyhow::Result<Admin> {
        if self.admin_ca.is_some() {
            return self.connect(timeout);
        }
        let client = http_client(timeout).tls_danger_accept_invalid_certs(true);
        Admin::new(&self.url()?, client)
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
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FENCEPOST_ADMIN_TOKEN_FILE"
    )]
    token_file: Option<PathBuf>,
    /// Print the JSON of the admin API
    #[arg(long, global = true)]
    pub json: bool,
}

impl AccessArgs {
    /// As [`AdminArgs::connect`]; requests carry the token where one is given.
    pub fn connect(&self, timeout: Duration) -> anyhow::Result<Admin> {
        let token = self.token_file.as_deref();
        let token = token
            .map(|file| read_token("--token-file", file))
            .transpose()?;
        let admin = self.admin.connect(timeout)?;
        Ok(Admin { token, ..admin })
    }
}

/// The first token in the file of a flag.
pub(super) fn read_token(flag: &str, file: &Path) -> anyhow::Result<String> {
    let at = || format!("{flag} {}", file.display());
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
    /// Without a slash at its end.
    base: String,
    token: Option<String>,
}

impl Admin {
    fn new(url: &str, builder: ClientBuilder) -> anyhow::Result<Self> {
        let builder = builder.connect_timeout(CONNECT_TIMEOUT);
        let (builder, base) = if let Some(path) = url.strip_prefix("unix:") {
            if path.is_empty() {
                bail!(
                    "--admin {url}: the path of the socket is missing; \
                     unix:/run/fencepost-admin.sock, say"
                );
            }
            (builder.unix_socket(path), "http://localhost".to_owned())
        } else if url.starts_with("http://") || url.starts_with("https://") {
            (builder, url.trim_end_matches('/').to_owned())
        } else {
            bail!("--admin {url}: begin it with http://, https:// or unix:");
        };
        let client = builder.build().context("cannot set up the HTTP client")?;
        Ok(Self {
            client,
            url: url.to_owned(),
            base,
            token: None,
        })
    }

    pub fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let url = Url::parse(&format!("{}{path}", self.base))
            .with_context(|| format!("--admin {}: not a URL", self.url))?;
        let request = self.client.request(method, url);
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
    }

    /// A write, which needs the token.
    pub fn write(&self, path: &str, body: &impl Serialize) -> anyhow::Result<RequestBuilder> {
        self.token.as_ref().context(
            "a write needs --token-file (or FENCEPOST_ADMIN_TOKEN_FILE): the file that the \
             proxy's admin.token_file names",
        )?;
        Ok(self.request(Method::POST, path)?.json(body))
    }

    /// Asks for this target by GET, and reads the answer.
    pub async fn get<T: DeserializeOwned>(&self, target: &str) -> anyhow::Result<T> {
        let text = self.send(self.request(Method::GET, target)?).await?;
        self.read(&text)
    }

    /// An answer of the admin API.
    pub fn read<T: DeserializeOwned>(&self, text: &str) -> anyhow::Result<T> {
        serde_json::from_str(text).with_context(|| self.not_fencepost())
    }

    /// The answer's status, whatever it is, and its body.
    pub async fn ask(&self, request: RequestBuilder) -> anyhow::Result<(StatusCode, String)> {
        let (client, request) = request.build_split();
        let request = request.context("the request cannot be written")?;
        let reads = request.method().is_safe();
        let exchange = async {
            let response = client.execute(request).await?;
            Ok((response.status(), response.text().await?))
        };
        exchange.await.map_err(|error| self.explain(error, reads))
    }

    /// The answer's body; a problem is an error.
    pub async fn send(&self, request: RequestBuilder) -> anyhow::Result<String> {
        let (status, text) = self.ask(request).await?;
        self.accepted(status, text)
    }

    /// As [`Self::send`], of an answer that has come.
    pub fn accepted(&self, status: StatusCode, text: String) -> anyhow::Result<String> {
        if status.is_success() {
            return Ok(text);
        }
        let Ok(problem) = serde_json::from_str::<Problem>(&text) else {
            bail!("{} (it answered {status})", self.not_fencepost());
        };
        let word = problem.kind.rsplit(':').next().unwrap_or_default();
        let (title, detail, word) = (line(&problem.title), line(&problem.detail), line(word));
        bail!("{title} ({}, {word}): {detail}", status.as_u16())
    }

    /// The message for an answer that fencepost would not give.
    pub fn not_fencepost(&self) -> String {
        format!(
            "what answers at {} is not fencepost's admin port (that is admin.listen, not listen)",
            self.url
        )
    }

    fn explain(&self, error: reqwest::Error, reads: bool) -> anyhow::Error {
        let url = &self.url;
        let doubt = "; the write may still take effect: look with `marks get`";
        let doubt = if reads { "" } else { doubt };
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
