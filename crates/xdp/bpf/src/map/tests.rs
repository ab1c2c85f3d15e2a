//! Tests of each map type against a simple model, and of the kernel's error rules.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn map(kind: MapKind, key_size: u32, value_size: u32, entries: u32) -> Arc<Map> {
    Map::new(&MapDef::new("m", kind, key_size, value_size, entries), 2).unwrap()
}

#[test]
fn an_array_has_all_entries_and_none_can_be_deleted() {
    let array = map(MapKind::Array, 4, 3, 2);
    assert_eq!(array.lookup(&[1, 0, 0, 0]), Some(vec![0; 3]));
    array.update(&[1, 0, 0, 0], &[7, 8, 9], UpdateMode::Any).unwrap();
    assert_eq!(array.lookup(&[1, 0, 0, 0]), Some(vec![7, 8, 9]));
    assert_eq!(array.lookup(&[0; 4]), Some(vec![0; 3]));
    assert_eq!(array.update(&[2, 0, 0, 0], &[0; 3], UpdateMode::Any), Err(MapError::TooBig));
    assert_eq!(array.update(&[0; 4], &[0; 3], UpdateMode::NoExist), Err(MapError::Exists));
    assert_eq!(array.update(&[0; 4], &[0; 4], UpdateMode::Any), Err(MapError::Invalid));
    assert_eq!(array.delete(&[0; 4]), Err(MapError::Invalid));
    assert_eq!(array.lookup(&[0; 5]), None);
    assert_eq!(array.keys().len(), 2);
}

#[test]
fn a_redirect_map_has_only_the_entries_that_were_written() {
    let devices = map(MapKind::Devmap, 4, 8, 4);
    assert_eq!(devices.keys().len(), 0);
    devices.update(&[3, 0, 0, 0], &[9, 0, 0, 0, 0, 0, 0, 0], UpdateMode::Any).unwrap();
    assert_eq!(devices.keys(), [[3, 0, 0, 0]]);
    devices.delete(&[3, 0, 0, 0]).unwrap();
    assert_eq!(devices.delete(&[3, 0, 0, 0]), Err(MapError::NoEntry));
}

#[test]
fn every_cpu_has_its_own_value() {
    for kind in [MapKind::PercpuArray, MapKind::PercpuHash, MapKind::LruPercpuHash] {
        let map = map(kind, 4, 4, 2);
        map.update(&[1, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], UpdateMode::Any)
            .unwrap();
        map.update_by_program(&[1, 0, 0, 0], &[5, 0, 0, 0], UpdateMode::Exist, 1).unwrap();
        let both = map.lookup(&[1, 0, 0, 0]).unwrap();
        assert_eq!(both, [1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0], "{kind}");
        if kind != MapKind::PercpuArray {
            map.delete(&[1, 0, 0, 0]).unwrap();
            map.update_by_program(&[1, 0, 0, 0], &[5, 0, 0, 0], UpdateMode::NoExist, 1).unwrap();
            let both = map.lookup(&[1, 0, 0, 0]).unwrap();
            assert_eq!(both[..8], [0; 8], "{kind}: a new entry inherits nothing");
        }
    }
}

#[test]
fn an_lru_map_evicts_the_least_recently_used_entry() {
    let map = map(MapKind::LruHash, 1, 1, 3);
    for key in [1, 2, 3] {
        map.update(&[key], &[key], UpdateMode::Any).unwrap();
    }
    assert!(map.lookup(&[1]).is_some());
    map.update(&[2], &[0], UpdateMode::Exist).unwrap();
    map.update(&[4], &[4], UpdateMode::NoExist).unwrap();
    let mut keys = map.keys();
    keys.sort();
    assert_eq!(keys, [[1], [2], [4]]);
}

#[test]
fn a_trie_finds_the_longest_matching_prefix() {
    let map = map(MapKind::LpmTrie, 8, 1, 3);
    let key = |length: u32, address: [u8; 4]| [length.to_le_bytes(), address].concat();
    map.update(&key(8, [10, 9, 9, 9]), &[1], UpdateMode::Any).unwrap();
    map.update(&key(24, [10, 1, 2, 0]), &[2], UpdateMode::Any).unwrap();
    map.update(&key(25, [10, 1, 2, 128]), &[3], UpdateMode::Any).unwrap();
    assert_eq!(map.update(&key(0, [0; 4]), &[4], UpdateMode::Any), Err(MapError::NoSpace));
    let value = |length, address| map.lookup(&key(length, address)).map(|value| value[0]);
    assert_eq!(value(32, [10, 1, 2, 3]), Some(2));
    assert_eq!(value(32, [10, 1, 2, 200]), Some(3));
    assert_eq!(value(24, [10, 1, 2, 200]), Some(2), "not longer than the prefix of the key");
    assert_eq!(value(32, [10, 2, 0, 0]), Some(1));
    assert_eq!(value(32, [11, 0, 0, 0]), None);
    assert_eq!(value(33, [10, 1, 2, 3]), None);
    map.delete(&key(24, [10, 1, 2, 77])).unwrap();
    assert_eq!(value(32, [10, 1, 2, 3]), Some(1));
    assert_eq!(map.delete(&key(24, [10, 1, 2, 0])), Err(MapError::NoEntry));
}

