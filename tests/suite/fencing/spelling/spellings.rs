//! The spellings: every byte, raw and escaped, at every place of a path, and what is known to be
//! read in two ways.

use std::collections::BTreeSet;

/// Where in a path a piece stands: `*` is the piece.
const PLACES: &str = "/things/* /things/*a /things/a* /things/a*b /things/a/* /things/*/a \
    /things/a/*/b /things/a/*b /things/a*/b /things/a*/ /things* /things*/a /*things/a /thi*ngs/a \
    /* /*/things/a * */things/a";

/// Pieces that some reader has taken for something else, or that only look like it, beside single
/// bytes and pairs of [`ACTIVE`] ones.
const PIECES: &str = r"
    ... .... %2e%2e%2e %252e%252e .%252e %25252e
    ;x ;x=1 %3Bx ..; ..;x ..%3b ;/..
    /// /.. /./ /../ /.// /..;/ ..%2f %2f.. %2e%2e%2f %2f%2e%2e \.. ..\ ..%5c
    %00.txt %0d%0a a%20. %c0%af %C0%AF %c1%9c %e0%80%af %c0%ae %c0%ae%c0%ae
    %u0061 %u2215 %u002e %ef%bc%8f %e2%88%95 %ef%bc%8e %EF%BB%BF %E2%80%8B
    %C3%A9 %c3%a9 %C3%a9 e%CC%81 %ed%a0%80 %F0%9F%98%80
    %4 %zz %%34%31 %% ?x ?x/../b #x ~root";

/// Pieces that act together.
const ACTIVE: &str = ". %2e %2E / %2f ; %3B %5c %25 2e a %61 %20 + %c3%a9 :";

/// Where in a query a piece stands.
const QUERIES: &str =
    "q=* q=*a q=a* q=a*b *q=a q*=a *=a x=*&q=a q=a&x=* x=1&q=a* q=a&* *&q=a q=a&q*=b x=1*q=a";

const QUERY_PIECES: &str = "
    q Q %71 %51 q=b q=a &q=b &q=a ;q=b &Q=b &q[]=b q[] [] [0] %5b%5d
    & && &amp; &amp;q=b ; %26 %3B %3D = == + %2B %2b %20
    %C3%A9 %c3%a9 %EF%BB%BF %00 %80 %C0%AF %u0061 % %zz # #&q=b ? ?q=b";

fn words(text: &str) -> Vec<Vec<u8>> {
    let words = text.split_whitespace();
    words.map(|word| word.as_bytes().to_vec()).collect()
}

/// Each of the first before each of the second.
fn joined(first: &[Vec<u8>], second: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let before = |one: &Vec<u8>| {
        second
            .iter()
            .map(|other| [&one[..], other].concat())
            .collect()
    };
    first.iter().flat_map::<Vec<_>, _>(before).collect()
}

/// One byte in every spelling: raw, escaped in digits of either case, and escaped twice.
fn of_byte(byte: u8) -> Vec<Vec<u8>> {
    let digit = |of: u8| [format!("{of:X}"), format!("{of:x}")].map(String::into_bytes);
    let digits = joined(&digit(byte >> 4), &digit(byte & 15));
    let mut pieces = joined(&words("% %25"), &digits);
    pieces.push(vec![byte]);
    pieces
}

/// Every byte, these pieces, and pairs of such.
fn pieces(alone: &str, pairs: &str) -> Vec<Vec<u8>> {
    let mut pieces: Vec<_> = (0..=u8::MAX).flat_map(of_byte).collect();
    pieces.extend(words(alone));
    pieces.extend(joined(&words(pairs), &words(pairs)));
    pieces
}

/// Each piece at each place behind this.
fn placed(begin: &str, places: &str, pieces: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    for place in places.split_whitespace() {
        let (before, behind) = place.split_once('*').expect("a place has a `*`");
        let before = [begin, before].concat();
        let targets = pieces.iter();
        all.extend(targets.map(|piece| [before.as_bytes(), piece, behind.as_bytes()].concat()));
    }
    all
}

/// All paths.
pub fn paths() -> BTreeSet<Vec<u8>> {
    let mut paths = placed("", PLACES, &pieces(PIECES, ACTIVE));
    let active = words(ACTIVE);
    let triples = joined(&joined(&active, &active), &active);
    paths.append(&mut placed("/things/", "* a*b", &triples));
    paths
}

/// All targets of a query.
pub fn queries() -> BTreeSet<Vec<u8>> {
    placed("/things?", QUERIES, &pieces(QUERY_PIECES, QUERY_PIECES))
}
