//! The abstract names of a group of members: `<domain>/<group>/slot/<slot>`, `<domain>/<group>/grow` and
//! `<domain>/<group>/svc/...`.
//!
//! The group is a random number, chosen by the process that creates the socket set. Later processes find the
//! group by its names in /proc/net/unix, and ask the kernel for their owners. So names that a process of
//! another user takes do not stop a new group: it has other names.

use std::fmt;

use super::{DomainConfig, SLOTS};

/// The names of one group.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct GroupNames {
    /// `<domain>/<group>`
    prefix: String,
}

/// Most names that one look at the members examines: a quarter of a full group. Each takes a connection,
/// about 0.1 ms; a stranger may have any number of names. With half of it a stranger needs half the
/// names to hide a member; with the double a process that joins waits twice as long for them.
const EXAMINED_MAX: usize = 1024;
/// Hexadecimal digits of a group.
const GROUP_DIGITS: usize = 16;

impl GroupNames {
    /// Names that no other group has.
    pub(super) fn new(config: &DomainConfig) -> GroupNames {
        GroupNames { prefix: format!("{}/{:016x}", config.name, sys::random_u64()) }
    }

    /// The name of the process that adds sockets to the group.
    pub(super) fn growth(&self) -> String {
        format!("{self}/grow")
    }

    /// The name of a slot.
    pub(super) fn slot(&self, slot: u16) -> String {
        format!("{self}/slot/{slot}")
    }

    /// Start of the names of the services with this port space and port.
    pub(super) fn services(&self, port_space: u16, port: u16) -> String {
        format!("{self}/svc/{port_space:04x}/{port:04x}/")
    }

    /// The slots of all groups of a domain that have an owner in this network namespace, beginning with a
    /// random one; at most [`EXAMINED_MAX`].
    pub(super) fn slots_in_use(config: &DomainConfig) -> Vec<(GroupNames, u16)> {
        let prefix = format!("{}/", config.name);
        let names = sys::abstract_names(&prefix);
        let mut slots: Vec<_> = names.iter().filter_map(|name| Self::parse_slot(config, name)).collect();
        slots.sort_unstable();
        // A name is listed once for the listener and once for each connection.
        slots.dedup();
        choose(&mut slots, sys::random_u64());
        slots
    }

    pub(super) fn parse_slot(config: &DomainConfig, name: &str) -> Option<(GroupNames, u16)> {
        let rest = name.strip_prefix(&config.name)?.strip_prefix('/')?;
        let (group, slot) = rest.split_once("/slot/")?;
        let is_group = group.len() == GROUP_DIGITS && u64::from_str_radix(group, 16).is_ok();
        let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
        is_group.then(|| (GroupNames { prefix: format!("{}/{group}", config.name) }, slot))
    }
}

/// Leaves at most [`EXAMINED_MAX`], beginning with a random one.
fn choose<T>(slots: &mut Vec<T>, random: u64) {
    if !slots.is_empty() {
        let first = random as usize % slots.len();
        slots.rotate_left(first);
        slots.truncate(EXAMINED_MAX);
    }
}

impl fmt::Display for GroupNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_slot_leads_back_to_its_group() {
        let config = DomainConfig::default();
        let group = GroupNames::new(&config);
        assert_eq!(GroupNames::parse_slot(&config, &group.slot(7)), Some((group.clone(), 7)));
        assert_ne!(GroupNames::new(&config), group);
        for other in
            ["roxie/2/slot/7", "roxie/2/hook/7/3/0123456789abcdef", "roxie/2:x/0123456789abcdef/slot/7"]
        {
            assert_eq!(GroupNames::parse_slot(&config, other), None, "{other}");
        }
        assert_eq!(GroupNames::parse_slot(&config, &format!("{group}/slot/4095")), None);
        assert_eq!(GroupNames::parse_slot(&config, &format!("{}+/slot/1", &group.prefix[..24])), None);
    }

    #[test]
    fn a_stranger_with_many_names_does_not_make_a_join_examine_all() {
        let names: Vec<_> = (0..100_000).collect();
        let chosen = |random| {
            let mut names = names.clone();
            choose(&mut names, random);
            names
        };
        assert_eq!(chosen(7), (7..7 + EXAMINED_MAX as i32).collect::<Vec<_>>());
        assert_eq!(chosen(99_999)[..2], [99_999, 0], "each is examined by some look");
        let mut few = vec![1, 2, 3];
        choose(&mut few, 4);
        assert_eq!(few, [2, 3, 1]);
    }
}
