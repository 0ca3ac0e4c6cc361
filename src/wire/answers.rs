//! One connection to the upstream: which request each response answers, where it ends, and up to where
//! its bytes may be handed on.
//!
//! No byte of a head may be handed on before the whole head has passed; the bytes of a body may as they
//! come. One request is out at a time. What comes when none is (before the first, or behind a whole response)
//! answers nothing, and would be taken for the answer to the next: after it, as after every other
//! violation, the connection is good for nothing more. A response that was whole before stands.

use std::fmt;

use super::chunked::{BodyError, Chunks};
use super::head::{Framing, FramingFields, HeadLimits, fields, is_token};
use super::response::{ResponseError, ResponseHead, ResponseReader};

/// How many interim responses (1xx) one request may get. Each is thrown away, so they cost only time, which the
/// caller bounds; a `102` every few seconds over a long request is what they are for.
const MOST_INTERIM: u32 = 100;

/// What ended the trust in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Head(ResponseError),
    Body(BodyError),
    /// More than a hundred interim responses.
    Interim,
    /// A 101 that was not asked for.
    Unasked,
    /// Bytes before anything was written: the other side speaks first, and no request has gone over.
    Greeting,
    /// Bytes that no request is out for.
    Extra,
    /// A request was written while the one before was not answered, or does not parse: our own fault.
    Request,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the head of the response: {error}"),
            Self::Body(error) => write!(f, "the body of the response: {error}"),
            Self::Interim => write!(f, "more than {MOST_INTERIM} interim responses"),
            Self::Unasked => f.write_str("the upstream switched protocols unasked"),
            Self::Greeting => f.write_str("bytes before any request"),
            Self::Extra => f.write_str("bytes that answer no request"),
            Self::Request => f.write_str("a request out of turn"),
        }
    }
}

impl std::error::Error for Fault {}

/// What is known of the request that is out.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// HEAD: no response to it has content.
    head: bool,
    /// It asks to leave HTTP.
    upgrade: bool,
    interim: u32,
}

/// Where in a request the writing is.
#[derive(Clone, Debug)]
enum Writing {
    /// Between two.
    Between,
    /// What has been written of a head.
    Head(Vec<u8>),
    Length(u64),
    Chunked(Chunks),
}

#[derive(Clone, Debug)]
enum Reading {
    /// At the start of a response, or before.
    Head(ResponseReader),
    Length(u64),
    Chunked(Chunks),
    /// The connection's end is the response's.
    ToEnd,
    /// Not HTTP/1 any more.
    Through,
    Ended,
}

/// Follows a connection.
#[derive(Clone, Debug)]
pub struct Answers {
    limits: HeadLimits,
    writing: Writing,
    reading: Reading,
    /// `None`: every request has its whole answer.
    asked: Option<Asked>,
    /// Something has been written.
    begun: bool,
    /// The latest response was in HTTP/1.0.
    old: bool,
}

