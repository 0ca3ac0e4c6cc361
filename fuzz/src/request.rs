//! Heads of requests: what passes, httparse and a reader that goes by lines find the same in, and
//! no server that knows a field by two names finds more; and pieces decide nothing.

use fencepost::http1::MessageError;
use fencepost::http1::content::Framing;
use fencepost::http1::head::HeadLimits;
use fencepost::http1::request::{NextHead, RequestReader};

use crate::message::{Message, growing, head_of, in_pieces, is_token, lines};
use crate::{Seen, Verdict, hold, target};

target!("request", &real);

/// Small, so that inputs reach them.
pub const LIMITS: HeadLimits = HeadLimits {
    bytes: 1024,
    fields: 16,
    target: 256,
};

/// What a head that passes says about the end of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub length: usize,
    pub framing: Framing,
}

/// The reading of the bytes so far by the function under test.
pub type Read = dyn Fn(&[&[u8]]) -> Result<Option<Whole>, String>;

/// The proxy's reading of a head that comes in these pieces.
pub fn real(pieces: &[&[u8]]) -> Result<Option<Whole>, String> {
    let mut reader = RequestReader::default();
    let read = growing(pieces, |buf| {
        Ok::<_, MessageError>(match reader.read(buf, &LIMITS)? {
            NextHead::Request(request) => Some(request),
            NextHead::None | NextHead::Http2 => None,
        })
    })?;
    Ok(read.map(|(length, request)| Whole {
        length,
        framing: request.framing,
    }))
}

pub fn check_of(read: &Read, data: &[u8]) -> Verdict {
    let whole = in_pieces(read, data)?;
    let Some(head) = head_of(whole, data)? else {
        return Ok(Seen::Refused);
    };
    hold!(
        head.length <= data.len().min(LIMITS.bytes),
        "{} bytes are taken for a head",
        head.length
    );
    let plain = Request::read(&data[..head.length])?;
    hold!(
        plain.message.fields.len() <= LIMITS.fields,
        "{} fields",
        plain.message.fields.len()
    );
    hold!(
        plain.target.len() <= LIMITS.target,
        "a target of {} bytes",
        plain.target.len()
    );

    let mut space = [httparse::EMPTY_HEADER; LIMITS.fields];
    let mut request = httparse::Request::new(&mut space);
    match request.parse(data) {
        Ok(httparse::Status::Complete(length)) => {
            hold!(
                length == head.length,
                "the head has {} bytes, and to httparse {length}",
                head.length
            );
        }
        other => return Err(format!("accepted, and to httparse {other:?}")),
    }
    let line = (
        request.method.unwrap_or_default().as_bytes(),
        request.path.unwrap_or_default().as_bytes(),
        request.version == Some(1),
    );
    hold!(
        line == (plain.method, plain.target, plain.message.http_11),
        "httparse has {line:?} and a plain reader {plain:?}"
    );
    let fields: Vec<(&[u8], &[u8])> = request
        .headers
        .iter()
        .map(|field| (field.name.as_bytes(), field.value))
        .collect();
    hold!(
        fields == plain.message.fields,
        "httparse has {fields:?} and a plain reader {plain:?}"
    );

    plain.promises(&head)?;
    Ok(Seen::Accepted)
}

/// A request by its lines.
#[derive(Debug)]
struct Request<'a> {
    method: &'a [u8],
    target: &'a [u8],
    message: Message<'a>,
}

impl<'a> Request<'a> {
    /// Reads a head that has passed: one empty line may lead.
    fn read(head: &'a [u8]) -> Result<Self, String> {
        let (start, fields) = lines(head.strip_prefix(b"\r\n").unwrap_or(head))?;
        let words: Vec<&[u8]> = start.split(|b| *b == b' ').collect();
        let [method, target, version] = words[..] else {
            return Err(format!("{} words in the start line", words.len()));
        };
        let http_11 = version == b"HTTP/1.1";
        Ok(Self {
            method,
            target,
            message: Message { http_11, fields },
        })
    }

    fn promises(&self, head: &Whole) -> Result<(), String> {
        let framing = self.message.framing()?;
        hold!(
            framing == head.framing,
            "framed {:?}, and to a plain reader {framing:?}",
            head.framing
        );
        hold!(
            is_token(self.method) && self.method != b"CONNECT",
            "the method {}",
            self.method.escape_ascii()
        );
        self.message.is_well_formed()?;

        // The judged head is the one that goes on: nothing is cut or repaired on the way.
        let target = std::str::from_utf8(self.target).map_err(|_| "a target that is no text")?;
        let uri: http::Uri = target
            .parse()
            .map_err(|error| format!("{target} is no URI: {error}"))?;
        let rest = uri.path_and_query().map_or("", |rest| rest.as_str());
        hold!(
            target == rest
                || uri
                    .authority()
                    .is_some_and(|_| target.ends_with(rest) || rest == "/"),
            "{target} goes on as {rest}"
        );
        let hosts = self.message.values("host");
        let named = hosts.len();
        hold!(
            named == 1 || named == 0 && !self.message.http_11,
            "{named} Host fields"
        );
        if let (Some(authority), [host]) = (uri.authority(), &hosts[..]) {
            hold!(
                host.eq_ignore_ascii_case(authority.as_str().as_bytes()),
                "{authority} is asked for, of {}",
                host.escape_ascii()
            );
        }
        Ok(())
    }
}