#[test]
fn a_ring_returns_finished_records_in_order_of_reservation() {
    let map = map(MapKind::Ringbuf, 0, 0, 4096);
    let ring = map.ring().unwrap();
    let first = ring.reserve(5).unwrap();
    assert!(ring.output(&[b"second", b" record"]));
    let third = ring.reserve(1).unwrap();
    let mut seen = Vec::new();
    assert_eq!(ring.consume(|record| seen.push(record.to_vec())), 0, "the first is not finished");
    ring.finish(first, false);
    ring.finish(third, true);
    assert_eq!(ring.consume(|record| seen.push(record.to_vec())), 2);
    assert_eq!(seen, [vec![0; 5], b"second record".to_vec()]);
    assert_eq!(ring.produced(), ring.consumed());
}

#[test]
fn a_full_ring_counts_lost_records_and_recovers() {
    let map = map(MapKind::Ringbuf, 0, 0, 4096);
    let ring = map.ring().unwrap();
    let mut stored = 0;
    for round in 0..100u8 {
        // Each record has 72 bytes with its header. 56 fit, and the ring wraps at a different place in every
        // round.
        while ring.output(&[&[round; 60]]) {
            stored += 1;
        }
        assert_eq!(ring.consume(|record| assert_eq!(record, [round; 60])), 56);
    }
    assert_eq!((stored, ring.lost()), (5600, 100));
    assert_eq!(ring.reserve(4096), None);
}

#[test]
fn invalid_map_definitions_are_refused() {
    let refused =
        |kind, key, value, entries| Map::new(&MapDef::new("m", kind, key, value, entries), 1).unwrap_err();
    assert_eq!(refused(MapKind::Array, 8, 4, 1), MapError::Invalid);
    assert_eq!(refused(MapKind::Hash, 0, 4, 1), MapError::Invalid);
    assert_eq!(refused(MapKind::Hash, 4, 0, 1), MapError::Invalid);
    assert_eq!(refused(MapKind::Hash, 4, 4, 0), MapError::Invalid);
    assert_eq!(refused(MapKind::LpmTrie, 4, 4, 1), MapError::Invalid);
    assert_eq!(refused(MapKind::Ringbuf, 0, 0, 5000), MapError::Invalid);
    assert_eq!(refused(MapKind::Array, 4, 1 << 20, 1 << 20), MapError::NoMemory);
    // Small values, but the keys and their links take 3 GiB.
    assert_eq!(refused(MapKind::Hash, 1, 1, 1 << 27), MapError::NoMemory);
    assert_eq!(refused(MapKind::LpmTrie, 8, 1, u32::MAX), MapError::NoMemory);
    assert_eq!(refused(MapKind::Queue, 4, 4, 1), MapError::Invalid);
    assert_eq!(refused(MapKind::BloomFilter, 0, 0, 1), MapError::Invalid);
}

#[test]
fn a_data_section_starts_with_its_initial_contents() {
    let mut def = MapDef::array(".rodata", 4, 1);
    (def.initial, def.frozen) = (vec![1, 2, 3, 4], true);
    let map = Map::new(&def, 1).unwrap();
    assert_eq!(map.lookup(&[0; 4]), Some(vec![1, 2, 3, 4]));
    assert_eq!(map.update(&[0; 4], &[0; 4], UpdateMode::Any), Err(MapError::ReadOnly));
}

proptest! {
    /// A hash map of four entries against `HashMap` of the standard library.
    #[test]
    fn a_hash_map_agrees_with_the_standard_one(
        steps in prop::collection::vec((0u8..3, 0u8..8, any::<u16>()), 0..200),
    ) {
        let map = map(MapKind::Hash, 1, 2, 4);
        let mut model: HashMap<u8, u16> = HashMap::new();
        for (mode, key, value) in steps {
            let there = model.contains_key(&key);
            let bytes = value.to_le_bytes();
            match mode {
                0 => {
                    let expected = if there { Ok(()) } else { Err(MapError::NoEntry) };
                    prop_assert_eq!(map.delete(&[key]), expected);
                    model.remove(&key);
                }
                1 if there => {
                    prop_assert_eq!(map.update(&[key], &bytes, UpdateMode::NoExist), Err(MapError::Exists));
                    prop_assert_eq!(map.update(&[key], &bytes, UpdateMode::Exist), Ok(()));
                    model.insert(key, value);
                }
                _ => {
                    let full = !there && model.len() == 4;
                    let expected = if full { Err(MapError::TooBig) } else { Ok(()) };
                    prop_assert_eq!(map.update(&[key], &bytes, UpdateMode::Any), expected);
                    if !full {
                        model.insert(key, value);
                    }
                }
            }
            for key in 0..8 {
                let expected = model.get(&key).map(|value| value.to_le_bytes().to_vec());
                prop_assert_eq!(map.lookup(&[key]), expected);
            }
            prop_assert_eq!(map.keys().len(), model.len());
        }
    }
}
