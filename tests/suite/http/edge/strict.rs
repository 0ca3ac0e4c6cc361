//! A reader of requests exactly as RFC 9112 defines them: only these may arrive at the upstream. It
//! shares no code with the program. It also refuses anything that another server might read in
//! another way, so that an arrival which passes here has one reading everywhere. That is why it
//! stands beside the suite's other reader ([`crate::support::wire`]), which is lenient on purpose.

/// How a request's content ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Neither length nor coding: there is no content.
    None,
    Length,
    Chunked,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Message {
    pub method: String,
    pub target: String,
    /// Bytes stand as the code points of the same number, so nothing is lost.
    pub fields: Vec<(String, String)>,
    pub ends: Ends,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Message {
    /// The values of every line of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = move |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields
            .iter()
            .filter(named)
            .map(|(_, value)| value.as_str())
    }
}

/// The request that `bytes` begin with, and its length; `None`: it is not whole yet.
pub fn message(bytes: &[u8]) -> Result<Option<(Message, usize)>, String> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return match bytes.first() {
            Some(b'\r' | b'\n') => Err("a line end before the request line".into()),
            _ if find(bytes, b"\n\n").is_some() => Err("bare line feeds".into()),
            _ => Ok(None),
        };
    };
    let mut lines = lines(&bytes[..end])?.into_iter();
    let start = lines.next().unwrap_or_default();
    let words: Vec<&str> = start.split(' ').collect();
    let [method, target, "HTTP/1.1"] = *words else {
        return Err(format!("the request line {start:?}"));
    };
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err(format!("the method {method:?}"));
    }
    let plain = target.bytes().all(|byte| byte.is_ascii_graphic());
    if !plain || target.contains('#') || !(target.starts_with('/') || target == "*") {
        return Err(format!("the target {target:?}"));
    }
    let fields: Vec<(String, String)> = lines.map(|line| field(&line)).collect::<Result<_, _>>()?;
    let message = Message {
        method: method.to_owned(),
        target: target.to_owned(),
        ends: ends(&fields)?,
        fields,
        body: Vec::new(),
        trailers: Vec::new(),
    };
    content(message, bytes, end + 4)
}

/// The framing that the fields say, which must be unambiguous.
fn ends(fields: &[(String, String)]) -> Result<Ends, String> {
    let all = |name: &str| -> Vec<&str> {
        let named = fields
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    };
    for (name, _) in fields {
        let dashed = name.to_ascii_lowercase().replace('_', "-");
        let decisive = ["content-length", "transfer-encoding", "host"].contains(&&*dashed)
            || dashed.starts_with("x-fencing-");
        if decisive && name.contains('_') {
            return Err(format!("{name}, which some servers take for {dashed}"));
        }
    }
    if all("host").len() != 1 {
        return Err(format!("the hosts {:?}", all("host")));
    }
    match (&*all("content-length"), &*all("transfer-encoding")) {
        ([], []) => Ok(Ends::None),
        ([length], [])
            if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            Ok(Ends::Length)
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Ends::Chunked),
        (lengths, codings) => Err(format!("the lengths {lengths:?}, the codings {codings:?}")),
    }
}

fn content(
    mut message: Message,
    bytes: &[u8],
    from: usize,
) -> Result<Option<(Message, usize)>, String> {
    match message.ends {
        Ends::None => Ok(Some((message, from))),
        Ends::Length => {
            let length: Option<usize> = message
                .all("content-length")
                .next()
                .and_then(|text| text.parse().ok());
            let length = length.ok_or("a length beyond all bounds")?;
            let Some(body) = bytes.get(from..from.saturating_add(length)) else {
                return Ok(None);
            };
            message.body = body.to_vec();
            Ok(Some((message, from + length)))
        }
        Ends::Chunked => {
            let mut at = from;
            loop {
                let Some((line, next)) = line(bytes, at)? else {
                    return Ok(None);
                };
                let digits = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
                let size = usize::from_str_radix(&line, 16).ok().filter(|_| digits);
                let size = size.ok_or_else(|| format!("the chunk size {line:?}"))?;
                at = next;
                if size == 0 {
                    break;
                }
                let Some(data) = bytes.get(at..at.saturating_add(size)) else {
                    return Ok(None);
                };
                message.body.extend_from_slice(data);
                at += size;
                match bytes.get(at..at + 2) {
                    None => return Ok(None),
                    Some(b"\r\n") => at += 2,
                    Some(other) => {
                        return Err(format!(
                            "{:?} behind a chunk",
                            other.escape_ascii().to_string()
                        ));
                    }
                }
            }
            loop {
                let Some((line, next)) = line(bytes, at)? else {
                    return Ok(None);
                };
                at = next;
                if line.is_empty() {
                    return Ok(Some((message, at)));
                }
                let trailer = field(&line)?;
                if is_forbidden(&trailer.0) {
                    return Err(format!("the trailer {trailer:?}"));
                }
                message.trailers.push(trailer);
            }
        }
    }
}

