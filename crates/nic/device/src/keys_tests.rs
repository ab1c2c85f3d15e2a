//! Access checks for every kind of key.

use transport::{Errno, VerbsError};
use wire::{Lkey, Rkey};

use super::*;

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QP: Qpn = Qpn::new(5);
const OTHER_QP: Qpn = Qpn::new(6);
const WRITE: Access = Access::REMOTE_WRITE;
const READ: Access = Access::REMOTE_READ;
/// A region of 64 bytes at 0x7000, which work requests address from 0x1000.
const REGION: Range = Range { base: 0x7000, len: 64, iova: 0x1000 };

fn bindable(table: &mut KeyTable) -> u32 {
    table.register(PD, REGION, Access::LOCAL_WRITE | Access::MW_BIND).expect("registers")
}

fn bind(window: u32, region: u32) -> MwBind {
    let r_key = Rkey(window ^ 1);
    MwBind { r_key, mr: Lkey(region), addr: 0x1010, len: 16, access: WRITE | READ }
}

#[test]
fn bounds_access_rights_domain_and_key_are_checked() {
    let mut table = KeyTable::default();
    let key = table.register(PD, REGION, Access::LOCAL_WRITE | WRITE).expect("registers");
    let write = |t: &KeyTable, pd, k, va, len| t.remote(pd, QP, k, va, len, WRITE);
    assert_eq!(write(&table, PD, key, 0x1000, 64), Ok(0x7000));
    assert_eq!(write(&table, PD, key, 0x103f, 1), Ok(0x703f));
    assert_eq!(write(&table, PD, key, 0x1001, 64), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&table, PD, key, 0xfff, 1), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&table, PD, key, u64::MAX, 2), Err(AccessFault::OutOfBounds));
    assert_eq!(write(&table, OTHER_PD, key, 0x1000, 1), Err(AccessFault::WrongPd));
    assert_eq!(write(&table, PD, key ^ 1, 0x1000, 1), Err(AccessFault::BadKey));
    assert_eq!(table.remote(PD, QP, key, 0x1000, 1, READ), Err(AccessFault::Permission));
    assert_eq!(table.remote_key(PD, QP, key, WRITE), Ok(()));
    assert_eq!(table.remote_key(PD, QP, key, READ), Err(AccessFault::Permission));
    assert_eq!(table.remote_key(OTHER_PD, QP, key, WRITE), Err(AccessFault::WrongPd));
    table.remove(key);
    assert_eq!(write(&table, PD, key, 0x1000, 1), Err(AccessFault::BadKey));
    assert_eq!(table.remote_key(PD, QP, key, WRITE), Err(AccessFault::BadKey));
}

/// A peer that was granted one region must not know the keys of the others.
#[test]
fn a_key_tells_nothing_about_the_next() {
    let mut table = KeyTable::default();
    let keys: Vec<u32> =
        (0..1000).map(|_| table.register(PD, REGION, Access::empty()).expect("registers")).collect();
    for shift in [0, 8, 16] {
        let step = |pair: &[u32]| (pair[1] >> shift).wrapping_sub(pair[0] >> shift) as u16;
        let next = keys.windows(2).filter(|pair| step(pair) == 1).count();
        assert!(next < 5, "{next} of 1000 keys follow from the key before");
    }
    for key in keys {
        assert_eq!(table.local(PD, key, 0x1000, 64, Access::empty()), Ok(0x7000));
        table.remove(key);
        assert_eq!(table.local(PD, key, 0x1000, 64, Access::empty()), Err(AccessFault::BadKey));
    }
}

#[test]
fn remote_write_without_local_write_is_refused() {
    let mut table = KeyTable::default();
    assert_eq!(table.register(PD, REGION, WRITE).map_err(|refused| refused.kind()), Err(Errno::EINVAL));
    let wraps = Range { base: u64::MAX, len: 8, iova: 0 };
    assert_eq!(
        table.register(PD, wraps, Access::empty()).map_err(|refused| refused.kind()),
        Err(Errno::EINVAL)
    );
}

