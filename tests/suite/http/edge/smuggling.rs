//! Smuggling mutations: templates with sets of bytes and words, expanded to some thousands of
//! requests that each hope to be read in two ways. Each must come to nothing more than
//! this: a 4xx (or 501, 505) and the end of the connection, or exactly one request upstream with
//! one reading; never two, and never another answer for the request that follows.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use serde::Deserialize;

use super::recorder::{self, RecordedRequest};
use super::stage::{Line, probe, shown};
use super::template::{self, Listed, byte_set, bytes, expand};
use crate::support::Answer;

/// A request around a mutated line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrap {
    /// `{line}` is the line; `{length}` the length of the body.
    head: String,
    #[serde(default)]
    body: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMutation {
    /// The attempt, in words.
    about: String,
    /// Lines for the file's wraps, or else
    #[serde(default)]
    line: Listed<String>,
    /// heads and
    #[serde(default)]
    head: Listed<String>,
    /// a body of its own, or the file's.
    body: Option<String>,
    /// The values of `{x}`: words,
    #[serde(default)]
    words: Vec<String>,
    /// and single bytes.
    bytes: Option<String>,
    /// Where it is known exactly: the status of the first answer.
    status: Option<u16>,
    /// Framing is not touched, so that the connection may go on after a refusal.
    #[serde(default)]
    goes_on: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MutationFile {
    #[serde(default)]
    head: String,
    #[serde(default)]
    body: String,
    #[serde(default)]
    wrap: BTreeMap<String, Wrap>,
    mutation: BTreeMap<String, RawMutation>,
}

/// One request that hopes to be two.
#[derive(Clone, Debug)]
pub struct Mutation {
    name: String,
    id: String,
    bytes: Vec<u8>,
    status: Option<u16>,
    goes_on: bool,
}

/// The answers on the connection: until the next request's own answer, or the end.
pub type Played = Result<Vec<Answer>, String>;

/// All mutations of `tests/edge/smuggling`.
pub fn all() -> Vec<Mutation> {
    let mut all = Vec::new();
    for (file, table) in template::files("tests/edge/smuggling") {
        let of: Result<MutationFile, _> = table.try_into();
        let of = of.unwrap_or_else(|error| panic!("{file}: {error}"));
        for (name, raw) in of.mutation {
            let mut shapes = Vec::new();
            for line in raw.line.list() {
                let around = |text: &str| text.replace("{line}", &line);
                let wraps = of.wrap.values();
                shapes.extend(wraps.map(|wrap| (around(&wrap.head), around(&wrap.body))));
            }
            let body = raw.body.unwrap_or_else(|| of.body.clone());
            for head in raw.head.list() {
                shapes.push((head, body.clone()));
            }
            if shapes.is_empty() {
                shapes.push((of.head.clone(), body));
            }
            let mut values = raw.words;
            let set = raw.bytes.as_deref().map(byte_set).unwrap_or_default();
            values.extend(set.into_iter().map(|byte| char::from(byte).to_string()));
            if values.is_empty() {
                values.push(String::new());
            }
            for (head, body) in &shapes {
                for value in &values {
                    let id = format!("q{:05}", all.len());
                    let put_in = |text: &str| expand(&text.replace("{x}", value), &id);
                    let body = bytes(&put_in(body));
                    let head = put_in(head).replace("{length}", &body.len().to_string());
                    all.push(Mutation {
                        name: format!("{file}/{name} {value:?} ({})", raw.about),
                        bytes: [bytes(&head), body].concat(),
                        status: raw.status,
                        goes_on: raw.goes_on,
                        id,
                    });
                }
            }
        }
    }
    all
}

/// The arrivals by the mutation that they name.
pub fn by_name(arrivals: &[RecordedRequest]) -> HashMap<String, Vec<&RecordedRequest>> {
    let mut named: HashMap<String, Vec<&RecordedRequest>> = HashMap::new();
    for arrival in arrivals {
        let is_name = |word: &&[u8]| word[0] == b'q' && word[1..].iter().all(u8::is_ascii_digit);
        if let Some(name) = arrival.raw.windows(6).find(is_name) {
            let name = String::from_utf8_lossy(name).into_owned();
            named.entry(name).or_default().push(arrival);
        }
    }
    named
}

impl Mutation {
    /// Sends it with the next request right behind it, and reads to that one's answer or the end.
    pub async fn play(&self, to: SocketAddr) -> Played {
        let mut line = Line::open(to).await?;
        line.send(&[&*self.bytes, &probe(&self.id)].concat()).await;
        let mut answers = Vec::new();
        let method = self
            .bytes
            .split(|byte| *byte == b' ')
            .next()
            .unwrap_or_default();
        let mut method = String::from_utf8_lossy(method).into_owned();
        while let Some(answer) = line.answer(&method).await? {
            method = "GET".into();
            let is_probe = self.is_probe(&answer);
            answers.push(answer);
            if is_probe {
                break;
            }
        }
        Ok(answers)
    }

    fn is_probe(&self, answer: &Answer) -> bool {
        answer.header("x-saw") == Some(&*format!("GET /probe/{}", self.id))
    }

    /// Holds what came of it against the one thing that all of them must come to.
    pub fn judge(
        &self,
        played: Played,
        arrivals: &HashMap<String, Vec<&RecordedRequest>>,
        marks: &[(String, u64)],
    ) -> Result<(), String> {
        let answers = played?;
        let none = Vec::new();
        let all = arrivals.get(&self.id).unwrap_or(&none);
        let statuses: Vec<u16> = answers.iter().map(Answer::status).collect();
        if let Some(Err(why)) = (all.iter().map(|arrival| &arrival.read)).find(|read| read.is_err())
        {
            // A long body that never came whole was given up, upstream too.
            let given_up = why == recorder::BROKEN_OFF && all.len() == 1;
            return if given_up && statuses.len() == 1 && statuses[0] >= 400 {
                Ok(())
            } else {
                Err(format!("an arrival has more than one reading: {why}"))
            };
        }
        let (probes, mine): (Vec<String>, Vec<String>) = all
            .iter()
            .map(|arrival| arrival.line())
            .partition(|line| *line == format!("GET /probe/{}", self.id));
        let refused = |status: u16| (400..500).contains(&status) || status == 501 || status == 505;
        let found = || format!("answers {statuses:?}, arrivals {mine:?} and {probes:?}");
        if mine.len() > 1 || mine.iter().any(|line| line.contains("/smuggled/")) {
            return Err(format!("more than one request went through: {}", found()));
        }
        let Some(first) = statuses.first() else {
            return Err(format!("no answer: {}", found()));
        };
        if self.status.is_some_and(|status| status != *first) {
            return Err(format!(
                "{first}, instead of {:?}: {}",
                self.status,
                answers[0].text().trim()
            ));
        }
        let last_is_probe = answers.last().is_some_and(|answer| self.is_probe(answer));
        let good = if refused(*first) {
            let went_on = self.goes_on && last_is_probe && statuses.len() == 2 && probes.len() == 1;
            mine.is_empty() && (went_on || (statuses.len() == 1 && probes.is_empty()))
        } else {
            let own = 1 + usize::from(last_is_probe);
            let then_refused =
                statuses.len() == own + 1 && statuses.last().is_some_and(|last| refused(*last));
            *first == 200
                && !self.is_probe(&answers[0])
                && mine.len() == 1
                && probes.len() == usize::from(last_is_probe)
                && (statuses.len() == own || then_refused)
        };
        if !good {
            return Err(found());
        }
        let marked = marks.iter().any(|(key, _)| key.contains(&self.id));
        if mine.is_empty() && marked {
            return Err("a mark was left by what was not forwarded".into());
        }
        Ok(())
    }

    /// The text that a failure prints.
    pub fn describe(&self, why: &str) -> String {
        format!("{}: {why}\n  sent {}", self.name, shown(&self.bytes))
    }
}
