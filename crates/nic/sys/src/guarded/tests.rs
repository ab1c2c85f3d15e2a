//! Copies of every length and alignment, compared with the standard library.

use std::ptr;

use super::*;

#[test]
fn copies_are_exact_at_every_length_and_alignment() {
    let from: Vec<u8> = (0..1200).map(|i| (i * 7 + i / 256) as u8).collect();
    for len in (0..300).chain([511, 512, 513, 1023, 1024, 1025]) {
        for (shift_from, shift_to) in [(0, 0), (1, 0), (0, 1), (7, 3), (31, 17)] {
            let mut to = vec![0xee; len + 64];
            let src = &from[shift_from..shift_from + len];
            // SAFETY: both are ours.
            let done = unsafe { write(src, to[shift_to..].as_mut_ptr() as u64) };
            assert_eq!(done, Ok(()));
            assert_eq!(&to[shift_to..shift_to + len], src);
            assert!(to[..shift_to].iter().chain(&to[shift_to + len..]).all(|b| *b == 0xee));
            let mut back = vec![0; len];
            // SAFETY: both are ours.
            assert_eq!(unsafe { read(to[shift_to..].as_ptr() as u64, &mut back) }, Ok(()));
            assert_eq!(back, src);
        }
    }
}

#[test]
fn atomics_return_the_previous_value() {
    let mut word = 5u64;
    let at = &raw mut word as u64;
    // SAFETY: ours.
    unsafe {
        assert_eq!(fetch_add(at, 3), Ok(5));
        assert_eq!(compare_swap(at, 8, 1), Ok(8));
        assert_eq!(compare_swap(at, 8, 2), Ok(1));
    }
    assert_eq!(word, 1);
}

/// Prints how much slower a guarded copy is than the compiler's. Run it with `--release -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures"]
fn a_guarded_copy_costs_what_a_copy_costs() {
    let (from, mut to) = (vec![1u8; 1 << 16], vec![0u8; 1 << 16]);
    for len in [8, 64, 256, 1024, 4096, 65536] {
        let rounds = (1 << 30) / len.max(256);
        let time = |copy: &mut dyn FnMut()| {
            let begun = std::time::Instant::now();
            (0..rounds).for_each(|_| copy());
            begun.elapsed().as_secs_f64() * 1e9 / rounds as f64
        };
        // SAFETY: both are ours, in either way.
        let guarded = time(&mut || unsafe { write(&from[..len], to.as_mut_ptr() as u64).expect("ours") });
        let plain = time(&mut || {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), std::hint::black_box(to.as_mut_ptr()), len) }
        });
        println!("{len:6} bytes: guarded {guarded:8.1} ns, plain {plain:8.1} ns");
    }
}
