//! Parses recipes: `police:rate=125M,burst=1M` becomes program blocks and initial map entries.

mod keys;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bpf::recipe::{Access, Lose, Police, Sample, Target};
use bpf::{Action, Pick, Recipe, Select, Stage, XdpAction};

use super::fill::Fill;
use crate::failure::{Outcome, nearest};
use keys::{Keys, usage};

/// A recipe and the initial entries of its maps.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Cooked {
    /// Name of the program in the kernel.
    pub(super) name: String,
    pub(super) recipe: Recipe,
    pub(super) fill: Vec<Fill>,
    /// Receive queues that the interface must have, if the recipe names a number.
    pub(super) queues: Option<u32>,
}

/// Highest number of receive queues (that of veth), and of map entries.
const QUEUES_MAX: u64 = 4096;
const ENTRIES_MAX: u64 = 1 << 24;
/// Highest number of CPUs of a kernel (NR_CPUS_MAXSMP).
const CPUS_MAX: u64 = 8192;
/// Highest number of sockets that share a queue.
const WAYS_MAX: u64 = 256;
/// UDP port of RoCEv2 (IBA A17.3.1).
const ROCE_PORT: u16 = 4791;
/// Length of the queue to another CPU, in packets; the kernel's limit is 16384.
const CPU_QUEUE: u32 = 2048;

/// The names of all recipes.
const NAMES: [&str; 12] = [
    "pass", "drop", "aborted", "tx", "steer", "police", "access", "lose", "sample", "forward", "redirect",
    "lb",
];

/// Whether there is a recipe of this name.
pub(super) fn is_name(word: &str) -> bool {
    NAMES.contains(&word)
}

/// What the user probably meant by a word that names no object file.
pub(super) fn meant(word: &str) -> Option<String> {
    let name = word.split(':').next().unwrap_or(word);
    match name {
        "count" => Some("every recipe counts: '--recipe pass', then 'roxie xdp stats'".to_owned()),
        _ => nearest(name, &NAMES)
            .map(|near| format!("a recipe is '--recipe {}'", word.replacen(name, near, 1))),
    }
}

/// Parses a recipe.
pub(super) fn parse(text: &str) -> Outcome<Cooked> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut keys = Keys::parse(name, rest)?;
    let (select, stages, action, fill) = blocks(name, &mut keys)?;
    keys.finish()?;
    let recipe = Recipe { select, stages, action, counters: true, frags: true };
    Ok(Cooked { name: format!("roxie_{name}"), recipe, fill, queues: keys.queues })
}

type Blocks = (Select, Vec<Stage>, Action, Vec<Fill>);

fn blocks(name: &str, keys: &mut Keys) -> Outcome<Blocks> {
    let verdict = Action::Verdict;
    Ok(match name {
        "pass" => (Select::All, Vec::new(), verdict(XdpAction::Pass), Vec::new()),
        "aborted" => (Select::All, Vec::new(), verdict(XdpAction::Aborted), Vec::new()),
        "drop" => (keys.only("all")?, Vec::new(), verdict(XdpAction::Drop), Vec::new()),
        "tx" => (keys.only("all")?, vec![Stage::Checksum], Action::Reflect, Vec::new()),
        "steer" => {
            let slots = keys.take("slots", "0-4095".to_owned())?;
            let slots = slot_range(&slots).ok_or_else(|| keys.wrong("slots", &slots))?;
            let queues = keys.queues(64)?;
            let action = redirect(Target::Xsk, queues, Pick::RxQueue, XdpAction::Pass);
            let stages = vec![Stage::Addressed, Stage::Owned];
            (roce(keys)?, stages, action, vec![Fill::OwnAddresses, Fill::Slots(slots.0, slots.1)])
        }
        "police" => {
            let police = Police {
                bytes_per_s: keys.number("rate", None, Police::RATES)?,
                burst_bytes: keys.number("burst", Some(64_000), Police::BURSTS)?,
                entries: keys.number("sources", Some(4096), 1..=ENTRIES_MAX)?,
            };
            (keys.only("ip")?, vec![Stage::Police(police)], verdict(XdpAction::Pass), Vec::new())
        }
        "access" => access(keys)?,
        "lose" => {
            let lose = Lose { per_million: keys.number("ppm", None, 1..=999_999)? };
            (keys.only("all")?, vec![Stage::Lose(lose)], verdict(XdpAction::Pass), Vec::new())
        }
        "sample" => {
            let sample = Sample {
                snap_len: keys.number("snap", Some(128), 1..=Sample::SNAP_MAX.into())?,
                every: keys.number("every", Some(1), 1..=i32::MAX as u64)?,
                ring_bytes: keys.number("ring", Some(1 << 20), Sample::RING_MIN.into()..=1 << 30)?,
                wakeup_bytes: 0,
            };
            (keys.only("all")?, vec![Stage::Sample(sample)], verdict(XdpAction::Pass), Vec::new())
        }
        "forward" => {
            let to = keys.list("to")?;
            let action = Action::Forward { ports: to.len() as u32 };
            (Select::All, vec![Stage::Checksum], action, vec![Fill::Ports(to)])
        }
        "redirect" => {
            let to = keys.list("to")?;
            if to.len() != 1 {
                return Err(keys.wrong("to", &to.join("+")));
            }
            let action = redirect(Target::Dev, 1, Pick::Fixed(0), XdpAction::Pass);
            (keys.only("all")?, vec![Stage::Checksum], action, vec![Fill::Devices(to)])
        }
        "lb" => balance(keys)?,
        _ => {
            let near = nearest(name, &NAMES).map(|near| format!("did you mean '{near}'? "));
            let hint = "'roxie xdp attach --help' lists them; parameters follow a colon: lose:ppm=10000";
            let hint = format!("{}{hint}", near.unwrap_or_default());
            return Err(usage(format!("no recipe '{name}'")).hint(hint));
        }
    })
}

