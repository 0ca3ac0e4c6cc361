//! A real Prometheus of the test's own: a port of the loopback, a temporary directory, the rule
//! file of the project.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;

use super::text;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::store::program;
use crate::support::{eventually, get};

/// Killed, and its data removed, when dropped.
pub struct Prometheus {
    address: SocketAddr,
    _process: Process,
    _dir: TempDir,
}

impl Prometheus {
    /// Scrapes each target under its job, with the labels that a `PodMonitor` gives, and has
    /// scraped each once when this returns. `None` if it is not installed.
    pub async fn start(targets: &[(&str, SocketAddr)]) -> Option<Self> {
        let prometheus = program("prometheus")?;
        let dir = TempDir::new().expect("a temporary directory");
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus/alerts.yaml");
        let mut file = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s }}\n\
             rule_files: ['{}']\nscrape_configs:\n",
            rules.display()
        );
        for (job, address) in targets {
            writeln!(
                file,
                "- job_name: {job}\n  static_configs:\n  - targets: ['{address}']\n    \
                 labels: {{ cluster: one, namespace: pay, pod: {job}-0, container: fencepost }}"
            )
            .expect("a String takes all");
        }
        let config = dir.path().join("prometheus.yml");
        std::fs::write(&config, file).expect("the directory is writable");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let process = Process::start(
            Command::new(prometheus)
                .arg(format!("--config.file={}", config.display()))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    dir.path().join("data").display()
                ))
                .arg(format!("--web.listen-address={address}"))
                .arg("--log.level=warn"),
        );
        eventually("Prometheus to listen", || async {
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        let started = Self {
            address,
            _process: process,
            _dir: dir,
        };
        started
            .has_seen(&format!("count(fencepost_build_info) == {}", targets.len()))
            .await;
        Some(started)
    }

    async fn ask(&self, target: &str) -> Option<Value> {
        let answer = get(target).send(self.address).await;
        match answer.status() {
            200 => Some(answer.json()["data"].clone()),
            503 => None,
            status => panic!("{target}: {status}: {}", answer.text()),
        }
    }

    /// The result of an instant query now.
    ///
    /// # Panics
    /// If the expression does not parse, or cannot be evaluated.
    pub async fn query(&self, expr: &str) -> Vec<Value> {
        let target = format!(
            "/api/v1/query?query={}",
            utf8_percent_encode(expr, NON_ALPHANUMERIC)
        );
        let data = eventually("Prometheus to be ready", || self.ask(&target)).await;
        assert_eq!(data["resultType"], "vector", "{expr}");
        data["result"].as_array().expect("a vector").clone()
    }

    /// The values that it finds.
    pub async fn numbers(&self, expr: &str) -> Vec<f64> {
        let samples = self.query(expr).await;
        let values = samples.iter().map(|sample| text_of(&sample["value"][1]));
        values
            .map(|value| value.parse().expect("a number"))
            .collect()
    }

    /// The values of a label in what it finds.
    pub async fn labels(&self, expr: &str, label: &str) -> BTreeSet<String> {
        let samples = self.query(expr).await;
        let values = samples
            .iter()
            .map(|sample| sample["metric"][label].as_str());
        values
            .map(|value| value.unwrap_or_default().to_owned())
            .collect()
    }

    /// Waits until this finds something.
    pub async fn has_seen(&self, expr: &str) {
        eventually(expr, || async {
            (!self.query(expr).await.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until this many rules have been evaluated; asserts that each could be.
    pub async fn evaluates_all(&self, count: usize) {
        let rules = eventually("every rule to be evaluated", || async {
            let data = self.ask("/api/v1/rules").await?;
            let groups = data["groups"].as_array().expect("groups");
            let rules = groups
                .iter()
                .flat_map(|group| group["rules"].as_array().expect("rules"));
            let rules: Vec<Value> = rules.cloned().collect();
            rules
                .iter()
                .all(|rule| rule["health"] != "unknown")
                .then_some(rules)
        })
        .await;
        assert_eq!(rules.len(), count);
        for rule in &rules {
            assert_eq!(text(rule, "health"), "ok", "{rule}");
            for alert in rule["alerts"].as_array().into_iter().flatten() {
                let annotations = alert["annotations"].as_object().expect("annotations");
                for (name, value) in annotations {
                    let value = text_of(value);
                    assert!(
                        !value.contains("<error") && !value.contains("<no value>"),
                        "{name}: {value}"
                    );
                }
            }
        }
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().expect("a text")
}
