//! `roxie xdp send`: the generator without the tests.

use std::time::Instant;

use sys::{Capability, xdp_features};

use super::frame::{self, Ends};
use super::generate::Generator;
use super::place;
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::terminal::Terminal;
use crate::xdp::args::SendArgs;
use crate::xdp::{ability, interface};

/// Sends the packets.
pub(crate) fn send(args: &SendArgs) -> Outcome {
    let link = interface(&args.netdev)?;
    let to = match &args.to {
        Some(text) => {
            parse(text).ok_or_else(|| Failure::new(format!("'{text}' is not an Ethernet address")).code(2))?
        }
        None => link.mac,
    };
    let live = !args.socket && xdp_features(link.index).is_ok_and(|features| features.xmit());
    if live {
        let needed = [Capability::Bpf, Capability::NetAdmin];
        ability::privileges("sending packets that the kernel makes", &needed)?;
    } else {
        ability::privileges("sending by an AF_XDP socket", &[Capability::NetRaw])?;
    }
    cpu::stay_on(cpu::pair()[0]);
    let ends = Ends { macs: [link.mac, to], ips: place::ADDRESSES };
    let mut generator =
        if live { Generator::live(&link, &ends)? } else { Generator::socket(&link, &ends, frame::SHORT)? };
    let start = Instant::now();
    let mut left = args.count;
    while left > 0 {
        let chunk = generator.chunk().min(left);
        generator.send(chunk)?;
        left -= chunk;
    }
    let seconds = start.elapsed().as_secs_f64();
    let mpps = args.count as f64 / seconds / 1e6;
    let how = generator.describe();
    Terminal::stdout().line(&format!("{} packets in {seconds:.3} s, {mpps:.3} Mpps, by {how}", args.count));
    Ok(())
}

fn parse(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_has_six_bytes() {
        assert_eq!(parse("02:00:00:00:0a:ff"), Some([2, 0, 0, 0, 10, 255]));
        for wrong in ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "2:0:0:0:0:0", "02:00:00:00:00:gg"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
