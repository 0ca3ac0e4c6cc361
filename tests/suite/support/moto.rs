//! A gateway for objects that checks signatures, with a `DynamoDB` beside it
//! (`tests/object_storage/gateway.py`: moto), and calls of it by boto3.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::process::Process;
use super::python::{program, python};

/// A server of one's own. Ends when dropped.
pub struct Moto {
    python: PathBuf,
    told: Value,
    _process: Process,
}

impl Moto {
    /// One with these buckets; without any, no signature is checked. `None` if Python has not what
    /// it needs.
    pub async fn start(buckets: &[&str]) -> Option<Self> {
        let python = python()?;
        let mut command = program(&python, "object_storage/gateway.py");
        let mut process = Process::start(command.args(buckets));
        let json = |line: &str| serde_json::from_str(line).ok();
        let told = process.says("the gateway to listen", json).await;
        Some(Self {
            python,
            told,
            _process: process,
        })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.told["port"])
    }

    /// A program in Python (a path below `tests`, or from `/`), with the key of the gateway's user in
    /// its environment.
    pub fn program(&self, file: impl AsRef<Path>) -> Command {
        let told = |name: &str| self.told[name].as_str().expect("a string");
        let mut command = program(&self.python, file);
        command
            .env("AWS_ACCESS_KEY_ID", told("key"))
            .env("AWS_SECRET_ACCESS_KEY", told("secret"))
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        for name in ["AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", "AWS_ENDPOINT_URL"] {
            command.env_remove(name);
        }
        command
    }

    /// Plays the steps of `calls.py` in one process, and returns the answer of each.
    pub async fn calls(&self, steps: &[Value]) -> Vec<Value> {
        self.calls_in(&[], steps).await
    }

    /// As [`Self::calls`], in this environment.
    pub async fn calls_in(&self, environment: &[(&str, &Path)], steps: &[Value]) -> Vec<Value> {
        let mut command = self.program("object_storage/calls.py");
        command.envs(environment.iter().copied());
        let mut process = Process::start(command.arg(Value::from(steps).to_string()));
        let status = process.exit().await;
        let said = process.output();
        assert!(status.success(), "{said}");
        let answers = said.lines().find(|line| line.starts_with('['));
        let answers: Vec<Value> = serde_json::from_str(answers.expect(&said)).expect(&said);
        assert_eq!(answers.len(), steps.len(), "{said}");
        answers
    }

    /// What is in a bucket, asked of the gateway itself.
    pub async fn state(&self, bucket: &str) -> Value {
        let step = serde_json::json!({ "url": self.url(), "state": bucket });
        self.calls(&[step]).await.remove(0)
    }
}
