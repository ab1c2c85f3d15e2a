//! Fuzzes object files with XDP programs, with the file's own types as those of the kernel. Byte 0 selects
//! whether the kernel's types are known.
//!
//! Checked: no panic; a program that is read can be listed and vetted.

use bpf::object::programs_of;
use bpf::vet::vet;

/// Most bytes of the maps of a program that is also loaded.
const MAPS_MAX: u64 = 1 << 20;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((which, file)) = data.split_first() else { return };
    let types = types(file).filter(|_| which % 2 == 0);
    let Ok(programs) = programs_of(file, types) else { return };
    for program in &programs {
        drop(program.listing().to_string());
        assert!(vet(program).iter().all(|objection| !objection.to_string().is_empty()));
        let bytes = program.maps.iter().map(|map| map.memory_bytes(1)).fold(0, u64::saturating_add);
        if bytes <= MAPS_MAX
            && let Ok(maps) = program.maps.iter().map(|def| bpf::Map::new(def, 1)).collect()
        {
            drop(bpf::vm::Image::new(program, maps));
        }
    }
}

/// The bytes from the first header of type information on.
fn types(file: &[u8]) -> Option<&[u8]> {
    let at = file.windows(4).position(|bytes| bytes == [0x9f, 0xeb, 1, 0])?;
    file.get(at..)
}
