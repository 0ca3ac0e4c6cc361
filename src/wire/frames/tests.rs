//! Trailers that are malformed lose their flag, all else passes as it is, in whatever pieces it
//! comes.

use proptest::prelude::*;

use super::*;

const MOST: usize = 1000;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len())
        .expect("a short frame")
        .to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Literals that are not indexed.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("a short text"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

const REQUEST: [(&str, &str); 4] = [
    (":method", "PUT"),
    (":scheme", "http"),
    (":authority", "app.test"),
    (":path", "/"),
];

fn head(stream: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&REQUEST))
}

fn trailers(stream: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields))
}

const CLIENT: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn from_client(frames: &[Vec<u8>]) -> Vec<u8> {
    [CLIENT, &frames.concat()].concat()
}

/// The bytes that pass; the same whatever the pieces are.
fn passes(frames: &Frames, bytes: &[u8], pieces: usize) -> (Vec<u8>, bool) {
    let mut frames = frames.clone();
    let (mut passed, mut held) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(pieces) {
        held.extend_from_slice(piece);
        let released = frames.feed(&mut held);
        passed.extend(held.drain(..released));
    }
    (passed, frames.is_over())
}

/// As [`passes`], in pieces of any length.
fn passed(frames: &Frames, bytes: &[u8]) -> (Vec<u8>, bool) {
    let whole = passes(frames, bytes, bytes.len());
    for pieces in [1, 2, 3, 7, 8, 9, 10, 100] {
        assert_eq!(
            passes(frames, bytes, pieces),
            whole,
            "in pieces of {pieces}"
        );
    }
    whole
}

/// The bytes with the flag of the frame that begins there taken off.
fn without_flag(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    assert_ne!(bytes[at + FLAGS] & END_STREAM, 0);
    bytes[at + FLAGS] &= !END_STREAM;
    bytes
}

fn client() -> Frames {
    Frames::of_client(MOST)
}

#[test]
fn what_is_in_order_passes_as_it_is() {
    let bytes = from_client(&[
        frame(4, 0, 0, b""),
        head(1),
        frame(DATA, 0, 1, b"abc"),
        trailers(1, &[("x-sum", "1")]),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &block(&REQUEST)),
        frame(6, 0, 0, &[0; 8]),
        head(5),
        trailers(5, &[]),
    ]);
    assert_eq!(passed(&client(), &bytes), (bytes, false));
}

#[test]
fn trailers_with_a_pseudo_header_field_lose_their_flag_and_what_follows_passes() {
    for fields in [
        &[(":method", "PUT")] as &[(&str, &str)],
        &[("x-sum", "1"), (":path", "/8")],
        &[(":x", "")],
    ] {
        let start = from_client(&[head(1), frame(DATA, 0, 1, b"abc"), head(3)]);
        let bytes = [
            &start[..],
            &trailers(1, fields),
            &trailers(3, &[("a", "b")]),
        ]
        .concat();
        let expected = without_flag(&bytes, start.len());
        assert_eq!(passed(&client(), &bytes), (expected, false), "{fields:?}");
    }
}

#[test]
fn trailers_over_the_limit_lose_their_flag() {
    let start = from_client(&[head(1)]);
    let long = "x".repeat(100);
    for count in [7, 8, 20] {
        let fields = vec![("x-long", &*long); count];
        let bytes = [&start[..], &trailers(1, &fields), &head(3)].concat();
        // Each counts 138.
        let expected = if count == 7 {
            bytes.clone()
        } else {
            without_flag(&bytes, start.len())
        };
        assert_eq!(passed(&client(), &bytes), (expected, false), "{count}");
    }
}

#[test]
fn a_block_in_many_frames_is_one_block() {
    let fields = block(&[("x-sum", "1"), (":method", "PUT")]);
    let (one, two) = fields.split_at(fields.len() / 2);
    for cut in [0, 1, one.len()] {
        let start = from_client(&[head(1)]);
        let frames = [
            frame(HEADERS, END_STREAM, 1, &one[..cut]),
            frame(CONTINUATION, 0, 1, &one[cut..]),
            frame(CONTINUATION, END_HEADERS, 1, two),
        ];
        let bytes = [&start[..], &frames.concat(), &head(3)].concat();
        let expected = without_flag(&bytes, start.len());
        assert_eq!(passed(&client(), &bytes), (expected, false), "{cut}");
    }
}

