//! The protocol's messages: where they begin and end, and what a client's messages ask for.
//! See "Message Formats" in the manual of Postgres.

use std::collections::HashMap;

use bytes::{Buf as _, Bytes, BytesMut};

use super::Statement;

/// The first packet of a connection: it has a length and a code, but no type.
pub enum Opening {
    Starts(Bytes),
    AsksForEncryption,
    Cancels(Bytes),
}

/// Takes the first packet, if it is whole.
pub fn opening(buffer: &mut BytesMut) -> Option<Opening> {
    let mut head = buffer.get(..8)?;
    let (length, code) = (head.get_u32(), head.get_u32());
    let length = usize::try_from(length).expect("a length fits");
    if buffer.len() < length {
        return None;
    }
    let packet = buffer.split_to(length).freeze();
    Some(match code {
        80_877_102 => Opening::Cancels(packet),
        80_877_103 | 80_877_104 => Opening::AsksForEncryption,
        _ => Opening::Starts(packet),
    })
}

/// Takes the next message, if it is whole: a type, a length that counts itself, the rest.
pub fn frame(buffer: &mut BytesMut) -> Option<Bytes> {
    let mut length = buffer.get(1..5)?;
    let whole = 1 + usize::try_from(length.get_u32()).expect("a length fits");
    (buffer.len() >= whole).then(|| buffer.split_to(whole).freeze())
}

/// Messages that go to the server in one piece.
pub struct Cycle {
    pub bytes: Bytes,
    pub kind: MessageKind,
}

/// The statement of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Nothing that the server ends with its `ReadyForQuery`: a password, say, or the goodbye.
    Aside,
    /// A preparation, or a sign of life.
    Plain,
    Executes(Statement),
}

/// Puts a client's messages together to cycles.
#[derive(Default)]
pub struct Cycles {
    /// The statement of each prepared name.
    prepared: HashMap<Bytes, Statement>,
    bytes: BytesMut,
    bound: Option<Statement>,
    executed: Option<Statement>,
}

impl Cycles {
    /// Takes the next message; yields what goes on with it.
    pub fn take(&mut self, message: &Bytes) -> Option<Cycle> {
        self.bytes.extend_from_slice(message);
        let mut texts = message[5..].split(|byte| *byte == 0);
        let mut text = || Bytes::copy_from_slice(texts.next().unwrap_or_default());
        let kind = match message[0] {
            b'P' => {
                let (name, sql) = (text(), text());
                let sql = String::from_utf8_lossy(&sql);
                self.prepared.insert(name, Statement::of(&sql));
                return None;
            }
            b'B' => {
                let (_portal, name) = (text(), text());
                self.bound = self.prepared.get(&name).copied();
                return None;
            }
            b'E' => {
                self.executed = self.executed.or(self.bound);
                return None;
            }
            b'D' | b'C' => return None,
            b'Q' => MessageKind::Executes(Statement::of(&String::from_utf8_lossy(&text()))),
            b'S' => {
                let executed = self.executed.take();
                executed.map_or(MessageKind::Plain, MessageKind::Executes)
            }
            _ => MessageKind::Aside,
        };
        Some(Cycle {
            bytes: self.bytes.split().freeze(),
            kind,
        })
    }
}
