//! Generators of test packets.

use bpf::recipe::Target;
use bpf::{Pick, ProgramKind, Recipe, XdpAction};
use sys::Link;
use sys::bpf::{Program, TestRun};

use super::frame::{self, Ends};
use super::xsk::Xsk;
use crate::failure::{During, Failure, Outcome};
use crate::xdp::recipe::redirect;

/// Sends frames from an interface.
#[derive(Debug)]
pub(super) enum Generator {
    /// The kernel generates them: a test run of a program with live frames (BPF_F_TEST_XDP_LIVE_FRAMES,
    /// since 5.18), which the driver gets as redirected frames (ndo_xdp_xmit).
    Live { program: Program, context: Vec<u8>, frame: Vec<u8> },
    /// An AF_XDP socket: for drivers without ndo_xdp_xmit, for generic mode, and for multi-buffer frames.
    Socket { xsk: Box<Xsk>, len: usize },
}

/// Frames of one batch of the kernel; no more than the ring of a veth.
const LIVE_BATCH: u32 = 64;

impl Generator {
    /// Generates frames of the shortest length from `link`, in the kernel.
    pub(super) fn live(link: &Link, ends: &Ends) -> Outcome<Generator> {
        let action = redirect(Target::Dev, 1, Pick::Fixed(0), XdpAction::Drop);
        let recipe = Recipe { action, ..Recipe::verdict(XdpAction::Pass) };
        let definition = recipe.program("roxie_generate", ProgramKind::Xdp);
        let definition = definition.map_err(|error| Failure::new(error.to_string()))?;
        let (program, maps) = Program::load_with_maps(&definition).during("generator")?;
        let map = definition.map(Target::Dev.map_name()).and_then(|at| maps.get(at.index()));
        let entry = [link.index.to_ne_bytes(), [0; 4]].concat();
        map.ok_or_else(|| Failure::new("no map"))?.update(&[0; 4], &entry).during("generator")?;
        let frame = frame::build(ends, frame::SHORT);
        let context = [0, frame.len() as u32, 0, link.index, 0, 0].map(u32::to_ne_bytes).concat();
        Ok(Generator::Live { program, context, frame })
    }

    /// Sends frames of `len` bytes from `link`, through a socket.
    pub(super) fn socket(link: &Link, ends: &Ends, len: usize) -> Outcome<Generator> {
        let mut xsk = Xsk::open(link, len > frame::SHORT)?;
        xsk.prepare(&frame::build(ends, len));
        Ok(Generator::Socket { xsk: Box::new(xsk), len })
    }

    /// Sends.
    pub(super) fn send(&mut self, count: u64) -> Outcome {
        match self {
            Generator::Live { program, context, frame } => {
                let run = TestRun {
                    packet: frame,
                    context,
                    repeat: u32::try_from(count).unwrap_or(u32::MAX),
                    flags: Program::LIVE_FRAMES,
                    batch: LIVE_BATCH,
                };
                program.test_run(&run).map(drop).during("generator")
            }
            Generator::Socket { xsk, len } => xsk.send(count, *len),
        }
    }

    /// Packets per call: a test run takes some 20 ms to begin and to end, whatever its length.
    pub(super) fn chunk(&self) -> u64 {
        match self {
            Generator::Live { .. } => 500_000,
            Generator::Socket { .. } => 256,
        }
    }

    /// Description for the report.
    pub(super) fn describe(&self) -> String {
        match self {
            Generator::Live { .. } => "frames made by the kernel (test run with live frames)".to_owned(),
            Generator::Socket { xsk, .. } => format!("an AF_XDP socket ({})", xsk.mode()),
        }
    }
}
