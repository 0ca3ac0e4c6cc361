//! Blocks of the standard's examples, malformed blocks, and that pieces make no difference.

use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("digits"))
        .collect()
}

fn read(hpack: &mut Hpack, block: &[u8]) -> Result<Fields, MalformedHpack> {
    hpack.read(block)?;
    hpack.end()
}

fn table(hpack: &Hpack) -> (usize, usize) {
    (hpack.table.len(), hpack.size)
}

fn size(fields: &[(&str, &str)]) -> Fields {
    let bytes = fields
        .iter()
        .map(|(name, value)| HpackEntry::of(name, value).size());
    Fields {
        count: fields.len(),
        bytes: bytes.sum(),
        pseudo: fields.iter().any(|(name, _)| name.starts_with(':')),
        interim: fields
            .iter()
            .any(|(name, value)| *name == ":status" && value.starts_with('1')),
    }
}

/// RFC 7541, appendices C.3 (plain) and C.4 (Huffman): three requests on one connection.
#[test]
fn the_requests_of_the_standard() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let mut hpack = Hpack::default();
        let start = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        let host = (":authority", "www.example.com");
        let first = [&start[..], &[host]].concat();
        assert_eq!(read(&mut hpack, &hex(blocks[0])), Ok(size(&first)));
        assert_eq!(table(&hpack), (1, 57));
        let second = [&first[..], &[("cache-control", "no-cache")]].concat();
        assert_eq!(read(&mut hpack, &hex(blocks[1])), Ok(size(&second)));
        assert_eq!(table(&hpack), (2, 110));
        let start = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
        ];
        let third = [&start[..], &[host, ("custom-key", "custom-value")]].concat();
        assert_eq!(read(&mut hpack, &hex(blocks[2])), Ok(size(&third)));
        assert_eq!(table(&hpack), (3, 164));
    }
}

/// RFC 7541, appendices C.5 and C.6: a table of 256 bytes, from which entries go.
#[test]
fn the_responses_of_the_standard() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a \
         3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 \
         677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 \
         553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e \
         919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 \
         821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed \
         4ee5 b106 3d50 07",
    ];
    for blocks in [plain, coded] {
        let mut hpack = Hpack {
            most: 256,
            ..Hpack::default()
        };
        let tables = [(4, 222), (4, 222), (3, 215)];
        for (block, expected) in blocks.iter().zip(tables) {
            let fields = read(&mut hpack, &hex(block)).expect("a block");
            assert!(fields.pseudo && !fields.interim, "{block}");
            assert_eq!(table(&hpack), expected, "{block}");
        }
    }
}

#[test]
fn kinds_of_names_however_they_are_written() {
    for (block, pseudo, interim) in [
        // :status 103, its name by index, by text, and by Huffman code.
        ("0803313033", true, true),
        ("00073a737461747573 03313033", true, true),
        ("0085b8848d36a3 03313033", true, true),
        ("0803313033", true, true),
        ("88", true, false),
        ("00083a7374617475737303313033", true, false),
        ("00063a73746174750131", true, false),
        ("00073a7374617475730132", true, false),
        ("00013a0131", true, false),
        ("0007737461747573780131", false, false),
        ("0001610131", false, false),
        ("000000", false, false),
    ] {
        let fields = read(&mut Hpack::default(), &hex(block)).unwrap_or_else(|_| panic!("{block}"));
        assert_eq!(
            (fields.pseudo, fields.interim),
            (pseudo, interim),
            "{block}"
        );
    }
}

#[test]
fn what_an_entry_was_is_known_by_its_number() {
    let mut hpack = Hpack::default();
    // x: 1 and :path: /a go into the table; later blocks name them by number.
    read(&mut hpack, &hex("40017801 31 44022f61")).expect("a block");
    assert!(read(&mut hpack, &hex("be")).expect("a block").pseudo);
    assert!(!read(&mut hpack, &hex("bf")).expect("a block").pseudo);
    // The name by number, another value.
    assert!(read(&mut hpack, &hex("0f2f 0132")).expect("a block").pseudo);
    assert!(!read(&mut hpack, &hex("0f30 0132")).expect("a block").pseudo);
    // A table of nothing, and of something again.
    read(&mut hpack, &hex("20 3fe11f")).expect("a block");
    assert_eq!(table(&hpack), (0, 0));
    assert_eq!(read(&mut hpack, &hex("be")), Err(MalformedHpack));
}

#[test]
fn an_entry_that_is_too_large_empties_the_table() {
    let mut hpack = Hpack::default();
    read(&mut hpack, &hex("4001780131")).expect("a block");
    let mut large = hex("400179 7fe11f");
    large.extend(vec![b'x'; 127 + 0x61 + (0x1f << 7)]);
    let fields = read(&mut hpack, &large).expect("a block");
    assert_eq!((fields.count, table(&hpack)), (1, (0, 0)));
    assert!(fields.bytes > 4096);
}

#[test]
fn what_is_no_block_is_refused() {
    for block in [
        // The index 0, and one that is not there.
        "80",
        "be",
        "7f00 00",
        // A table that is larger than it may be.
        "3fe220",
        // It ends too soon.
        "82 40",
        "00",
        "0001",
        "000161",
        "00016102",
        "ff",
        // An integer without end.
        "ffffffffffffffff",
        // Padding that is none.
        "0081ff00",
    ] {
        assert_eq!(
            read(&mut Hpack::default(), &hex(block)),
            Err(MalformedHpack),
            "{block}"
        );
    }
}

proptest! {
    /// Bytes one by one come to the same as at once, and no bytes panic.
    #[test]
    fn pieces_make_no_difference(blocks in proptest::collection::vec(any::<Vec<u8>>(), 1..4)) {
        let (mut whole, mut pieces) = (Hpack::default(), Hpack::default());
        for block in blocks {
            let at_once = read(&mut whole, &block);
            let piecewise = block
                .iter()
                .try_for_each(|byte| pieces.read(&[*byte]))
                .and_then(|()| pieces.end());
            prop_assert_eq!(at_once, piecewise);
            prop_assert_eq!(table(&whole), table(&pieces));
            if at_once.is_err() {
                break;
            }
        }
    }
}
