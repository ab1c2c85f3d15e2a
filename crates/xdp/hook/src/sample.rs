//! The stage `sample`: the recipe of the same name, which copies the front of packets into the ring
//! `samples`.

use bpf::recipe::Sample;
use bpf::{ProgramKind, Recipe, Stage, XdpAction};

use super::parameters::Parameters;
use super::{Hook, HookError};

const USAGE: &str = "sample:every=N,snap=BYTES,ring=BYTES (1, 256 and 1Mi by default)";
/// Bytes of a packet: all headers and the payload of a small message. Half cuts the payload of rping.
const SNAP_LEN: u16 = 256;
/// Size of the ring in bytes: 3000 samples. With half of it, a reader that sleeps 20 ms loses samples at
/// 75,000 packets per second.
const RING_BYTES: u32 = 1 << 20;

/// Creates the hook from the text after `sample:`.
pub(super) fn hook(text: &str) -> Result<Hook, HookError> {
    let mut parameters = Parameters::new("sample", text, USAGE);
    let mut sample = Sample { snap_len: SNAP_LEN, every: 1, ring_bytes: RING_BYTES, wakeup_bytes: 0 };
    while let Some((name, value)) = parameters.next()? {
        let number = parameters.quantity(value)?;
        match name {
            "every" => sample.every = number.try_into().map_err(|_| parameters.error())?,
            "snap" => sample.snap_len = number.try_into().map_err(|_| parameters.error())?,
            "ring" => sample.ring_bytes = number.try_into().map_err(|_| parameters.error())?,
            _ => return Err(parameters.error()),
        }
    }
    let recipe = Recipe { stages: vec![Stage::Sample(sample)], ..Recipe::verdict(XdpAction::Pass) };
    let program = recipe.program("sample", ProgramKind::Xdp).map_err(|_range| parameters.error())?;
    Hook::program(&program)
}
