//! The hand-made cases: what is sent, and what must come of it.

use std::time::Duration;

use serde::Deserialize;

use super::field::{Field, Line, probe};
use super::recorder::Arrival;
use super::strict::Ends;
use super::template::{self, Listed, bytes, expand};

/// Between two writes of a case, so that they mostly arrive as two. Nothing rests on it: what must come of a
/// case is the same when they arrive as one.
const PAUSE: Duration = Duration::from_millis(3);

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Then {
    /// The next request must be answered as its own.
    Open,
    /// There must be no next request.
    Closed,
    /// One of the two.
    Either,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Status {
    Code(u16),
    /// `closed`: no answer.
    Word(String),
}

/// A case as a file has it, with what its group says laid under it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    basis: String,
    send: Listed<String>,
    status: Listed<Status>,
    #[serde(rename = "type")]
    kind: Option<String>,
    then: Option<Then>,
    #[serde(default)]
    arrives: Listed<String>,
    #[serde(default)]
    body: Listed<String>,
    framing: Option<String>,
    #[serde(default)]
    with: Vec<String>,
    #[serde(default)]
    without: Vec<String>,
    #[serde(default)]
    interim: Vec<String>,
    mark: Option<u64>,
}

/// One case, ready to be played under its own name.
#[derive(Clone, Debug)]
pub struct Case {
    /// File and name.
    pub name: String,
    /// What stands for it on the wire: in its targets, and in the key of its resource.
    id: String,
    basis: String,
    writes: Vec<Vec<u8>>,
    statuses: Vec<u16>,
    /// The problem type of a refusal.
    kind: Option<String>,
    interim: Vec<String>,
    then: Then,
    /// Method and target of each request that must arrive, in order.
    arrives: Vec<String>,
    bodies: Vec<Vec<u8>>,
    framing: Option<Ends>,
    /// Lines that the first arrival must have, each once and no other of that name.
    with: Vec<String>,
    /// Names that it must not have.
    without: Vec<String>,
    /// The mark that must be left; else none, if nothing may arrive.
    mark: Option<u64>,
}

