//! The spellings: every byte, raw and escaped, at every place of a path, and what is known to be
//! read in two ways.

use std::collections::BTreeSet;

/// Where in a path a piece stands: `*` is the piece.
const PLACES: [&str; 18] = [
    "/things/*",
    "/things/*a",
    "/things/a*",
    "/things/a*b",
    "/things/a/*",
    "/things/*/a",
    "/things/a/*/b",
    "/things/a/*b",
    "/things/a*/b",
    "/things/a*/",
    "/things*",
    "/things*/a",
    "/*things/a",
    "/thi*ngs/a",
    "/*",
    "/*/things/a",
    "*",
    "*/things/a",
];

/// Pieces that some reader has taken for something else, or that only look like it, beside single
/// bytes and pairs of [`ACTIVE`] ones.
const PIECES: [&str; 57] = [
    "...",
    "....",
    "%2e%2e%2e",
    "%252e%252e",
    ".%252e",
    "%25252e",
    ";x",
    ";x=1",
    "%3Bx",
    "..;",
    "..;x",
    "..%3b",
    ";/..",
    "///",
    "/..",
    "/./",
    "/../",
    "/.//",
    "/..;/",
    "..%2f",
    "%2f..",
    "%2e%2e%2f",
    "%2f%2e%2e",
    "\\..",
    "..\\",
    "..%5c",
    "%00.txt",
    "%0d%0a",
    "a%20.",
    "%c0%af",
    "%C0%AF",
    "%c1%9c",
    "%e0%80%af",
    "%c0%ae",
    "%c0%ae%c0%ae",
    "%u0061",
    "%u2215",
    "%u002e",
    "%ef%bc%8f",
    "%e2%88%95",
    "%ef%bc%8e",
    "%EF%BB%BF",
    "%E2%80%8B",
    "%C3%A9",
    "%c3%a9",
    "%C3%a9",
    "e%CC%81",
    "%ed%a0%80",
    "%F0%9F%98%80",
    "%4",
    "%zz",
    "%%34%31",
    "%%",
    "?x",
    "?x/../b",
    "#x",
    "~root",
];

/// Pieces that act together.
const ACTIVE: [&str; 16] = [
    ".", "%2e", "%2E", "/", "%2f", ";", "%3B", "%5c", "%25", "2e", "a", "%61", "%20", "+",
    "%c3%a9", ":",
];

/// One byte in every spelling: raw, escaped in digits of either case, and escaped twice.
fn of_byte(byte: u8) -> BTreeSet<Vec<u8>> {
    let upper = format!("{byte:02X}");
    let lower = upper.to_ascii_lowercase();
    let mixed = [
        upper[..1].to_owned() + &lower[1..],
        lower[..1].to_owned() + &upper[1..],
    ];
    let mut pieces = BTreeSet::from([vec![byte]]);
    for digits in [&upper, &lower, &mixed[0], &mixed[1]] {
        pieces.insert(format!("%{digits}").into_bytes());
        pieces.insert(format!("%25{digits}").into_bytes());
    }
    pieces
}

fn at(place: &str, piece: &[u8]) -> Vec<u8> {
    let (before, behind) = place.split_once('*').expect("a place has a `*`");
    [before.as_bytes(), piece, behind.as_bytes()].concat()
}

/// All paths.
pub fn paths() -> BTreeSet<Vec<u8>> {
    let mut pieces: BTreeSet<Vec<u8>> = (0..=u8::MAX).flat_map(of_byte).collect();
    pieces.extend(PIECES.map(|piece| piece.as_bytes().to_vec()));
    for first in ACTIVE {
        pieces.extend(ACTIVE.map(|second| [first, second].concat().into_bytes()));
    }
    let mut paths: BTreeSet<Vec<u8>> = PLACES
        .iter()
        .flat_map(|place| pieces.iter().map(|piece| at(place, piece)))
        .collect();
    for first in ACTIVE {
        for second in ACTIVE {
            for third in ACTIVE {
                let piece = [first, second, third].concat();
                paths.extend(["/things/*", "/things/a*b"].map(|place| at(place, piece.as_bytes())));
            }
        }
    }
    paths
}

/// Where in a query a piece stands.
const QUERIES: [&str; 14] = [
    "q=*", "q=*a", "q=a*", "q=a*b", "*q=a", "q*=a", "*=a", "x=*&q=a", "q=a&x=*", "x=1&q=a*",
    "q=a&*", "*&q=a", "q=a&q*=b", "x=1*q=a",
];

const QUERY_PIECES: [&str; 42] = [
    "q",
    "Q",
    "%71",
    "%51",
    "q=b",
    "q=a",
    "&q=b",
    "&q=a",
    ";q=b",
    "&Q=b",
    "&q[]=b",
    "q[]",
    "[]",
    "[0]",
    "%5b%5d",
    "&",
    "&&",
    "&amp;",
    "&amp;q=b",
    ";",
    "%26",
    "%3B",
    "%3D",
    "=",
    "==",
    "+",
    "%2B",
    "%2b",
    "%20",
    "%C3%A9",
    "%c3%a9",
    "%EF%BB%BF",
    "%00",
    "%80",
    "%C0%AF",
    "%u0061",
    "%",
    "%zz",
    "#",
    "#&q=b",
    "?",
    "?q=b",
];

/// All targets of a query.
pub fn queries() -> BTreeSet<Vec<u8>> {
    let mut pieces: BTreeSet<Vec<u8>> = (0..=u8::MAX).flat_map(of_byte).collect();
    pieces.extend(QUERY_PIECES.map(|piece| piece.as_bytes().to_vec()));
    for first in QUERY_PIECES {
        pieces.extend(QUERY_PIECES.map(|second| [first, second].concat().into_bytes()));
    }
    QUERIES
        .iter()
        .flat_map(|place| pieces.iter().map(|piece| at(place, piece)))
        .map(|query| [b"/things?", &query[..]].concat())
        .collect()
}

/// Names with what frameworks cut off them.
pub fn suffixed() -> BTreeSet<Vec<u8>> {
    let suffixes = [
        "",
        ".json",
        "%2ejson",
        ".json.json",
        ".xml",
        ".json%20",
        ".",
        "%2E",
        "%20",
        "+",
        ".json/",
        "/",
    ];
    let names = ["a", "b", "7", "07", "a-b", "a_b", "A"];
    names
        .iter()
        .flat_map(|name| suffixes.map(|suffix| format!("/things/{name}{suffix}").into_bytes()))
        .collect()
}
