//! Recipes in words: `police:rate=125M,burst=1M` becomes blocks, and what is to be put into their maps.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use bpf::recipe::{Access, Lose, Police, Sample, Target};
use bpf::{Action, Pick, Recipe, Select, Stage, XdpAction};

use super::fill::Fill;
use crate::failure::{Failure, Outcome};

/// The recipes, for the help text.
macro_rules! recipes {
    () => {
        "\
Recipes: NAME or NAME:KEY=VALUE,...
  pass, drop, aborted     Every packet ends this way
  tx                      Back out of the interface, Ethernet and IP addresses exchanged
  steer                   RoCE for the interface's addresses to the AF_XDP sockets in map 'xsks' (see --pin), by receive
                          queue; everything passes while it is empty. queues=64, port=4791, slots=0-255 (bits 23-16 of
                          QPNs)
  police                  Sources that send faster are dropped. rate=BYTES/s, burst=BYTES (64K), sources=4096
  access                  Sources are let in or dropped by longest prefix: deny=PREFIX+..., allow=PREFIX+...; what no
                          prefix matches is dropped if only allow= is given
  lose                    Packets are lost by chance. ppm=PACKETS of a million
  sample                  Copies of packet heads for 'roxie xdp samples IF'. every=1, snap=128, ring=1Mi
  forward                 Routed by the kernel's tables between these interfaces, without the stack. to=IF+IF...
  redirect                Out of another interface. to=IF
  lb                      RoCE spread by destination QPN. to=cpu (ways=CPUs) or to=xsk (queues=1, ways=1) or to=IF+IF...

  tx, drop, redirect, police, access, lose and sample take only=all, only=ip or only=roce (UDP port=4791): other packets pass.
  Numbers may end in K, M, G (1000) or Ki, Mi, Gi (1024). Every recipe counts its verdicts: 'roxie xdp stats IF'.
"
    };
}

/// A recipe and the entries its maps begin with.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Cooked {
    /// What the kernel calls the program.
    pub(super) name: String,
    pub(super) recipe: Recipe,
    pub(super) fill: Vec<Fill>,
}

/// UDP port of RoCEv2 (IBA A17.3.1).
const ROCE_PORT: u16 = 4791;
/// Packets that wait for another CPU at most; the kernel's limit is 16384.
const CPU_QUEUE: u32 = 2048;

/// Reads a recipe.
pub(super) fn parse(text: &str) -> Outcome<Cooked> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut keys = Keys::parse(name, rest)?;
    let (select, stages, action, fill) = blocks(name, &mut keys)?;
    keys.finish()?;
    let recipe = Recipe { select, stages, action, counters: true, frags: true };
    Ok(Cooked { name: format!("roxie_{name}"), recipe, fill })
}

type Blocks = (Select, Vec<Stage>, Action, Vec<Fill>);

