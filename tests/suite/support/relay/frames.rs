//! The protocol's messages: where they begin and end, and what a client's messages ask for.
//! See "Message Formats" in the manual of Postgres.

use std::collections::HashMap;

use bytes::{Buf as _, Bytes, BytesMut};

use super::Statement;

/// Takes the next message, if it is whole: a type, a length that counts itself, the rest. The first
/// one of a connection has no type.
pub fn frame(buffer: &mut BytesMut, is_first: bool) -> Option<Bytes> {
    let from = usize::from(!is_first);
    let mut length = buffer.get(from..from + 4)?;
    let whole = from + usize::try_from(length.get_u32()).expect("a length fits");
    (buffer.len() >= whole).then(|| buffer.split_to(whole).freeze())
}

/// Puts a client's messages together to cycles.
#[derive(Default)]
pub struct Cycles {
    /// The statement of each prepared name.
    prepared: HashMap<String, Statement>,
    bytes: BytesMut,
    bound: Option<Statement>,
    executed: Option<Statement>,
}

impl Cycles {
    /// Takes the next message; yields what goes to the server in one piece with it, whether the
    /// server ends its answer with `ReadyForQuery`, and the statement that it executes, if it does
    /// more than prepare or show a sign of life.
    pub fn take(&mut self, message: &Bytes) -> Option<(Bytes, bool, Option<Statement>)> {
        self.bytes.extend_from_slice(message);
        let mut texts = message[5..].split(|byte| *byte == 0);
        let mut text = || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
        match message[0] {
            b'P' => {
                let (name, sql) = (text(), text());
                self.prepared.insert(name, Statement::of(&sql));
            }
            b'B' => {
                let (_portal, name) = (text(), text());
                self.bound = self.prepared.get(&name).copied();
            }
            b'E' => self.executed = self.executed.or(self.bound),
            b'Q' => self.executed = Some(Statement::of(&text())),
            _ => {}
        }
        let is_answered = matches!(message[0], b'Q' | b'S');
        let executed = self.executed.take_if(|_| is_answered);
        let is_whole = !b"PBEDC".contains(&message[0]);
        is_whole.then(|| (self.bytes.split().freeze(), is_answered, executed))
    }
}
