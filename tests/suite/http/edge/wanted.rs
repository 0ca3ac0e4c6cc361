//! The requests of a case that must reach the upstream, and the mark that must be left.

use super::recorder::RecordedRequest;
use super::stage::StageEnd;
use super::strict::Ends;
use super::template::{Listed, bytes, expand};
use crate::support::wire::via;

/// The arrivals that a case expects.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The case's name on the wire.
    id: String,
    /// Method and target of each request that must arrive, in order; no other may.
    pub lines: Vec<String>,
    bodies: Vec<Vec<u8>>,
    framing: Option<Ends>,
    /// Lines that the first arrival must have, each once and no other of that name.
    with: Vec<String>,
    /// Names that it must not have.
    without: Vec<String>,
    /// The mark that must be left; else none, if nothing may arrive.
    mark: Option<u64>,
}

impl Wanted {
    /// Takes its part out of a case.
    pub fn take(table: &mut toml::Table, id: &str) -> Self {
        let mut texts = |name: &str| -> Vec<String> {
            let listed: Option<Listed<String>> = value_of(table, name);
            let texts = listed.unwrap_or_default().list();
            texts.iter().map(|text| expand(text, id)).collect()
        };
        let (lines, bodies) = (texts("arrives"), texts("body"));
        let (with, without) = (texts("with"), texts("without"));
        Self {
            id: id.to_owned(),
            bodies: bodies.iter().map(|text| bytes(text)).collect(),
            mark: value_of(table, "mark"),
            framing: value_of(table, "framing"),
            lines,
            with,
            without,
        }
    }

    /// Returns whether the arrivals that name the case, and its mark, are what they must be.
    pub fn settle(&self, end: &StageEnd) -> Result<(), String> {
        let id = &*self.id;
        let probe = format!("GET /probe/{id}");
        let of_it = end.arrivals.iter().filter(|arrival| arrival.names(id));
        let mine: Vec<&RecordedRequest> = of_it.filter(|arrival| arrival.line() != probe).collect();
        let lines: Vec<String> = mine.iter().map(|arrival| arrival.line()).collect();
        if lines != self.lines {
            return Err(format!("{lines:?} arrived, instead of {:?}", self.lines));
        }
        for (arrival, body) in mine.iter().zip(&self.bodies) {
            let came = arrival.read.as_ref().map(|message| &message.body);
            if came != Ok(body) {
                return Err(format!("the body {came:?}"));
            }
        }
        if let Some(Ok(first)) = mine.first().map(|arrival| &arrival.read) {
            if self.framing.is_some_and(|framing| framing != first.ends) {
                return Err(format!("framed by {:?}", first.ends));
            }
            for wanted in &self.with {
                let (name, value) = wanted.split_once(": ").unwrap_or((wanted, ""));
                let came: Vec<String> = first.all(name).map(via).collect();
                if came != [value] {
                    return Err(format!("{name}: {came:?}, instead of {value:?}"));
                }
            }
            for name in &self.without {
                let came: Vec<&str> = first.all(name).collect();
                if !came.is_empty() {
                    return Err(format!("{name}: {came:?}, where none may be"));
                }
            }
        }
        let mut marks = end.marks.iter();
        let marked = marks.find(|(key, _)| key.contains(id));
        let marked = marked.map(|(_, mark)| *mark);
        if (self.mark.is_some() || self.lines.is_empty()) && marked != self.mark {
            let wanted = self.mark;
            return Err(format!("left the mark {marked:?}, instead of {wanted:?}"));
        }
        Ok(())
    }
}

fn value_of<T: serde::de::DeserializeOwned>(table: &mut toml::Table, name: &str) -> Option<T> {
    let value = table.remove(name)?.try_into();
    Some(value.unwrap_or_else(|error| panic!("{name}: {error}")))
}