fn blocks(name: &str, keys: &mut Keys) -> Outcome<Blocks> {
    let verdict = Action::Verdict;
    Ok(match name {
        "pass" => (Select::All, Vec::new(), verdict(XdpAction::Pass), Vec::new()),
        "aborted" => (Select::All, Vec::new(), verdict(XdpAction::Aborted), Vec::new()),
        "drop" => (keys.only("all")?, Vec::new(), verdict(XdpAction::Drop), Vec::new()),
        "tx" => (keys.only("all")?, Vec::new(), Action::Reflect, Vec::new()),
        "steer" => {
            let slots = keys.take("slots", "0-255".to_owned())?;
            let slots = slot_range(&slots).ok_or_else(|| keys.wrong("slots", &slots))?;
            let queues = keys.number("queues", Some(64))?;
            let action = Action::Redirect {
                target: Target::Xsk,
                entries: queues,
                pick: Pick::RxQueue,
                miss: XdpAction::Pass,
            };
            let stages = vec![Stage::Addressed, Stage::Owned];
            (roce(keys)?, stages, action, vec![Fill::OwnAddresses, Fill::Slots(slots.0, slots.1)])
        }
        "police" => {
            let police = Police {
                bytes_per_s: keys.number("rate", None)?,
                burst_bytes: keys.number("burst", Some(64_000))?,
                entries: keys.number("sources", Some(4096))?,
            };
            (keys.only("ip")?, vec![Stage::Police(police)], verdict(XdpAction::Pass), Vec::new())
        }
        "access" => access(keys)?,
        "lose" => {
            let lose = Lose { per_million: keys.number("ppm", None)? };
            (keys.only("all")?, vec![Stage::Lose(lose)], verdict(XdpAction::Pass), Vec::new())
        }
        "sample" => {
            let sample = Sample {
                snap_len: keys.number("snap", Some(128))?,
                every: keys.number("every", Some(1))?,
                ring_bytes: keys.number("ring", Some(1 << 20))?,
                wakeup_bytes: 0,
            };
            (keys.only("all")?, vec![Stage::Sample(sample)], verdict(XdpAction::Pass), Vec::new())
        }
        "forward" => {
            let to = keys.list("to")?;
            let action = Action::Forward { ports: to.len() as u32 };
            (Select::All, Vec::new(), action, vec![Fill::Ports(to)])
        }
        "redirect" => {
            let to = keys.list("to")?;
            if to.len() != 1 {
                return Err(keys.wrong("to", &to.join("+")));
            }
            (keys.only("all")?, Vec::new(), devices(1, Pick::Fixed(0)), vec![Fill::Devices(to)])
        }
        "lb" => balance(keys)?,
        _ => {
            return Err(usage(format!("no recipe '{name}'")).hint("'roxie xdp attach --help' lists them"));
        }
    })
}

fn devices(entries: u32, pick: Pick) -> Action {
    Action::Redirect { target: Target::Dev, entries, pick, miss: XdpAction::Pass }
}

fn balance(keys: &mut Keys) -> Outcome<Blocks> {
    let to = keys.list("to")?;
    let (action, fill) = match to[0].as_str() {
        "cpu" if to.len() == 1 => {
            let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
            let ways = keys.number("ways", Some(cpus))?;
            let action = Action::Redirect {
                target: Target::Cpu,
                entries: ways,
                pick: Pick::Qpn { ways },
                miss: XdpAction::Pass,
            };
            (action, vec![Fill::Cpus { count: ways, queue: CPU_QUEUE }])
        }
        "xsk" if to.len() == 1 => {
            let (queues, ways): (u32, u32) = (keys.number("queues", Some(1))?, keys.number("ways", Some(1))?);
            let entries = queues.checked_mul(ways).ok_or_else(|| keys.wrong("ways", &ways.to_string()))?;
            let pick = Pick::RxQueueQpn { ways };
            (Action::Redirect { target: Target::Xsk, entries, pick, miss: XdpAction::Pass }, Vec::new())
        }
        _ => {
            let ways = to.len() as u32;
            (devices(ways, Pick::Qpn { ways }), vec![Fill::Devices(to)])
        }
    };
    Ok((roce(keys)?, Vec::new(), action, fill))
}

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
    let access = Access { default_allow: !deny.is_empty(), entries: prefixes.len() as u32 };
    let select = keys.only("ip")?;
    Ok((select, vec![Stage::Access(access)], Action::Verdict(XdpAction::Pass), vec![Fill::Access(prefixes)]))
}

fn roce(keys: &mut Keys) -> Outcome<Select> {
    Ok(Select::Roce { port: keys.number("port", Some(ROCE_PORT))? })
}

fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address.parse::<IpAddr>().ok()?, len.parse::<u8>().ok()?),
        None => {
            let address = text.parse::<IpAddr>().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    (len <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, len))
}

fn slot_range(text: &str) -> Option<(u8, u8)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

/// `12`, `12K`, `12Ki`
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn usage(what: String) -> Failure {
    Failure::new(what).code(2)
}