/// A window must not grant access to the whole region, as it does in rxe, which checks only the region's
/// bounds.
#[test]
fn a_window_limits_bounds_and_access_rights() {
    for ty in [MwType::Type1, MwType::Type2] {
        let mut table = KeyTable::default();
        let region = bindable(&mut table);
        let window = table.alloc_window(PD, ty).expect("room");
        assert_eq!(table.remote(PD, QP, window, 0x1010, 1, READ), Err(AccessFault::BadKey), "not bound yet");
        let wanted = MwBind { access: READ, ..bind(window, region) };
        assert_eq!(table.bind(PD, QP, &wanted), Ok(()));
        let key = wanted.r_key.0;
        assert_eq!(table.remote(PD, QP, key, 0x1010, 16, READ), Ok(0x7010));
        for (va, len) in [(0x100f, 1), (0x1010, 17), (0x1020, 1), (0x1000, 64)] {
            assert_eq!(table.remote(PD, QP, key, va, len, READ), Err(AccessFault::OutOfBounds));
        }
        assert_eq!(table.remote(PD, QP, key, 0x1010, 16, WRITE), Err(AccessFault::Permission));
        assert_eq!(table.remote(OTHER_PD, QP, key, 0x1010, 16, READ), Err(AccessFault::WrongPd));
        assert_eq!(
            table.remote(PD, QP, window, 0x1010, 16, READ),
            Err(AccessFault::BadKey),
            "the key before the bind"
        );
        assert_eq!(table.local(PD, key, 0x1010, 16, Access::empty()), Err(AccessFault::BadKey));
        assert_eq!(table.remote(PD, QP, region, 0x1010, 16, READ), Err(AccessFault::Permission));
    }
}

#[test]
fn every_invalid_bind_is_refused() {
    let mut table = KeyTable::default();
    let region = bindable(&mut table);
    let window = table.alloc_window(PD, MwType::Type2).expect("room");
    let good = bind(window, region);
    let read_only = table.register(PD, REGION, Access::MW_BIND).expect("registers");
    let unbindable = table.register(PD, REGION, Access::LOCAL_WRITE).expect("registers");
    let foreign = table.register(OTHER_PD, REGION, Access::MW_BIND | Access::LOCAL_WRITE).expect("registers");
    let zero_based = Access::MW_BIND | Access::LOCAL_WRITE | Access::ZERO_BASED;
    let zero_based = table.register(PD, Range { iova: 0, ..REGION }, zero_based).expect("registers");
    let mr = |key| MwBind { mr: Lkey(key), ..good };
    for (bad, fault) in [
        (mr(read_only), AccessFault::Permission),
        (mr(unbindable), AccessFault::Permission),
        (mr(foreign), AccessFault::WrongPd),
        (MwBind { addr: 0, ..mr(zero_based) }, AccessFault::Permission),
        (mr(region ^ 1), AccessFault::BadKey),
        (mr(window), AccessFault::BadKey),
        (MwBind { addr: 0x1031, ..good }, AccessFault::OutOfBounds),
        (MwBind { addr: 0xfff, ..good }, AccessFault::OutOfBounds),
        (MwBind { len: u64::MAX, ..good }, AccessFault::OutOfBounds),
        (MwBind { len: 0, ..good }, AccessFault::Permission),
        (MwBind { access: Access::MW_BIND, ..good }, AccessFault::Permission),
        (MwBind { r_key: Rkey(window ^ 0x0200_0000), ..good }, AccessFault::BadKey),
        (MwBind { r_key: Rkey(region), ..good }, AccessFault::BadKey),
    ] {
        assert_eq!(table.bind(PD, QP, &bad), Err(fault), "{bad:?}");
        assert!(!table.has_windows(region));
    }
    assert_eq!(table.bind(OTHER_PD, QP, &good), Err(AccessFault::WrongPd));
    assert_eq!(table.bind(PD, QP, &good), Ok(()));
    assert_eq!(table.bind(PD, QP, &good), Err(AccessFault::Permission), "a type 2 window is bound only once");
}