/// All cases of `tests/edge`.
pub fn all() -> Vec<Case> {
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
pub fn of_file(file: &str, table: &toml::Table, from: usize) -> Vec<Case> {
    let groups = table["group"].as_array().expect("[[group]]");
    let mut cases = Vec::new();
    for group in groups {
        let mut shared = group.as_table().expect("a table").clone();
        let named = shared.remove("case").expect("[group.case]");
        for (name, said) in named.as_table().expect("a table") {
            let mut merged = shared.clone();
            match said {
                toml::Value::Table(said) => merged.extend(said.clone()),
                send => {
                    merged.insert("send".into(), send.clone());
                }
            }
            let name = format!("{file}/{name}");
            let raw: Raw = merged
                .try_into()
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            // Of one length, so that none is part of another.
            let id = format!("k{:04}", from + cases.len());
            cases.push(Case::new(name, id, raw));
        }
    }
    cases
}

impl Case {
    fn new(name: String, id: String, raw: Raw) -> Self {
        let statuses: Vec<u16> = raw
            .status
            .list()
            .into_iter()
            .filter_map(Status::code)
            .collect();
        let refused = statuses.last().is_none_or(|status| *status >= 400);
        let default = if refused { Then::Either } else { Then::Open };
        let case = Self {
            writes: raw
                .send
                .list()
                .iter()
                .map(|text| bytes(&expand(text, &id)))
                .collect(),
            kind: raw.kind,
            interim: raw.interim,
            then: raw.then.unwrap_or(default),
            arrives: raw
                .arrives
                .list()
                .iter()
                .map(|text| expand(text, &id))
                .collect(),
            bodies: raw
                .body
                .list()
                .iter()
                .map(|text| bytes(&expand(text, &id)))
                .collect(),
            framing: raw.framing.map(|word| match &*word {
                "none" => Ends::None,
                "length" => Ends::Length,
                "chunked" => Ends::Chunked,
                other => panic!("{name}: the framing {other}"),
            }),
            with: raw.with.iter().map(|text| expand(text, &id)).collect(),
            without: raw.without,
            mark: raw.mark,
            basis: raw.basis,
            statuses,
            name,
            id,
        };
        let name = &case.name;
        let answered = case.statuses.iter().filter(|status| **status < 300).count();
        assert!(
            answered == 0 || !case.arrives.is_empty() || case.mark.is_some(),
            "{name}: what arrives?"
        );
        assert!(
            case.kind.is_some() || !refused || case.statuses.is_empty(),
            "{name}: of which type?"
        );
        assert!(
            case.basis.starts_with("RFC ") || case.basis.starts_with("policy: "),
            "{name}: {}",
            case.basis
        );
        case
    }

    /// Sends it, reads what comes, and asks whether the connection goes on.
    pub async fn play(&self, field: &Field) -> Result<(), String> {
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
            let wanted = self.kind.clone().filter(|_| *status >= 400);
            if own != wanted {
                return Err(format!(
                    "{status} of the type {own:?}, instead of {wanted:?}"
                ));
            }
            if *status >= 400 && answer.header("content-type") != Some("application/problem+json") {
                return Err(format!("{:?} of no problem", answer.header("content-type")));
            }
            let interim: Vec<&str> = answer.interim.iter().map(|head| head.word(1)).collect();
            if at == 0 && interim != self.interim {
                return Err(format!("the interim answers {interim:?}"));
            }
        }
        line.send(&probe(&self.id)).await;
        match line.answer("GET").await? {
            None if self.then == Then::Open => Err("closed, where the connection goes on".into()),
            None => Ok(()),
            Some(answer) if self.then == Then::Closed || self.statuses.is_empty() => Err(format!(
                "{}, where the connection was to be closed: {}",
                answer.head.start,
                answer.text().trim()
            )),
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
            .arrives
            .get(at)
            .filter(|_| self.arrives.len() == self.statuses.len());
        let sent = self.writes.concat();
        let first = sent.split(|byte| *byte == b' ').next().unwrap_or_default();
        match line {
            Some(line) => line.split(' ').next().unwrap_or_default().to_owned(),
            None if at == 0 => String::from_utf8_lossy(first).into_owned(),
            None => "GET".to_owned(),
        }
    }

    /// Whether the arrivals that name it, and the marks, are what they must be.
    pub fn settle(&self, arrivals: &[Arrival], marks: &[(String, u64)]) -> Result<(), String> {
        let probe = format!("GET /probe/{}", self.id);
        let of_it = arrivals.iter().filter(|arrival| arrival.names(&self.id));
        let mine: Vec<&Arrival> = of_it.filter(|arrival| arrival.line() != probe).collect();
        let lines: Vec<String> = mine.iter().map(|arrival| arrival.line()).collect();
        if lines != self.arrives {
            return Err(format!("{lines:?} arrived, instead of {:?}", self.arrives));
        }
        for (arrival, body) in mine.iter().zip(&self.bodies) {
            let came = arrival.read.as_ref().map(|message| &message.body);
            if came != Ok(body) {
                return Err(format!(
                    "the body {:?}",
                    came.map(|body| body.escape_ascii().to_string())
                ));
            }
        }
        if let Some(Ok(first)) = mine.first().map(|arrival| &arrival.read) {
            if self.framing.is_some_and(|framing| framing != first.ends) {
                return Err(format!("framed by {:?}", first.ends));
            }
            for wanted in &self.with {
                let (name, value) = wanted.split_once(": ").unwrap_or((wanted, ""));
                let came: Vec<&str> = first.all(name).chain(trailers(first, name)).collect();
                if came != [value] {
                    return Err(format!("{name}: {came:?}, instead of {value:?}"));
                }
            }
            for name in &self.without {
                let came: Vec<&str> = first.all(name).chain(trailers(first, name)).collect();
                if !came.is_empty() {
                    return Err(format!("{name}: {came:?}, where none may be"));
                }
            }
        }
        let marked = marks
            .iter()
            .find(|(key, _)| key.contains(&self.id))
            .map(|(_, mark)| *mark);
        if (self.mark.is_some() || self.arrives.is_empty()) && marked != self.mark {
            return Err(format!(
                "left the mark {marked:?}, instead of {:?}",
                self.mark
            ));
        }
        Ok(())
    }

    /// What a failure prints.
    pub fn describe(&self, why: &str) -> String {
        let writes: Vec<String> = self
            .writes
            .iter()
            .map(|bytes| super::field::shown(bytes))
            .collect();
        format!(
            "{} ({}): {why}\n  sent      {}\n  expected  {:?} {} then {:?}, arrivals {:?}",
            self.name,
            self.basis,
            writes.join("\n  then      "),
            self.statuses,
            self.kind.as_deref().unwrap_or("-"),
            self.then,
            self.arrives,
        )
    }
}

fn trailers<'a>(message: &'a super::strict::Message, name: &str) -> impl Iterator<Item = &'a str> {
    let named = message
        .trailers
        .iter()
        .filter(move |(key, _)| key.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.as_str())
}

impl Status {
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
