//! The options of a lab: names, addresses, and the words for loss and delay.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Name of every host's interface.
pub(super) const NETDEV: &str = "eth0";
/// Smallest MTU of IPv6 (RFC 8200).
pub(super) const IPV6_MTU_MIN: u32 = 1280;
const DELAY_MAX_US: u32 = 10_000_000;

/// The options of a lab.
#[derive(Clone, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) hosts: u8,
    pub(super) mtu: u32,
    pub(super) loss: Loss,
    pub(super) delay: Delay,
    pub(super) ipv6: bool,
}

/// Packets dropped per million.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) struct Loss(pub(super) u32);

/// Microseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) struct Delay(pub(super) u32);

impl Spec {
    /// Whether the hosts need a bridge, with ports that drop and delay packets.
    pub(super) fn has_bridge(&self) -> bool {
        self.hosts > 2 || self.loss != Loss(0) || self.delay != Delay(0)
    }

    /// The numbers of the hosts.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u8> {
        1..=self.hosts
    }

    /// Addresses of host `n` with their prefix lengths.
    pub(super) fn addresses(&self, n: u8) -> Vec<(IpAddr, u8)> {
        let v4 = (Ipv4Addr::new(10, 77, 0, n).into(), 24);
        let v6 = (Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(n)).into(), 64);
        if self.ipv6 { vec![v4, v6] } else { vec![v4] }
    }

    /// Content of the hosts' /etc/hosts (hosts(5)).
    pub(super) fn hosts_file(&self) -> String {
        let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for n in self.numbers() {
            for (ip, _) in self.addresses(n) {
                text += &format!("{ip} {}\n", host_name(n));
            }
        }
        text
    }
}

/// For messages.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} hosts, MTU {}", self.name, self.hosts, self.mtu)?;
        if self.loss != Loss(0) {
            write!(f, ", loss {}", self.loss)?;
        }
        if self.delay != Delay(0) {
            write!(f, ", delay {}", self.delay)?;
        }
        Ok(())
    }
}

pub(super) fn host_name(n: u8) -> String {
    format!("h{n}")
}

/// Parses a name for clap. The name is part of file names.
pub(super) fn lab_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if (1..=32).contains(&text.len()) && text.chars().all(good) && !text.starts_with('-') {
        return Ok(text.to_owned());
    }
    Err("use 1 to 32 letters, digits and '-'".to_owned())
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = if let Some(percent) = text.strip_suffix('%') {
            percent.trim().parse::<f64>().ok().map(|percent| percent / 100.0)
        } else {
            text.split_once('/').and_then(|(a, b)| Some(a.parse::<f64>().ok()? / b.parse::<f64>().ok()?))
        };
        let per_million = share.map(|share| (share * 1e6).round()).filter(|n| (0.0..1e6).contains(n));
        let lost = per_million.ok_or("use '1%' or '1/100', less than all")? as u32;
        if lost == 0 && share != Some(0.0) {
            return Err("less than one in a million is none".to_owned());
        }
        Ok(Self(lost))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let scale = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ => return Err("needs a unit: '250us', '1ms', '1s'".to_owned()),
        };
        let us = number.trim().parse::<f64>().map_err(|error| error.to_string())? * scale;
        if (0.0..=f64::from(DELAY_MAX_US)).contains(&us) {
            return Ok(Self(us.round() as u32));
        }
        Err("use 0 to 10 s".to_owned())
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us >= 1000 => write!(f, "{}ms", f64::from(us) / 1e3),
            us => write!(f, "{us}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_delay_have_units() {
        let loss = |text: &str| text.parse::<Loss>().ok().map(|loss| loss.0);
        assert_eq!(["1%", "0.01%", "1/1000", "0%"].map(loss), [Some(10_000), Some(100), Some(1000), Some(0)]);
        assert_eq!(["100%", "-1%", "1", "1/0", "0.00001%", "NaN%", ""].map(loss), [None; 7]);
        let delay = |text: &str| text.parse::<Delay>().ok().map(|delay| delay.0);
        assert_eq!(["1ms", "250us", "0.5s"].map(delay), [Some(1000), Some(250), Some(500_000)]);
        assert_eq!(["1", "-1ms", "11s", "1min", "ms"].map(delay), [None; 5]);
        assert_eq!((Loss(10_000).to_string(), Delay(1500).to_string()), ("1%".into(), "1.5ms".into()));
    }

    #[test]
    fn names_of_labs_are_safe_file_names() {
        assert!(lab_name("ci-1").is_ok());
        for bad in ["", "a/b", "..", "-x", "a b", &"x".repeat(33)] {
            assert!(lab_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_host_is_in_the_hosts_file() {
        let spec =
            Spec { name: "lab".to_owned(), hosts: 2, mtu: 1500, loss: Loss(0), delay: Delay(0), ipv6: true };
        assert!(spec.hosts_file().ends_with("10.77.0.1 h1\nfd77::1 h1\n10.77.0.2 h2\nfd77::2 h2\n"));
        assert!(!spec.has_bridge() && Spec { loss: Loss(1), ..spec }.has_bridge());
    }
}