/// rdma-core's tests and applications ask for it, because a region needs it for remote writes.
#[test]
fn local_write_in_the_access_of_a_window_is_accepted_and_grants_no_local_access() {
    for ty in [MwType::Type1, MwType::Type2] {
        let mut table = KeyTable::default();
        let region = bindable(&mut table);
        let window = table.alloc_window(PD, ty).expect("room");
        let wanted = MwBind { access: Access::LOCAL_WRITE | WRITE, ..bind(window, region) };
        let key = wanted.r_key.0;
        assert_eq!(table.bind(PD, QP, &wanted), Ok(()));
        assert_eq!(table.remote(PD, QP, key, 0x1010, 16, WRITE), Ok(0x7010));
        assert_eq!(table.remote(PD, QP, key, 0x1010, 16, READ), Err(AccessFault::Permission));
        assert_eq!(table.local(PD, key, 0x1010, 16, Access::LOCAL_WRITE), Err(AccessFault::BadKey));
    }
}

#[test]
fn a_type_2_window_belongs_to_its_queue_pair_until_it_is_invalidated() {
    let mut table = KeyTable::default();
    let region = bindable(&mut table);
    let window = table.alloc_window(PD, MwType::Type2).expect("room");
    let zero_based = MwBind { access: WRITE | Access::ZERO_BASED, ..bind(window, region) };
    let key = zero_based.r_key.0;
    assert_eq!(table.bind(PD, QP, &zero_based), Ok(()));
    assert_eq!(table.remote(PD, QP, key, 0, 16, WRITE), Ok(0x7010));
    assert_eq!(table.remote(PD, OTHER_QP, key, 0, 16, WRITE), Err(AccessFault::WrongPd));
    assert_eq!(table.invalidate(PD, OTHER_QP, key), Err(AccessFault::Permission));
    assert_eq!(table.invalidate(OTHER_PD, QP, key), Err(AccessFault::WrongPd));
    assert_eq!(
        table.change(region, Some(OTHER_PD), None, None).map_err(|refused| refused.kind()),
        Err(Errno::EBUSY)
    );
    assert_eq!(table.invalidate(PD, QP, key), Ok(()));
    assert_eq!(table.invalidate(PD, QP, key), Err(AccessFault::Permission));
    assert_eq!(table.remote(PD, QP, key, 0, 1, WRITE), Err(AccessFault::BadKey));
    assert!(!table.has_windows(region));

    // Destroying the queue pair unbinds the window, too.
    assert_eq!(table.bind(PD, QP, &MwBind { r_key: Rkey(key ^ 3), ..zero_based }), Ok(()));
    table.unbind_qp(OTHER_QP);
    assert_eq!(table.remote(PD, QP, key ^ 3, 0, 16, WRITE), Ok(0x7010));
    table.unbind_qp(QP);
    assert_eq!(table.remote(PD, QP, key ^ 3, 0, 16, WRITE), Err(AccessFault::BadKey));
    assert!(!table.has_windows(region));
}

#[test]
fn a_type_1_window_can_be_rebound_and_unbound_but_not_invalidated() {
    let mut table = KeyTable::default();
    let region = bindable(&mut table);
    let window = table.alloc_window(PD, MwType::Type1).expect("room");
    let first = bind(window, region);
    assert_eq!(table.bind(PD, QP, &first), Ok(()));
    assert_eq!(table.remote(PD, OTHER_QP, first.r_key.0, 0x1010, 16, WRITE), Ok(0x7010), "any queue pair");
    assert_eq!(table.invalidate(PD, QP, first.r_key.0), Err(AccessFault::Permission));
    let moved = MwBind { r_key: Rkey(window ^ 2), addr: 0x1000, ..first };
    assert_eq!(table.bind(PD, QP, &moved), Ok(()));
    assert_eq!(table.remote(PD, QP, first.r_key.0, 0x1010, 1, WRITE), Err(AccessFault::BadKey));
    assert_eq!(table.remote(PD, QP, moved.r_key.0, 0x1000, 16, WRITE), Ok(0x7000));
    let zero_based = MwBind { access: Access::ZERO_BASED, ..moved };
    assert_eq!(table.bind(PD, QP, &zero_based), Err(AccessFault::Permission));
    assert!(table.has_windows(region));
    let nothing = MwBind { r_key: Rkey(window ^ 3), mr: Lkey(0), len: 0, ..moved };
    assert_eq!(table.bind(PD, QP, &nothing), Ok(()));
    assert_eq!(table.remote(PD, QP, window ^ 3, 0x1000, 1, WRITE), Err(AccessFault::BadKey));
    assert!(!table.has_windows(region));
}

