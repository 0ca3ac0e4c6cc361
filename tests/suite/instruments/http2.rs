//! The HTTP/2 peer by hand: what it reads and writes of HPACK.

use crate::support::http2::{status, string};

#[test]
fn the_status_of_an_answer_is_read() {
    assert_eq!(status(&[0x88]), 200);
    assert_eq!(status(&[0x20, 0x8d]), 404);
    assert_eq!(status(b"\x48\x03412"), 412);
    // 4, 1, 2: 011010 00001 00010.
    assert_eq!(status(&[0x48, 0x82, 0b0110_1000, 0b0010_0010]), 412);
    // 5, 0, 3: 011011 00000 011001, and the padding of ones.
    assert_eq!(
        status(&[0x48, 0x83, 0b0110_1100, 0b0000_1100, 0b1111_1111]),
        503
    );
}

#[test]
fn lengths_are_coded_as_they_must_be() {
    let coded = |length| {
        let mut block = Vec::new();
        string(&mut block, &vec![b'x'; length]);
        block.truncate(block.len() - length);
        block
    };
    assert_eq!(coded(5), [5]);
    assert_eq!(coded(126), [126]);
    assert_eq!(coded(127), [127, 0]);
    assert_eq!(coded(1337 + 127), [127, 0b1011_1001, 10]);
}