/// Redirects to one of `entries` of the map of `target`; `miss` is the verdict if that one is empty.
pub(super) fn redirect(target: Target, entries: u32, pick: Pick, miss: XdpAction) -> Action {
    Action::Redirect { target, entries, pick, miss }
}

fn balance(keys: &mut Keys) -> Outcome<Blocks> {
    let to = keys.list("to")?;
    let (action, fill) = match to[0].as_str() {
        "cpu" if to.len() == 1 => {
            let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
            let ways = keys.number("ways", Some(cpus), 1..=CPUS_MAX)?;
            let action = redirect(Target::Cpu, ways, Pick::Qpn { ways }, XdpAction::Pass);
            (action, vec![Fill::Cpus { count: ways, queue: CPU_QUEUE }])
        }
        "xsk" if to.len() == 1 => {
            let (queues, ways): (u32, u32) = (keys.queues(1)?, keys.number("ways", Some(1), 1..=WAYS_MAX)?);
            let pick = Pick::RxQueueQpn { ways };
            (redirect(Target::Xsk, queues * ways, pick, XdpAction::Pass), Vec::new())
        }
        _ => {
            let ways = to.len() as u32;
            let action = redirect(Target::Dev, ways, Pick::Qpn { ways }, XdpAction::Pass);
            (action, vec![Fill::Devices(to)])
        }
    };
    // AF_XDP sockets read packets as they are.
    let is_xsk = matches!(action, Action::Redirect { target: Target::Xsk, .. });
    let stages = if is_xsk { Vec::new() } else { vec![Stage::Checksum] };
    Ok((roce(keys)?, stages, action, fill))
}

/// Default size of the table of `access`; `roxie xdp map set` adds entries to those of the recipe.
const PREFIXES: u32 = 1024;
/// 64 MiB of kernel memory.
const PREFIXES_MAX: u64 = 1 << 20;

fn access(keys: &mut Keys) -> Outcome<Blocks> {
    let mut prefixes = Vec::new();
    let (deny, allow) = (keys.optional_list("deny"), keys.optional_list("allow"));
    for (key, list, let_in) in [("deny", &deny, false), ("allow", &allow, true)] {
        for text in list {
            let (address, len) = prefix(text).ok_or_else(|| keys.wrong(key, text))?;
            prefixes.push((address, len, let_in));
        }
    }
    if prefixes.is_empty() {
        return Err(keys.missing("deny= or allow="));
    }
    let denied =
        |(address, len, let_in): &(IpAddr, u8, bool)| *let_in && prefixes.contains(&(*address, *len, false));
    if let Some((address, len, _)) = prefixes.iter().find(|one| denied(one)) {
        return Err(usage(format!("recipe access: {address}/{len} is both in deny= and in allow=")));
    }
    let given = prefixes.len() as u32;
    let entries = keys.number("prefixes", Some(given.max(PREFIXES)), given.into()..=PREFIXES_MAX)?;
    let access = Access { default_allow: !deny.is_empty(), entries };
    let select = keys.only("ip")?;
    Ok((select, vec![Stage::Access(access)], Action::Verdict(XdpAction::Pass), vec![Fill::Access(prefixes)]))
}

fn roce(keys: &mut Keys) -> Outcome<Select> {
    Ok(Select::Roce { port: keys.number("port", Some(ROCE_PORT), 1..=u16::MAX.into())? })
}

/// `10.0.0.0/8`, `fd00::1`
pub(crate) fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address.parse::<IpAddr>().ok()?, len.parse::<u8>().ok()?),
        None => {
            let address = text.parse::<IpAddr>().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    (len <= if address.is_ipv4() { 32 } else { 128 }).then(|| (network(address, len), len))
}

