//! Types of the assembler, of clang, and of hostile blobs.

use super::*;

/// A blob of hand-made records: words of the type section, then strings.
fn blob(words: &[u32], strings: &str) -> Btf {
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    let len = words.len() as u32 * 4;
    for word in [24, 0, len, len, strings.len() as u32].iter().chain(words) {
        blob.extend(word.to_le_bytes());
    }
    blob.extend(strings.as_bytes());
    Btf { blob, ..Btf::default() }
}

const STRUCT: u32 = 4 << 24;

/// 1: `u32`; 2: `signed char`; 3: an array of 4 `char`; 4: `struct s { u32 a; char b[4]; }`, 5: an
/// enumeration with ONE = 1.
fn sample() -> Types {
    let strings = "\0u32\0char\0s\0a\0b\0e\0ONE\0";
    let at = |text: &str| strings.find(&format!("\0{text}\0")).unwrap() as u32 + 1;
    let (int, array) = (1 << 24, 3 << 24);
    let words = vec![
        // 1 and 2.
        at("u32"),
        int,
        4,
        32,
        at("char"),
        int,
        1,
        int | 8,
        // 3.
        0,
        array,
        0,
        2,
        1,
        4,
        // 4.
        at("s"),
        STRUCT | 2,
        8,
        at("a"),
        1,
        0,
        at("b"),
        3,
        32,
        // 5.
        at("e"),
        6 << 24 | 1,
        4,
        at("ONE"),
        1,
    ];
    Types::parse(&blob(&words, strings)).unwrap()
}

#[test]
fn bytes_are_decoded_by_their_type() {
    let types = sample();
    let s = types.named("s").unwrap();
    assert_eq!(types.len_of(s), Some(8));
    let value = types.decode(s, &[7, 0, 0, 0, b'h', b'i', 0, 0]);
    let members = [("a", Typed::Unsigned(7)), ("b", Typed::Text("hi".to_owned()))];
    assert_eq!(value, Typed::Struct(members.map(|(name, value)| (name.to_owned(), value)).to_vec()));
    // Control characters are no text.
    let Typed::Struct(members) = types.decode(s, &[0, 0, 0, 0, 0x1b, b'[', b'm', 0]) else { panic!() };
    assert_eq!(members[1].1, Typed::Bytes(vec![0x1b, b'[', b'm', 0]));
    assert_eq!(types.decode(s, &[1, 2]), Typed::Bytes(vec![1, 2]), "too short");
    let e = types.named("e").unwrap();
    assert_eq!(types.decode(e, &[1, 0, 0, 0]), Typed::Text("ONE".to_owned()));
    assert_eq!(types.decode(e, &[2, 0, 0, 0]), Typed::Unsigned(2));
    assert_eq!(types.constant(e, "ONE"), Some(1));
    let leaves = types.leaves(s).unwrap();
    assert_eq!(leaves[..2], [Leaf { at: 0, len: 4 }, Leaf { at: 4, len: 1 }]);
}

#[test]
fn bit_fields_are_decoded() {
    let strings = "\0int\0s\0a\0b\0";
    let flagged = 1 << 31 | STRUCT | 2;
    let words = [1, 1 << 24, 4, 1 << 24 | 32, 5, flagged, 4, 7, 1, 3 << 24, 9, 1, 5 << 24 | 3];
    let types = Types::parse(&blob(&words, strings)).unwrap();
    let Typed::Struct(members) = types.decode(2, &[0b0111_1010, 0, 0, 0]) else { panic!() };
    // Three bits 010 and five bits 01111, both signed.
    assert_eq!((&members[0].1, &members[1].1), (&Typed::Signed(2), &Typed::Signed(15)));
}

#[test]
fn types_that_contain_themselves_end() {
    // 1: a typedef of itself. 2: an array of 2^32 - 1 arrays of itself. 3: a structure of itself.
    let words = [1, 8 << 24, 1, 0, 3 << 24, 0, 2, 1, u32::MAX, 1, STRUCT | 2, 8, 1, 3, 0, 1, 3, 0];
    let types = Types::parse(&blob(&words, "\0t\0")).unwrap();
    for id in 0..5 {
        assert_eq!(types.decode(id, &[0; 8]), Typed::Bytes(vec![0; 8]), "{id}");
        assert_eq!(types.leaves(id), None, "{id}");
    }
    // An array of 2^32 - 1 empty structures.
    let words = [1, STRUCT, 0, 0, 3 << 24, 0, 1, 1, u32::MAX];
    let types = Types::parse(&blob(&words, "\0t\0")).unwrap();
    assert_eq!((types.decode(2, &[]), types.leaves(2)), (Typed::List(Vec::new()), None));
    // 30 levels of structures that each contain the next one twice: 2^30 members.
    let words: Vec<u32> =
        (1..=30_u32).flat_map(|id| [1, STRUCT | 2, 4, 1, id + 1, 0, 1, id + 1, 0]).collect();
    let words = [words, vec![1, 1 << 24, 4, 32]].concat();
    let types = Types::parse(&blob(&words, "\0t\0")).unwrap();
    assert_eq!((types.decode(1, &[0; 4]), types.leaves(1)), (Typed::Bytes(vec![0; 4]), None));
}

