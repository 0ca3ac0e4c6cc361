//! The admin port of a running proxy, as `marks` and `health` talk to it.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Method, RequestBuilder, Response, Url, redirect};
use serde_json::Value;

use crate::printable::line;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the proxy's admin port is.
#[derive(Debug, Args)]
pub struct AdminArgs {
    #[arg(
        help = "Where the proxy's admin port is: http://…, https://… or unix:/path. By default what \
                --admin-listen says",
        long,
        global = true,
        value_name = "URL",
        env = "FENCEPOST_ADMIN_URL"
    )]
    admin: Option<String>,
    #[arg(
        help = "What the proxy was told to listen on, where --admin is not given: host:port or unix:/path",
        long,
        global = true,
        value_name = "ADDR",
        env = "FENCEPOST_ADMIN_LISTEN",
        default_value = "127.0.0.1:7081"
    )]
    admin_listen: String,
}

impl AdminArgs {
    /// The URL to ask. What listens on every address is asked on the loopback.
    pub fn url(&self) -> anyhow::Result<String> {
        if let Some(url) = &self.admin {
            return Ok(url.clone());
        }
        let listen = self.admin_listen.as_str();
        if listen == "off" {
            bail!("--admin-listen off: this proxy has no admin port to ask");
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
        Ok(format!("http://{host}:{port}"))
    }
}

/// A proxy's admin port.
pub struct Admin {
    client: reqwest::Client,
    /// As it was given.
    url: String,
    /// Without a slash at its end.
    base: String,
}

impl Admin {
    /// `timeout`: for a whole request.
    pub fn new(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        // reqwest takes the process's provider; an error says that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(timeout)
            .user_agent(concat!("fencepost/", env!("CARGO_PKG_VERSION")));
        let (builder, base) = if let Some(path) = url.strip_prefix("unix:") {
            if path.is_empty() {
                bail!(
                    "--admin {url}: the path of the socket is missing; unix:/run/fencepost-admin.sock, say"
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
        })
    }

    pub fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let url = Url::parse(&format!("{}{path}", self.base))
            .with_context(|| format!("--admin {}: not a URL", self.url))?;
        Ok(self.client.request(method, url))
    }

    /// The answer, whatever its status.
    pub async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        request.send().await.map_err(|error| self.explain(error))
    }

    /// An answer's body.
    pub async fn text(&self, response: Response) -> anyhow::Result<String> {
        response.text().await.map_err(|error| self.explain(error))
    }

    /// The answer's body; a problem is an error.
    pub async fn send(&self, request: RequestBuilder) -> anyhow::Result<String> {
        let response = self.ask(request).await?;
        let status = response.status();
        let text = self.text(response).await?;
        if status.is_success() {
            return Ok(text);
        }
        let problem: Value = serde_json::from_str(&text)
            .ok()
            .filter(Value::is_object)
            .unwrap_or_default();
        match (problem["title"].as_str(), problem["detail"].as_str()) {
            (Some(title), Some(detail)) => {
                let word = problem["type"]
                    .as_str()
                    .and_then(|name| name.rsplit(':').next());
                let (title, detail) = (line(title), line(detail));
                let word = line(word.unwrap_or("no type"));
                bail!("{title} ({}, {word}): {detail}", status.as_u16())
            }
            _ => bail!("{} (it answered {status})", self.not_fencepost()),
        }
    }

    /// What to say of an answer that fencepost would not give.
    pub fn not_fencepost(&self) -> String {
        format!(
            "what answers at {} is not fencepost's admin port (that is admin.listen, not listen)",
            self.url
        )
    }

    fn explain(&self, error: reqwest::Error) -> anyhow::Error {
        let why = if error.is_connect() {
            format!(
                "cannot connect to {}. Is fencepost running, and is its admin.listen that address? \
                 --admin or FENCEPOST_ADMIN_URL names another",
                self.url
            )
        } else if error.is_timeout() {
            format!(
                "{} did not answer in time; a write may still take effect: look with `marks get`",
                self.url
            )
        } else {
            format!(
                "the exchange with {} broke; a write may have taken effect: look with `marks get`",
                self.url
            )
        };
        anyhow::Error::new(error.without_url()).context(why)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
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
            let alone = Alone::parse_from(std::iter::once("x").chain(words.iter().copied()));
            assert_eq!(alone.admin.url().ok().as_deref(), url, "{words:?}");
        }
    }
}
