//! The hand-made cases: what is sent, and what must come of it.

use std::time::Duration;

use serde::Deserialize;

use super::stage::{Line, Stage, probe};
use super::template::{self, CaseEntry, Listed, bytes, expand};
use super::wanted::Wanted;

/// Between two writes of a case, so that they mostly arrive as two. Nothing rests on it: what must
/// come of a case is the same when they arrive as one.
const PAUSE: Duration = Duration::from_millis(3);

/// The fate of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Afterwards {
    /// The next request must be answered as its own.
    Open,
    /// There must be no next request.
    Closed,
    /// One of the two.
    Either,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum WantedStatus {
    Code(u16),
    /// `closed`: no answer.
    Word(String),
}

/// A case as a file has it, with what its group says laid under it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    basis: String,
    send: Listed<String>,
    status: Listed<WantedStatus>,
    #[serde(rename = "type")]
    kind: Option<String>,
    then: Option<Afterwards>,
    #[serde(default)]
    interim: Vec<String>,
}

/// One case, ready to be played under its own name.
#[derive(Clone, Debug)]
pub struct EdgeCase {
    /// File and name.
    pub name: String,
    /// Its name on the wire: in its targets, and in the key of its resource.
    id: String,
    basis: String,
    writes: Vec<Vec<u8>>,
    statuses: Vec<u16>,
    /// The problem type of a refusal.
    kind: Option<String>,
    interim: Vec<String>,
    then: Afterwards,
    pub wanted: Wanted,
}

/// All cases of `tests/edge`.
pub fn all() -> Vec<EdgeCase> {
    let mut cases = Vec::new();
    for (file, table) in template::files("tests/edge") {
        if file != "http2" {
            cases.extend(of_file(&file, &table, cases.len()));
        }
    }
    cases
}

/// The cases of one file. `from`: how many there were before.
///
/// # Panics
/// If the file is not as the README says.
pub fn of_file(file: &str, table: &toml::Table, from: usize) -> Vec<EdgeCase> {
    let entries = template::entries(file, table, "send", from);
    entries.into_iter().map(EdgeCase::new).collect()
}

impl EdgeCase {
    fn new(entry: CaseEntry) -> Self {
        let CaseEntry {
            name,
            id,
            mut table,
        } = entry;
        let wanted = Wanted::take(&mut table, &id);
        let raw: RawCase = table
            .try_into()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let statuses = raw.status.list().into_iter().filter_map(WantedStatus::code);
        let statuses: Vec<u16> = statuses.collect();
        let refused = statuses.last().is_none_or(|status| *status >= 400);
        assert!(
            raw.kind.is_some() || !refused || statuses.is_empty(),
            "{name}: of which type?"
        );
        let default = if refused {
            Afterwards::Either
        } else {
            Afterwards::Open
        };
        let writes = raw.send.list();
        Self {
            writes: writes
                .iter()
                .map(|text| bytes(&expand(text, &id)))
                .collect(),
            kind: raw.kind,
            interim: raw.interim,
            then: raw.then.unwrap_or(default),
            basis: raw.basis,
            statuses,
            wanted,
            name,
            id,
        }
    }

    /// Sends it, reads what comes, and asks whether the connection goes on.
    pub async fn play(&self, field: &Stage) -> Result<(), String> {
        let mut line = Line::open(field.proxy.data()).await?;
        for (at, write) in self.writes.iter().enumerate() {
            if at > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            line.send(write).await;
        }
        for (at, status) in self.statuses.iter().enumerate() {
            let answer = line.answer(&self.method(at)).await?;
            let answer = answer.ok_or_else(|| format!("closed, instead of the answer {status}"))?;
            if answer.status() != *status {
                return Err(format!("{}: {}", answer.head.start, answer.text().trim()));
            }
            let own = answer.outcome().map(str::to_owned);
            let is_own = *status >= 400 || self.wanted.lines.is_empty();
            let wanted = self.kind.clone().filter(|_| is_own);
            if own != wanted {
                return Err(format!(
                    "{status} of the type {own:?}, instead of {wanted:?}"
                ));
            }
            if *status >= 400 && answer.header("content-type") != Some("application/problem+json") {
                return Err(format!("{:?} of no problem", answer.header("content-type")));
            }
            let says_close = answer.header("connection") == Some("close");
            if *status >= 400 && self.then == Afterwards::Closed && !says_close {
                return Err(format!("{:?} ends a connection", answer.head));
            }
            let interim: Vec<&str> = answer.interim.iter().map(|head| head.word(1)).collect();
            if at == 0 && interim != self.interim {
                return Err(format!("the interim answers {interim:?}"));
            }
        }
        line.send(&probe(&self.id)).await;
        match line.answer("GET").await? {
            None if self.then == Afterwards::Open => {
                Err("closed, where the connection goes on".into())
            }
            None => Ok(()),
            Some(answer) if self.then == Afterwards::Closed || self.statuses.is_empty() => {
                Err(format!(
                    "{}, where the connection was to be closed: {}",
                    answer.head.start,
                    answer.text().trim()
                ))
            }
            Some(answer) if answer.header("x-saw") == Some(&*format!("GET /probe/{}", self.id)) => {
                Ok(())
            }
            Some(answer) => Err(format!(
                "the next request got the answer of another: {} {:?}",
                answer.head.start,
                answer.header("x-saw")
            )),
        }
    }

    /// The method that the answer of this place is for.
    fn method(&self, at: usize) -> String {
        let line = self
            .wanted
            .lines
            .get(at)
            .filter(|_| self.wanted.lines.len() == self.statuses.len());
        let sent = self.writes.concat();
        let first = sent.split(|byte| *byte == b' ').next().unwrap_or_default();
        match line {
            Some(line) => line.split(' ').next().unwrap_or_default().to_owned(),
            None if at == 0 => String::from_utf8_lossy(first).into_owned(),
            None => "GET".to_owned(),
        }
    }

    /// The text that a failure prints.
    pub fn describe(&self, why: &str) -> String {
        let writes: Vec<String> = self
            .writes
            .iter()
            .map(|bytes| super::stage::shown(bytes))
            .collect();
        format!(
            "{} ({}): {why}\n  sent      {}\n  expected  {:?} {} then {:?}, arrivals {:?}",
            self.name,
            self.basis,
            writes.join("\n  then      "),
            self.statuses,
            self.kind.as_deref().unwrap_or("-"),
            self.then,
            self.wanted.lines,
        )
    }
}

impl WantedStatus {
    fn code(self) -> Option<u16> {
        match self {
            Self::Code(code) => Some(code),
            Self::Word(word) => {
                assert_eq!(word, "closed", "a status is a number or `closed`");
                None
            }
        }
    }
}