#[test]
fn addresses_are_shown_and_a_union_is_written_once() {
    // 1: u32. 2: __be32. 3: u8. 4: u8[16]. 5: a union of 4 and 2. 6: in6_addr with 5. 7: a structure of 2
    // and 6.
    let words = [
        [1, 1 << 24, 4, 32].as_slice(),
        &[3, 8 << 24, 1],
        &[1, 1 << 24, 1, 8],
        &[0, 3 << 24, 0, 3, 1, 16],
        &[0, 5 << 24 | 2, 16, 1, 4, 0, 1, 2, 0],
        &[10, STRUCT | 1, 16, 1, 5, 0],
        &[0, STRUCT | 2, 20, 1, 2, 0, 1, 6, 32],
    ]
    .concat();
    let types = Types::parse(&blob(&words, "\0t\0__be32\0in6_addr\0")).unwrap();
    let bytes: Vec<u8> = [10, 0, 0, 1, 0xfd].into_iter().chain([0; 14]).chain([1]).collect();
    let text = |text: &str| ("t".to_owned(), Typed::Text(text.to_owned()));
    assert_eq!(types.decode(7, &bytes), Typed::Struct(vec![text("10.0.0.1"), text("fd00::1")]));
    let leaves = types.leaves(7).unwrap();
    assert_eq!(leaves.iter().map(|leaf| leaf.len).sum::<usize>(), 20, "{leaves:?}");
}

#[test]
fn malformed_blobs_are_refused_and_never_panic() {
    let strings = "\0a\0";
    for words in [&[1, 1 << 24][..], &[9, 1 << 24, 4, 32], &[1, 31 << 24, 0], &[1, STRUCT | 5, 8, 1, 1, 0]] {
        assert!(Types::parse(&blob(words, strings)).is_none(), "{words:?}");
    }
    let good = blob(&[1, STRUCT | 1, 8, 1, 1, 0, 1, 15 << 24 | 1, 4, 1, 0, 4], strings);
    for at in 0..good.blob.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad.blob[at] = byte;
            if let Some(types) = Types::parse(&bad) {
                (0..4).for_each(|id| drop((types.decode(id, &[0; 16]), types.leaves(id), types.len_of(id))));
                let _ = (types.map("a"), types.named("a"));
            }
        }
        let short = Btf { blob: good.blob[..at].to_vec(), ..Btf::default() };
        let _ = Types::parse(&short);
    }
}

#[cfg(feature = "object")]
mod built_by_clang {
    use super::*;
    use crate::object::programs_of;

    fn types_of(name: &str) -> Option<Types> {
        match crate::object::build(name, "v3") {
            Ok(object) => {
                let programs = programs_of(&object, None).unwrap();
                Some(Types::parse(programs[0].btf.as_ref().unwrap()).unwrap())
            }
            Err(why) => {
                println!("{why}");
                None
            }
        }
    }

    #[test]
    fn maps_have_the_types_of_their_definition() {
        let Some(types) = types_of("count") else { return };
        let MapTypes { key: Some(key), value: Some(value) } = types.map("counters") else { panic!() };
        assert_eq!(types.decode(key, &[3, 0, 0, 0]), Typed::Unsigned(3));
        let mut bytes = [0; 16];
        (bytes[0], bytes[8]) = (5, 9);
        let members = [("packets", 5), ("bytes", 9)].map(|(name, n)| (name.to_owned(), Typed::Unsigned(n)));
        assert_eq!(types.decode(value, &bytes), Typed::Struct(members.to_vec()));
        assert_eq!(types.map("nonesuch"), MapTypes::default());
    }

    /// A ring buffer of the same name as the structure of its records.
    #[test]
    fn a_structure_is_not_confused_with_a_map_of_its_name() {
        let Some(types) = types_of("packets") else { return };
        let record = types.named("packets").unwrap();
        assert_eq!(types.len_of(record), Some(56));
        let mut bytes = [0; 56];
        (bytes[0], bytes[16]) = (10, b'x');
        let Typed::Struct(members) = types.decode(record, &bytes) else { panic!() };
        assert_eq!(members[0], ("opcode".to_owned(), Typed::Text("RC_WRITE_ONLY".to_owned())));
        assert_eq!(members[4], ("payload".to_owned(), Typed::Text("x".to_owned())));
        assert!(types.defines("packets") && types.defines("opcodes"));
    }

    #[test]
    fn variables_of_a_data_section_are_named() {
        let Some(types) = types_of("filter") else { return };
        for name in [".data", "filter.data"] {
            let Typed::Struct(members) = types.decode(types.map(name).value.unwrap(), &[3, 0, 0, 0]) else {
                panic!()
            };
            assert!(members.iter().any(|(name, _)| name == "on_miss"), "{members:?}");
        }
    }
}