#[test]
fn padding_and_priority_are_not_the_blocks() {
    let fields = block(&[(":method", "PUT")]);
    for (flags, before, padding) in [
        (PADDED, &[3][..], 3),
        (PRIORITY, &[0, 0, 0, 0, 9], 0),
        (PADDED | PRIORITY, &[2, 0, 0, 0, 0, 9], 2),
        (PADDED, &[0], 0),
    ] {
        let payload = [before, &fields, &vec![0xff; padding]].concat();
        let start = from_client(&[head(1)]);
        let all = flags | END_HEADERS | END_STREAM;
        let bytes = [&start[..], &frame(HEADERS, all, 1, &payload), &head(3)].concat();
        let expected = without_flag(&bytes, start.len());
        assert_eq!(passed(&client(), &bytes), (expected, false), "{flags:x}");
    }
}

#[test]
fn behind_what_cannot_be_read_nothing_passes() {
    let bad = [
        // The index 70 of an empty table.
        frame(HEADERS, END_HEADERS, 1, &[0xc6]),
        frame(HEADERS, END_HEADERS, 1, &[0x40]),
        frame(CONTINUATION, END_HEADERS, 1, b""),
        frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
        frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0x82]),
        frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0]),
        [frame(HEADERS, 0, 1, b""), frame(DATA, 0, 1, b"abc")].concat(),
        [frame(HEADERS, 0, 1, b""), frame(CONTINUATION, 0, 3, b"")].concat(),
    ];
    for bad in bad {
        let bytes = from_client(&[head(7), bad]);
        let more = [&bytes[..], &head(9)].concat();
        assert_eq!(passed(&client(), &more), (bytes, true));
    }
}

#[test]
fn of_a_response_what_follows_its_final_head_is_its_trailers() {
    let server = Frames::of_server(MOST);
    let response = |status| frame(HEADERS, END_HEADERS, 1, &block(&[(":status", status)]));
    let start = [response("100"), response("103"), response("200")].concat();
    let sum = trailers(1, &[("grpc-status", "0")]);
    let bytes = [&start[..], &sum, &response("200")].concat();
    assert_eq!(passed(&server, &bytes), (bytes.clone(), false));

    let start = [&start[..], &frame(DATA, 0, 1, b"abc")].concat();
    for fields in [&[(":status", "500")][..], &[("a", "b"), (":path", "/")]] {
        let bytes = [&start[..], &trailers(1, fields)].concat();
        let expected = without_flag(&bytes, start.len());
        assert_eq!(passed(&server, &bytes), (expected, false), "{fields:?}");
    }
}

#[test]
fn streams_that_have_ended_are_forgotten() {
    let mut server = Frames::of_server(MOST);
    let response = |stream| frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")]));
    let ends = |kind, flags, stream| frame(kind, flags, stream, &[0; 4]);
    let mut bytes = [
        response(1),
        response(3),
        response(5),
        response(7),
        trailers(1, &[]),
        ends(DATA, END_STREAM, 3),
        ends(RST_STREAM, 0, 5),
    ]
    .concat();
    assert_eq!(server.feed(&mut bytes), bytes.len());
    let open = |server: &Frames| match &server.side {
        Side::Server(answered) => answered.len(),
        Side::Client(_) => unreachable!("a server's"),
    };
    assert_eq!(open(&server), 1);
    let mut resets = Resets::default();
    let written = from_client(&[head(7), frame(DATA, 0, 7, b"abc"), ends(RST_STREAM, 0, 7)]);
    for byte in written {
        resets.feed(&[byte], |stream| server.reset(stream));
    }
    assert_eq!(open(&server), 0);
}

proptest! {
    /// On any input: no panic, pieces make no difference, and only flags differ from the bytes
    /// sent.
    #[test]
    fn nothing_but_flags_changes(
        payloads in proptest::collection::vec((0_u8..11, any::<u8>(), 0_u8..6, any::<Vec<u8>>()), 0..6),
        pieces in 1_usize..20,
    ) {
        let frames: Vec<_> = payloads
            .iter()
            .map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload))
            .collect();
        let bytes = from_client(&frames);
        for start in [client(), Frames::of_server(MOST)] {
            let whole = passes(&start, &bytes, bytes.len());
            prop_assert_eq!(&passes(&start, &bytes, pieces), &whole);
            for (sent, passed) in bytes.iter().zip(&whole.0) {
                prop_assert!(sent == passed || *sent == passed | END_STREAM);
            }
        }
    }
}
