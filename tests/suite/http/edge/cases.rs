//! The hand-made cases: what is sent, and what must come of it.

use std::time::Duration;

use serde::Deserialize;

use super::stage::{self, Line, Stage, probe};
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

/// A case as a file has it, with what its group says laid under it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    send: Listed<String>,
    status: Listed<u16>,
    #[serde(rename = "type")]
    kind: Option<String>,
    then: Option<Afterwards>,
    #[serde(default)]
    interim: Vec<String>,
}

/// One case, ready to be played under its own name.
#[derive(Debug)]
pub struct EdgeCase {
    name: String,
    /// Its name on the wire: in its targets, and in the key of its resource.
    id: String,
    writes: Vec<Vec<u8>>,
    statuses: Vec<u16>,
    /// The problem type of a refusal.
    kind: Option<String>,
    /// The statuses before that of the first answer.
    interim: Vec<String>,
    then: Afterwards,
    pub wanted: Wanted,
}

/// The cases of one file.
pub fn of_file(file: &str, table: &toml::Table) -> Vec<EdgeCase> {
    let entries = template::entries(file, table, "send");
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
        let statuses = raw.status.list();
        let refused = statuses.last().is_some_and(|status| *status >= 400);
        assert!(raw.kind.is_some() || !refused, "{name}: of which type?");
        let default = if refused {
            Afterwards::Either
        } else {
            Afterwards::Open
        };
        let writes = raw.send.list();
        let writes = writes.iter().map(|text| bytes(&expand(text, &id)));
        Self {
            writes: writes.collect(),
            kind: raw.kind,
            interim: raw.interim,
            then: raw.then.unwrap_or(default),
            statuses,
            wanted,
            name,
            id,
        }
    }

    /// Sends it, reads what comes, and asks whether the connection goes on.
    pub async fn play(&self, stage: &Stage) -> Result<(), String> {
        let mut line = Line::open(stage.proxy.data()).await?;
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
            let is_own = *status >= 400 || self.wanted.lines.is_empty();
            let kind = self.kind.as_deref().filter(|_| is_own);
            if answer.outcome() != kind {
                return Err(format!("{status} of the type {:?}", answer.outcome()));
            }
            if *status >= 400 && answer.header("content-type") != Some("application/problem+json") {
                return Err(format!("{:?} of no problem", answer.header("content-type")));
            }
            let says_close = answer.header("connection") == Some("close");
            if *status >= 400 && self.then == Afterwards::Closed && !says_close {
                return Err(format!("{:?} ends a connection", answer.head));
            }
            let interim: Vec<&str> = answer.interim.iter().map(|head| head.word(1)).collect();
            let wanted = if at == 0 { &*self.interim } else { &[] };
            if interim != wanted {
                return Err(format!("the interim answers {interim:?}"));
            }
        }
        line.send(&probe(&self.id)).await;
        match line.answer("GET").await? {
            None if self.then == Afterwards::Open => {
                Err("closed, where the connection goes on".into())
            }
            None => Ok(()),
            Some(answer) if self.then == Afterwards::Closed => {
                let start = answer.head.start;
                Err(format!("{start}, where the connection was to be closed"))
            }
            Some(answer) if answer.header("x-saw") == Some(&*format!("GET /probe/{}", self.id)) => {
                Ok(())
            }
            Some(answer) => Err(format!("the answer of another request: {:?}", answer.head)),
        }
    }

    /// The method that the answer of this place is for.
    fn method(&self, at: usize) -> String {
        let (lines, sent) = (&self.wanted.lines, self.writes.concat());
        let line = match lines.get(at) {
            Some(line) if lines.len() == self.statuses.len() => line.as_bytes(),
            _ if at == 0 => &sent,
            _ => b"GET",
        };
        let method = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        String::from_utf8_lossy(method).into_owned()
    }

    /// The text that a failure prints.
    pub fn shown(&self) -> String {
        let sent = stage::shown(&self.writes.concat());
        format!(
            "{}\n  sent      {sent}\n  expected  {:?} {:?} then {:?}, {:?}",
            self.name, self.statuses, self.kind, self.then, self.wanted
        )
    }
}
