//! `roxie hook frames`: frames that the hooks of a process redirect to an XSKMAP.

use std::time::Duration;

use roxie_capture::live::realtime_offset;

use super::args::HookFramesArgs;
use crate::engines::{device_suffixes, engines_of, unanswered};
use crate::failure::{During, Outcome};
use crate::frames::FrameOutput;

/// Pause after a query that returned no frame.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads until enough frames have arrived.
pub(super) fn frames(args: &HookFramesArgs) -> Outcome {
    let engines = engines_of(args.pid)?;
    let devices = device_suffixes(&engines)?;
    let mut out = FrameOutput::open(args.write.as_deref())?;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let offset = realtime_offset();
        let mut any = false;
        for (remote, device) in engines.iter().zip(&devices) {
            let frames = remote.frames().map_err(|error| unanswered(args.pid, &error))?;
            for frame in frames.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                (any, left) = (true, left - 1);
                let place = format!("{}{device}, entry {}", frame.point, frame.key);
                out.put(frame.time_ns + offset, frame.bytes.len() as u32, &place, &frame.bytes)
                    .during("writing frames")?;
            }
        }
        out.flush().during("writing frames")?;
        if !any {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}