/// The `KEY=VALUE` pairs not used yet, and the keys asked for.
struct Keys {
    recipe: String,
    given: BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl Keys {
    fn parse(recipe: &str, text: &str) -> Outcome<Keys> {
        let mut given = BTreeMap::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| usage(format!("recipe {recipe}: '{pair}' is not KEY=VALUE")))?;
            if given.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(usage(format!("recipe {recipe}: {key}= is given twice")));
            }
        }
        Ok(Keys { recipe: recipe.to_owned(), given, known: Vec::new() })
    }

    fn value(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        self.given.remove(key)
    }

    fn take<T: FromStr>(&mut self, key: &'static str, default: T) -> Outcome<T> {
        match self.value(key) {
            Some(text) => text.parse().map_err(|_| self.wrong(key, &text)),
            None => Ok(default),
        }
    }

    fn number<T: TryFrom<u64>>(&mut self, key: &'static str, default: Option<T>) -> Outcome<T> {
        match (self.value(key), default) {
            (Some(text), _) => {
                let number = number(&text).and_then(|number| T::try_from(number).ok());
                number.ok_or_else(|| self.wrong(key, &text))
            }
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.missing(&format!("{key}="))),
        }
    }

    fn optional_list(&mut self, key: &'static str) -> Vec<String> {
        let text = self.value(key).unwrap_or_default();
        text.split('+').filter(|one| !one.is_empty()).map(str::to_owned).collect()
    }

    /// At least one.
    fn list(&mut self, key: &'static str) -> Outcome<Vec<String>> {
        let list = self.optional_list(key);
        if list.is_empty() { Err(self.missing(&format!("{key}="))) } else { Ok(list) }
    }

    /// Which packets.
    fn only(&mut self, default: &str) -> Outcome<Select> {
        let text = self.value("only").unwrap_or_else(|| default.to_owned());
        match text.as_str() {
            "roce" => roce(self),
            "ip" => Ok(Select::Ip),
            "all" if default == "all" => Ok(Select::All),
            _ => Err(self.wrong("only", &text)),
        }
    }

    fn wrong(&self, key: &str, value: &str) -> Failure {
        usage(format!("recipe {}: {key}={value} makes no sense", self.recipe))
    }

    fn missing(&self, what: &str) -> Failure {
        usage(format!("recipe {} needs {what}", self.recipe))
    }

    fn finish(&self) -> Outcome {
        let Some(key) = self.given.keys().next() else { return Ok(()) };
        let failure = usage(format!("recipe {} has no {key}=", self.recipe));
        Err(if self.known.is_empty() {
            failure
        } else {
            failure.hint(format!("it has {}", self.known.join(", ")))
        })
    }
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
        for line in recipes!().lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let known =
                ["pass", "tx", "steer", "police", "access", "lose", "sample", "forward", "redirect", "lb"];
            let first = name(line);
            assert!(known.contains(&first.as_str()) || first == "Numbers", "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (text, want) in [
            ("fly", "no recipe 'fly'"),
            ("drop:fast", "'fast' is not KEY=VALUE"),
            ("drop:speed=9", "has no speed="),
            ("police", "needs rate="),
            ("police:rate=ten", "rate=ten makes no sense"),
            ("police:rate=1K,rate=2K", "given twice"),
            ("police:rate=1M,only=all", "only=all makes no sense"),
            ("steer:slots=9-3", "slots=9-3 makes no sense"),
            ("access", "needs deny= or allow="),
            ("access:deny=10.0.0.0/33", "deny=10.0.0.0/33 makes no sense"),
            ("redirect:to=a+b", "to=a+b makes no sense"),
            ("lb", "needs to="),
            ("sample:snap=70000", "snap=70000 makes no sense"),
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.to_string().contains(want), "{text}: {failure}");
            assert_eq!(failure.code, 2);
        }
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(number("12"), Some(12));
        assert_eq!(number("3K"), Some(3000));
        assert_eq!(number("3Ki"), Some(3072));
        assert_eq!(number("2Gi"), Some(1 << 31));
        for wrong in ["", "K", "1k", "1KiB", "-1", "99999999999999999999", "20000000000G"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
