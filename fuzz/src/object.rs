//! Fuzzes object files with XDP programs, with the file's own types as those of the kernel. Byte 0 selects
//! whether the kernel's types are known.
//!
//! Checked: no panic; a program that is linked can be listed, vetted, loaded into the machine and run.

use bpf::object::{Kernel, candidates};
use bpf::vet::vet;
use bpf::vm::{Env, Image, Machine, XdpBuff};

/// Most bytes of the maps of a program that is also loaded.
const MAPS_MAX: u64 = 1 << 20;

/// A configuration of the kernel.
const CONFIG: &str = "CONFIG_BPF=y\nCONFIG_HZ=250\nCONFIG_TEXT=\"text\"\n";

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((which, file)) = data.split_first() else { return };
    let types = types(file).filter(|_| which % 2 == 0);
    let kernel = Kernel { types, version: Some(6 << 16), config: Some(CONFIG), cpus: Some(2) };
    let Ok(found) = candidates(file, &kernel) else { return };
    for candidate in found {
        let program = match candidate.program {
            Ok(program) => program,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let program = &program;
        drop(program.listing().to_string());
        assert!(vet(program).iter().all(|objection| !objection.to_string().is_empty()));
        let bytes = program.maps.iter().map(|map| map.memory_bytes(1)).fold(0, u64::saturating_add);
        if bytes <= MAPS_MAX
            && let Ok(maps) = program.maps.iter().map(|def| bpf::Map::new(def, 1)).collect()
        {
            run_once(program, maps);
        }
    }
}

/// The bytes from the first header of type information on.
fn types(file: &[u8]) -> Option<&[u8]> {
    let at = file.windows(4).position(|bytes| bytes == [0x9f, 0xeb, 1, 0])?;
    file.get(at..)
}

/// Runs the program on a packet of zeros, with a small budget.
fn run_once(program: &bpf::Program, maps: Vec<std::sync::Arc<bpf::Map>>) {
    let Ok(image) = Image::new(program, maps) else { return };
    let mut buffer = [0; 512];
    let Some(mut buff) = XdpBuff::new(&mut buffer, 256..320) else { return };
    Machine::new(0).with_budget(1 << 12).run(&image, &mut buff, &mut Host);
}

struct Host;

impl Env for Host {
    fn ktime_ns(&mut self) -> u64 {
        1
    }

    fn random(&mut self) -> u32 {
        2
    }
}