#[test]
fn deregistering_a_region_unbinds_its_windows() {
    let mut table = KeyTable::default();
    let region = bindable(&mut table);
    let window = table.alloc_window(PD, MwType::Type1).expect("room");
    let bound = bind(window, region);
    assert_eq!(table.bind(PD, QP, &bound), Ok(()));
    table.remove(region);
    let reuse = bindable(&mut table);
    assert_eq!(table.places.slot(reuse), 0, "the slot of the region");
    assert_eq!(table.remote(PD, QP, bound.r_key.0, 0x1010, 1, WRITE), Err(AccessFault::BadKey));
    table.remove(window);
    assert!(!table.has_windows(reuse));
}

#[test]
fn a_region_changes_completely_or_not_at_all() {
    let mut table = KeyTable::default();
    let key = table.register(PD, REGION, Access::empty()).expect("registers");
    let elsewhere = Range { base: 0x9000, len: 8, iova: 0x2000 };
    let bad = table.change(key, Some(OTHER_PD), Some(elsewhere), Some(WRITE));
    assert_eq!(bad.map_err(VerbsError::kind), Err(Errno::EINVAL));
    assert_eq!(table.local(PD, key, 0x1000, 64, Access::empty()), Ok(0x7000));
    let access = Access::LOCAL_WRITE | WRITE;
    assert_eq!(table.change(key, Some(OTHER_PD), Some(elsewhere), Some(access)), Ok(()));
    assert_eq!(table.remote(OTHER_PD, QP, key, 0x2000, 8, WRITE), Ok(0x9000));
    assert_eq!(table.remote(OTHER_PD, QP, key, 0x1000, 8, WRITE), Err(AccessFault::OutOfBounds));
    assert_eq!(table.remote(PD, QP, key, 0x2000, 8, WRITE), Err(AccessFault::WrongPd));
}

#[test]
fn a_fast_registered_region_is_valid_between_reg_mr_and_invalidate() {
    let mut table = KeyTable::default();
    let key = table.alloc_fast(PD).expect("room");
    let access = Access::LOCAL_WRITE | WRITE;
    let reg = FastReg { key: Rkey(key ^ 7), iova: 0x5000, access };
    assert_eq!(table.map_fast(key, 0x7000, 64), Ok(()));
    assert_eq!(table.remote(PD, QP, key, 0x5000, 1, WRITE), Err(AccessFault::BadKey));
    assert_eq!(table.register_fast(OTHER_PD, &reg), Err(AccessFault::WrongPd));
    assert_eq!(table.register_fast(PD, &FastReg { access: WRITE, ..reg }), Err(AccessFault::Permission));
    assert_eq!(table.register_fast(PD, &reg), Ok(()));
    assert_eq!(table.register_fast(PD, &reg), Err(AccessFault::BadKey), "valid already");
    assert_eq!(table.map_fast(key, 0x9000, 64).map_err(|refused| refused.kind()), Err(Errno::EBUSY));
    assert_eq!(table.remote(PD, QP, key ^ 7, 0x5000, 64, WRITE), Ok(0x7000));
    assert_eq!(table.local(PD, key ^ 7, 0x5000, 64, Access::LOCAL_WRITE), Ok(0x7000));
    assert_eq!(
        table.invalidate(PD, OTHER_QP, key ^ 7),
        Ok(()),
        "any queue pair of the domain may invalidate it"
    );
    assert_eq!(table.remote(PD, QP, key ^ 7, 0x5000, 1, WRITE), Err(AccessFault::BadKey));
    let plain = table.register(PD, REGION, access).expect("registers");
    assert_eq!(
        table.invalidate(PD, QP, plain),
        Err(AccessFault::Permission),
        "a region of ibv_reg_mr cannot be invalidated"
    );
}