/// The address with zeros behind the prefix, so that equal prefixes compare equal.
fn network(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(ip) => {
            let host = u32::MAX.checked_shr(len.into()).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & !host).into()
        }
        IpAddr::V6(ip) => {
            let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & !host).into()
        }
    }
}

/// The largest value of the upper 12 bits of a QPN.
const SLOT_LAST: u16 = (1 << 12) - 1;

fn slot_range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1 && range.1 <= SLOT_LAST).then_some(range)
}

#[cfg(test)]
mod tests {
    use bpf::ProgramKind;

    use super::*;

    #[test]
    fn every_recipe_of_the_help_makes_a_program() {
        for text in [
            "pass",
            "drop",
            "aborted",
            "tx",
            "tx:only=roce,port=4792",
            "steer",
            "steer:queues=2,slots=16-31",
            "police:rate=125M,burst=1M",
            "police:rate=1Mi,only=roce",
            "access:deny=10.0.0.0/8+fd00::/8,allow=10.1.2.3",
            "lose:ppm=10000",
            "lose:ppm=999999,only=roce",
            "sample:every=100,snap=64,ring=64Ki",
            "forward:to=eth0+eth1",
            "redirect:to=eth1,only=ip",
            "lb:to=cpu,ways=4",
            "lb:to=xsk,queues=2,ways=4",
            "lb:to=eth0+eth1",
        ] {
            let cooked = parse(text).unwrap_or_else(|failure| panic!("{text}: {failure}"));
            let program = cooked.recipe.program(&cooked.name, ProgramKind::Xdp);
            let program = program.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(program.map("counters").is_some() && program.frags);
            for fill in &cooked.fill {
                assert!(program.map(fill.map()).is_some(), "{text}: {fill:?}");
            }
        }
        let name = |line: &str| line.split_whitespace().next().unwrap().trim_end_matches(',').to_owned();
        let recipes = include_str!("../help/xdp-attach.txt").lines().take_while(|line| !line.is_empty());
        for line in recipes.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let known =
                ["pass", "tx", "steer", "police", "access", "lose", "sample", "forward", "redirect", "lb"];
            let first = name(line);
            assert!(known.contains(&first.as_str()), "{line}");
        }
    }

    #[test]
    fn invalid_recipes_are_refused_with_the_name_of_the_key() {
        for (text, want) in [
            ("fly", "no recipe 'fly'"),
            ("polic:rate=1M", "did you mean 'police'?"),
            ("lose=1", "parameters follow a colon: lose:ppm=10000"),
            ("drop:fast", "'fast' is not KEY=VALUE"),
            ("drop:speed=9", "has no speed="),
            ("police", "needs rate="),
            ("police:rate=ten", "rate=ten: a whole number from 1024 to 1000000000000 is wanted"),
            ("police:rate=1e9", "may end in K, M, G (1000) or Ki, Mi, Gi (1024): 64K, 2Mi"),
            ("police:rate=5", "rate=5: a whole number from 1024"),
            ("police:rate=1M,sources=0", "sources=0: a whole number from 1 to 16777216"),
            ("steer:queues=1e8", "queues=1e8: a whole number from 1 to 4096"),
            ("steer:queues=5000", "queues=5000: a whole number from 1 to 4096"),
            ("lb:to=cpu,ways=100000", "ways=100000: a whole number from 1 to 8192"),
            ("lb:to=xsk,ways=1000", "ways=1000: a whole number from 1 to 256"),
            ("lose:ppm=0", "ppm=0: a whole number from 1 to 999999"),
            ("drop:only=roce,port=0", "port=0: a whole number from 1 to 65535"),
            ("access:deny=10.0.0.0/8,allow=10.9.9.9/8", "10.0.0.0/8 is both in deny= and in allow="),
            ("access:allow=fd00::1,deny=fd00::1/128", "fd00::1/128 is both in"),
            ("police:rate=1K,rate=2K", "given twice"),
            ("police:rate=1M,only=all", "only=all is invalid"),
            ("steer:slots=9-3", "slots=9-3 is invalid"),
            ("access", "needs deny= or allow="),
            ("access:deny=10.0.0.0/33", "deny=10.0.0.0/33 is invalid"),
            ("redirect:to=a+b", "to=a+b is invalid"),
            ("lb", "needs to="),
            ("sample:snap=70000", "snap=70000: a whole number from 1 to 16384"),
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.to_string().contains(want), "{text}: {failure}");
            assert_eq!(failure.code, 2);
        }
        assert!(meant("count").is_some_and(|hint| hint.contains("--recipe pass")));
        assert_eq!(meant("polic:rate=1M").as_deref(), Some("a recipe is '--recipe police:rate=1M'"));
        assert_eq!(meant("my_object.o"), None);
    }
}