impl Answers {
    #[must_use]
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            writing: Writing::Between,
            reading: Reading::Head(ResponseReader::default()),
            asked: None,
            begun: false,
            old: false,
        }
    }

    /// Whether everything passes.
    #[must_use]
    pub const fn is_through(&self) -> bool {
        matches!(self.reading, Reading::Through)
    }

    /// Whether a request has begun whose answer is not whole, or that is not written whole.
    #[must_use]
    pub const fn is_out(&self) -> bool {
        let between = matches!(self.writing, Writing::Between);
        !self.is_through() && (self.asked.is_some() || !between)
    }

    /// Whether the connection has carried all it may, though nothing is wrong with it: its last response was in
    /// HTTP/1.0, and hyper would write HTTP/1.0 from then on, in which a body has a length or is not
    /// there, and leave a body without one out, without a word.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.old && self.begun && !self.is_out()
    }

    /// These bytes have been written.
    ///
    /// # Errors
    ///
    /// Where they are no request, or come out of turn.
    pub fn wrote(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        self.begun |= !bytes.is_empty();
        while !bytes.is_empty() && !self.is_through() {
            let taken = match &mut self.writing {
                Writing::Between => {
                    if self.asked.is_some() {
                        return Err(self.end(Fault::Request));
                    }
                    self.writing = Writing::Head(Vec::new());
                    0
                }
                Writing::Head(held) => {
                    let before = held.len();
                    // Mostly it is written in one piece, and needs no copy.
                    if before > 0 {
                        held.extend_from_slice(bytes);
                    }
                    let whole = if before == 0 { bytes } else { &held[..] };
                    let asked = self.asked.get_or_insert_default();
                    asked.head = whole.starts_with(b"HEAD ");
                    let Some(end) = end_of_head(whole, before) else {
                        if before == 0 {
                            held.extend_from_slice(bytes);
                        }
                        return Ok(());
                    };
                    let Some((upgrade, framing)) = request(&whole[..end]) else {
                        return Err(self.end(Fault::Request));
                    };
                    asked.upgrade = upgrade;
                    self.writing = match framing {
                        Framing::None | Framing::Length(0) => Writing::Between,
                        Framing::Length(length) => Writing::Length(length),
                        Framing::Chunked => Writing::Chunked(Chunks::default()),
                    };
                    end - before
                }
                Writing::Length(left) => {
                    let taken = (bytes.len() as u64).min(*left);
                    *left -= taken;
                    if *left == 0 {
                        self.writing = Writing::Between;
                    }
                    usize::try_from(taken).unwrap_or(bytes.len())
                }
                Writing::Chunked(chunks) => {
                    // Trailers as long as a head may be.
                    let limits = HeadLimits {
                        bytes: usize::MAX,
                        fields: usize::MAX,
                        ..self.limits
                    };
                    let Ok(taken) = chunks.read(bytes, &limits) else {
                        return Err(self.end(Fault::Request));
                    };
                    if chunks.is_end() {
                        self.writing = Writing::Between;
                    }
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Takes what has come: what the last call did not release, and what was added. Returns how many of
    /// these bytes may be handed on, which holds beside a fault too.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Result<(), Fault>) {
        let mut released = 0;
        loop {
            let rest = &bytes[released..];
            if rest.is_empty() {
                return (released, Ok(()));
            }
            match self.advance(rest) {
                Ok(Some(taken)) => released += taken,
                Ok(None) => return (released, Ok(())),
                Err(fault) => return (released, Err(self.end(fault))),
            }
        }
    }

    /// One step; `None`: more has to come first.
    fn advance(&mut self, rest: &[u8]) -> Result<Option<usize>, Fault> {
        match &mut self.reading {
            Reading::Head(reader) => {
                let Some(asked) = &mut self.asked else {
                    return Err(if self.begun {
                        Fault::Extra
                    } else {
                        Fault::Greeting
                    });
                };
                let read = reader.read(rest, &self.limits).map_err(Fault::Head)?;
                let Some(head) = read else {
                    return Ok(None);
                };
                *reader = ResponseReader::default();
                match head.status {
                    101 if asked.upgrade => self.reading = Reading::Through,
                    101 => return Err(Fault::Unasked),
                    100..200 => {
                        asked.interim += 1;
                        if asked.interim > MOST_INTERIM {
                            return Err(Fault::Interim);
                        }
                    }
                    _ => {
                        let bodiless = asked.head || matches!(head.status, 204 | 304);
                        self.body(bodiless, head);
                    }
                }
                Ok(Some(head.length))
            }
            Reading::Length(left) => {
                let taken = (rest.len() as u64).min(*left);
                *left -= taken;
                if *left == 0 {
                    self.answered();
                }
                Ok(Some(usize::try_from(taken).unwrap_or(rest.len())))
            }
            Reading::Chunked(chunks) => {
                let taken = chunks.read(rest, &self.limits).map_err(Fault::Body)?;
                if chunks.is_end() {
                    self.answered();
                }
                Ok(Some(taken))
            }
            Reading::ToEnd | Reading::Through => Ok(Some(rest.len())),
            Reading::Ended => Ok(None),
        }
    }

    fn body(&mut self, bodiless: bool, head: ResponseHead) {
        self.old = !head.http_11;
        match head.framing {
            _ if bodiless => self.answered(),
            Framing::Length(0) => self.answered(),
            Framing::Length(length) => self.reading = Reading::Length(length),
            Framing::Chunked => self.reading = Reading::Chunked(Chunks::default()),
            Framing::None => self.reading = Reading::ToEnd,
        }
    }

    fn answered(&mut self) {
        self.reading = Reading::Head(ResponseReader::default());
        self.asked = None;
    }

    fn end(&mut self, fault: Fault) -> Fault {
        self.reading = Reading::Ended;
        fault
    }
}

/// Where the head ends, if it does; nothing before `from` has to be looked at again.
fn end_of_head(head: &[u8], from: usize) -> Option<usize> {
    let from = from.saturating_sub(3);
    let found = head[from..].windows(4).position(|end| end == b"\r\n\r\n")?;
    Some(from + found + 4)
}

/// What has to be known of a request's head: whether it asks to leave HTTP, and how its body is framed.
fn request(head: &[u8]) -> Option<(bool, Framing)> {
    let line = head.windows(2).position(|end| end == b"\r\n")?;
    let method = head.split(|byte| *byte == b' ').next()?;
    if !is_token(method) {
        return None;
    }
    let mut framing = FramingFields::default();
    let mut upgrade = false;
    for field in fields(&head[line + 2..]) {
        let field = field.ok()?;
        framing.note(&field).ok()?;
        upgrade |= field.is("upgrade");
    }
    Some((upgrade, framing.framing().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::chunked::ChunkError;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1000,
        fields: 10,
        target: 0,
    };
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    const HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n";
    const OPEN: &[u8] = b"GET / HTTP/1.1\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    /// What passes behind `request`, and the verdict; the same whatever the pieces are.
    fn answer(request: &[u8], bytes: &[u8]) -> (usize, Result<(), Fault>) {
        let mut whole = Answers::new(LIMITS);
        whole.wrote(request).expect("a request");
        let told = whole.feed(bytes);
        let mut piecewise = Answers::new(LIMITS);
        for byte in request {
            piecewise.wrote(&[*byte]).expect("a request");
        }
        let mut released = 0;
        for end in 1..=bytes.len() {
            let (more, verdict) = piecewise.feed(&bytes[released..end]);
            released += more;
            if verdict.is_err() {
                assert_eq!((released, verdict), told, "{}", bytes.escape_ascii());
                return told;
            }
        }
        assert_eq!((released, Ok(())), told, "{}", bytes.escape_ascii());
        told
    }

    #[test]
    fn a_response_passes_and_what_follows_it_does_not() {
        let whole = OK.len();
        assert_eq!(answer(GET, OK), (whole, Ok(())));
        let more = [OK, b"\r\n"].concat();
        assert_eq!(answer(GET, &more), (whole, Err(Fault::Extra)));
        let two = [OK, OK].concat();
        assert_eq!(answer(GET, &two), (whole, Err(Fault::Extra)));
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n";
        assert_eq!(answer(GET, chunked), (chunked.len(), Ok(())));
        let more = [&chunked[..], b"0"].concat();
        assert_eq!(answer(GET, &more), (chunked.len(), Err(Fault::Extra)));
        let to_end = b"HTTP/1.0 200 OK\r\n\r\nall of it\r\nHTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(answer(GET, to_end), (to_end.len(), Ok(())));
    }

    #[test]
    fn after_http_1_0_a_connection_is_over() {
        const OLD: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let mut answers = Answers::new(LIMITS);
        assert!(!answers.is_over());
        answers
            .wrote(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\na")
            .expect("a request");
        assert_eq!(answers.feed(&OLD[..OLD.len() - 1]), (OLD.len() - 1, Ok(())));
        assert_eq!(answers.feed(b"k"), (1, Ok(())));
        assert!(!answers.is_over(), "the upload goes on");
        answers.wrote(b"bc").expect("the rest");
        assert!(answers.is_over());
    }

    #[test]
    fn a_head_passes_only_whole() {
        let mut answers = Answers::new(LIMITS);
        answers.wrote(GET).expect("a request");
        let head = OK.len() - 2;
        assert_eq!(answers.feed(&OK[..head - 1]), (0, Ok(())));
        assert_eq!(answers.feed(&OK[..head]), (head, Ok(())));
        assert_eq!(answers.feed(b"o"), (1, Ok(())));
        assert_eq!(answers.feed(b"k"), (1, Ok(())));
        assert_eq!(answers.feed(b"k"), (0, Err(Fault::Extra)));
        assert_eq!(answers.feed(b"k"), (0, Ok(())), "nothing more passes");
    }

    #[test]
    fn some_responses_have_no_body() {
        let head = OK.len() - 2;
        assert_eq!(answer(HEAD, &OK[..head]), (head, Ok(())));
        assert_eq!(answer(HEAD, OK), (head, Err(Fault::Extra)));
        for head in [
            &b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n"[..],
            b"HTTP/1.1 204 No Content\r\n\r\n",
        ] {
            assert_eq!(answer(GET, head), (head.len(), Ok(())));
            let more = [head, b"ok"].concat();
            assert_eq!(answer(GET, &more), (head.len(), Err(Fault::Extra)));
        }
    }

    #[test]
    fn interim_responses_pass_in_bounds() {
        let interim = &b"HTTP/1.1 102 Processing\r\n\r\n"[..];
        let many = [&interim.repeat(100), OK].concat();
        assert_eq!(answer(GET, &many), (many.len(), Ok(())));
        let more = interim.repeat(101);
        let passed = interim.len() * 100;
        assert_eq!(answer(GET, &more), (passed, Err(Fault::Interim)));
    }

    #[test]
    fn a_switch_passes_where_it_was_asked_for() {
        let switch = b"HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n\0\n anything";
        assert_eq!(answer(OPEN, switch), (switch.len(), Ok(())));
        assert_eq!(answer(GET, switch), (0, Err(Fault::Unasked)));
        let mut answers = Answers::new(LIMITS);
        answers.wrote(OPEN).expect("a request");
        let (_, verdict) = answers.feed(switch);
        verdict.expect("it was asked for");
        assert!(answers.is_through());
        assert_eq!(answers.wrote(b"\0 any \n thing"), Ok(()));
        // Refused, it is an ordinary request, and the next one may follow.
        let mut answers = Answers::new(LIMITS);
        answers.wrote(OPEN).expect("a request");
        assert_eq!(answers.feed(OK), (OK.len(), Ok(())));
        answers.wrote(GET).expect("a request");
        assert_eq!(answers.feed(switch), (0, Err(Fault::Unasked)));
    }

    #[test]
    fn one_request_is_out_at_a_time() {
        let mut answers = Answers::new(LIMITS);
        assert_eq!(answers.clone().feed(OK), (0, Err(Fault::Greeting)));
        for _ in 0..3 {
            answers.wrote(GET).expect("a request");
            assert_eq!(answers.feed(OK), (OK.len(), Ok(())));
        }
        assert!(!answers.is_out());
        answers.wrote(GET).expect("a request");
        assert!(answers.is_out());
        assert_eq!(answers.clone().wrote(GET), Err(Fault::Request));
        let two = [OK, b""].concat();
        assert_eq!(answers.feed(&two), (two.len(), Ok(())));
    }

    #[test]
    fn an_early_answer_lets_the_upload_end() {
        for (head, body) in [
            (
                &b"PUT / HTTP/1.1\r\ncontent-length: 10\r\n\r\n"[..],
                &b"0123456789"[..],
            ),
            (
                b"PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
                b"a\r\nHEAD / HTT\r\n0\r\na: b\r\n\r\n",
            ),
        ] {
            let mut answers = Answers::new(LIMITS);
            answers.wrote(head).expect("a request");
            answers.wrote(&body[..4]).expect("a part");
            assert_eq!(answers.feed(OK), (OK.len(), Ok(())));
            assert_eq!(answers.clone().feed(OK), (0, Err(Fault::Extra)));
            assert!(answers.is_out());
            answers.wrote(&body[4..]).expect("the rest");
            assert!(!answers.is_out());
            assert_eq!(answers.clone().feed(OK), (0, Err(Fault::Extra)));
            answers.wrote(HEAD).expect("the next request");
            let head = OK.len() - 2;
            assert_eq!(answers.feed(&OK[..head]), (head, Ok(())));
            answers.wrote(GET).expect("the next request");
            assert_eq!(answers.feed(OK), (OK.len(), Ok(())));
        }
    }

    #[test]
    fn a_malformed_body_breaks_off() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nx\r\n";
        let told = Fault::Body(BodyError::Chunk(ChunkError::Size));
        let mut answers = Answers::new(LIMITS);
        answers.wrote(GET).expect("a request");
        let good = chunked.len() - 3;
        assert_eq!(answers.feed(&chunked[..good]), (good, Ok(())));
        assert_eq!(answers.feed(&chunked[good..]), (0, Err(told)));
        assert_eq!(
            answers.feed(b"0\r\n\r\n"),
            (0, Ok(())),
            "nothing more passes"
        );
    }
}