/// Exchanges changes, as the first table's engine does under the lock of the keys.
fn exchange_changes([first, second]: &mut [KeyTable; 2]) {
    second.apply_changes(&first.take_changed());
    first.apply_changes(&second.take_changed());
}

/// Checks that each bound window lies in a valid region, and that the region counts it.
fn check_windows(table: &KeyTable) {
    let mut counted = vec![0; table.entries.len()];
    for window in table.entries.iter().filter_map(Cell::get) {
        if window.is_bound_window() {
            let region = table.entries[window.region as usize].get();
            assert!(region.is_some_and(|region| region.grants == Grant::All), "{window:?} of {region:?}");
            counted[window.region as usize] += 1;
        }
    }
    let counts: Vec<u32> = table.entries.iter().map(|cell| cell.get().map_or(0, |e| e.windows)).collect();
    assert_eq!(counts, counted);
}

proptest::proptest! {
    /// Law: tables that exchange their changes are equal afterwards, and satisfy the invariant.
    #[test]
    fn tables_that_exchange_changes_are_equal(
        steps in proptest::collection::vec((0..10u8, proptest::prelude::any::<[u8; 3]>()), 1..200),
    ) {
        let mut tables = [KeyTable::default(), KeyTable::default()];
        tables.iter_mut().for_each(KeyTable::record_changes);
        let (mut regions, mut windows, mut fast) = (Vec::new(), Vec::new(), Vec::new());
        for (step, [here, which, what]) in steps {
            let at = |keys: &[u32]| keys.get(usize::from(which) % keys.len().max(1)).copied();
            // Calls change the first table and exchange at once; work requests change the table of their
            // queue pair.
            let is_call = step < 4;
            let here = if is_call { 0 } else { usize::from(here % 2) };
            let (qpn, table) = ([QP, OTHER_QP][here], &mut tables[here]);
            match step {
                0 => regions.push(bindable(table)),
                1 => {
                    let ty = [MwType::Type1, MwType::Type2][usize::from(what % 2)];
                    windows.push(table.alloc_window(PD, ty).expect("room"));
                }
                2 => {
                    fast.push(table.alloc_fast(PD).expect("room"));
                }
                3 => {
                    let keys = [&mut regions, &mut windows, &mut fast].into_iter().nth(usize::from(what % 3));
                    let keys = keys.expect("one of three");
                    if !keys.is_empty() {
                        table.remove(keys.swap_remove(usize::from(which) % keys.len()));
                    }
                }
                4 | 5 => {
                    let region = if what % 4 == 0 { at(&fast) } else { at(&regions) };
                    if let (Some(window), Some(region)) = (at(&windows), region) {
                        let len = if what < 32 { 0 } else { 16 };
                        let _refused = table.bind(PD, qpn, &MwBind { len, ..bind(window, region) });
                    }
                }
                6 => {
                    if let Some(key) = at(&fast) {
                        let (key, access) = (Rkey(key), Access::LOCAL_WRITE | Access::MW_BIND);
                        let _not_valid = table.map_fast(key.0, 0x7000, 64);
                        let _refused = table.register_fast(PD, &FastReg { key, iova: 0x1000, access });
                    }
                }
                7 => {
                    let key = at(&fast).filter(|_| what % 2 == 0).or(at(&windows).map(|key| key ^ 1));
                    let _refused = key.map(|key| table.invalidate(PD, qpn, key));
                }
                8 => table.unbind_qp(qpn),
                _ => {}
            }
            tables.iter().for_each(check_windows);
            if is_call || step == 9 {
                exchange_changes(&mut tables);
                // The second exchange unbinds windows of regions that the other table had removed.
                exchange_changes(&mut tables);
                let entries = tables.each_ref().map(|table| {
                    let entries = table.entries.iter().map(Cell::get).enumerate();
                    entries.filter_map(|(at, entry)| Some((at, entry?))).collect::<Vec<_>>()
                });
                proptest::prop_assert_eq!(&entries[0], &entries[1]);
                proptest::prop_assert_eq!(tables[0].bound_to_qps.get(), tables[1].bound_to_qps.get());
                tables.iter().for_each(check_windows);
            }
        }
    }
}