/// Fields that servers which merge trailers into the header would then act on (RFC 9110, 6.5.1).
fn is_forbidden(name: &str) -> bool {
    let dashed = name.to_ascii_lowercase().replace('_', "-");
    let known = [
        "host",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "authorization",
        "content-length",
        "transfer-encoding",
    ];
    known.contains(&&*dashed) || dashed.starts_with("x-fencing-")
}

/// The line from `at` on, and where the next begins; `None`: it is not whole yet.
fn line(bytes: &[u8], at: usize) -> Result<Option<(String, usize)>, String> {
    match find(&bytes[at..], b"\r\n") {
        Some(length) => {
            let text = lines(&bytes[at..at + length])?.swap_remove(0);
            Ok(Some((text, at + length + 2)))
        }
        None if bytes[at..].contains(&b'\n') => Err("a bare line feed".into()),
        None => Ok(None),
    }
}

fn lines(bytes: &[u8]) -> Result<Vec<String>, String> {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    let bare = |line: &&String| line.contains(['\r', '\n', '\0']);
    match lines.iter().find(bare) {
        Some(line) => Err(format!("a bare CR, LF or NUL in {line:?}")),
        None => Ok(lines),
    }
}

fn field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line
        .split_once(':')
        .ok_or_else(|| format!("a line without a colon: {line:?}"))?;
    let value = value.trim_matches([' ', '\t']);
    let printable = |sign: char| sign == '\t' || (sign >= ' ' && sign != '\x7f');
    if name.is_empty() || !name.bytes().all(is_token) || !value.chars().all(printable) {
        return Err(format!("the field {line:?}"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// `tchar` of RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|part| part == wanted)
}

#[test]
fn what_is_well_framed_is_read() {
    let put = b"PUT /a?b=c HTTP/1.1\r\nHost: h\r\nX-A:  one\t\r\nX-A: \xe9\r\nContent-Length: 3\r\n\r\nabcGET";
    let (read, used) = message(put).expect("it is one").expect("it is whole");
    assert_eq!(
        (&*read.method, &*read.target, read.ends),
        ("PUT", "/a?b=c", Ends::Length)
    );
    assert_eq!(read.all("x-a").collect::<Vec<_>>(), ["one", "\u{e9}"]);
    assert_eq!((&*read.body, used), (&b"abc"[..], put.len() - 3));
    let chunked = b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n1\r\n!\r\n0\r\nX-T: 1\r\n\r\n";
    let (read, used) = message(chunked).expect("it is one").expect("it is whole");
    assert_eq!(
        (&*read.body, read.trailers.len(), used),
        (&b"0123456789!"[..], 1, chunked.len())
    );
    for part in 0..chunked.len() {
        let read = message(&chunked[..part]).expect("no part of it is wrong");
        assert!(read.is_none(), "{part} bytes of it are not the whole");
    }
}

#[test]
fn what_has_two_readings_is_not() {
    let head = |more: &str| format!("PUT / HTTP/1.1\r\nHost: h\r\n{more}\r\n");
    let chunked = |body: &str| head("Transfer-Encoding: chunked\r\n") + body;
    for bytes in [
        "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\nHost: h\r\n\r\n".to_owned(),
        "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /\u{e9} HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "G(T / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\nHost: h\n\n".to_owned(),
        head("Host: h\r\n"),
        head("Content-Length: 1\r\nContent-Length: 1\r\n") + "a",
        head("Content-Length: +1\r\n") + "a",
        head("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n",
        head("Content_Length: 1\r\n"),
        head("X_Fencing_Token: 1\r\n"),
        head("Transfer-Encoding: gzip, chunked\r\n"),
        head("X-A : 1\r\n"),
        head("X-A: 1\r\n folded\r\n"),
        head("X-A: 1\rb\r\n"),
        head("X-A: 1\nb: 2\r\n"),
        head("X-A: \x01\r\n"),
        head("no colon\r\n"),
        chunked("+1\r\na\r\n0\r\n\r\n"),
        chunked("1;a=b\r\na\r\n0\r\n\r\n"),
        chunked("1\na\r\n0\r\n\r\n"),
        chunked("1\r\nab\r\n0\r\n\r\n"),
        chunked("0\r\nContent-Length: 1\r\n\r\n"),
        chunked("0\r\nX_Fencing_Token: 9\r\n\r\n"),
    ] {
        assert!(message(bytes.as_bytes()).is_err(), "{bytes:?}");
    }
}
