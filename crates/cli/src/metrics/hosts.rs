//! The names by which a client may call the server, in its Host header.
//!
//! A web page can give its own name the address of this host after it was loaded (DNS rebinding). The browser
//! then lets the page read the replies, but sends the name of the page as the host.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use nix::sys::utsname::uname;

use super::request::Host;

/// Names and addresses of the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    known: BTreeSet<Host>,
    /// Every address is known: a page from an address cannot move to another one.
    every_ip: bool,
}

impl Hosts {
    /// The names of a server that listens on this address, and those that the user has `given`.
    pub(super) fn new(listen: IpAddr, given: &[Host]) -> Hosts {
        let own = uname().ok();
        let own = own.as_ref().and_then(|names| names.nodename().to_str()).unwrap_or_default();
        Hosts::with(listen, given, own, &fs::read_to_string("/etc/hosts").unwrap_or_default())
    }

    /// As [`new`](Self::new), for the host name `own` and the text of /etc/hosts.
    fn with(listen: IpAddr, given: &[Host], own: &str, table: &str) -> Hosts {
        let mut known: BTreeSet<Host> = given.iter().cloned().collect();
        known.insert(Host::Ip(listen.to_canonical()));
        let names = ["localhost", own, own.split('.').next().unwrap_or_default()];
        known.extend(
            names.into_iter().chain(aliases(table, own)).filter_map(|name| Host::parse(name.as_bytes())),
        );
        Hosts { known, every_ip: !listen.to_canonical().is_loopback() }
    }

    /// True if the server answers requests to this host.
    pub(super) fn contain(&self, host: &Host) -> bool {
        self.known.contains(host) || self.every_ip && matches!(host, Host::Ip(_))
    }
}

/// Returns the other names of a host in /etc/hosts, which has its name with the domain on most machines.
fn aliases<'a>(table: &'a str, own: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = table.lines().map(|line| line.split('#').next().unwrap_or_default().split_ascii_whitespace());
    let names = lines.map(|mut words| {
        words.next();
        words
    });
    names.filter(move |names| names.clone().any(|name| name == own)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "127.0.0.1 localhost # node1.commented\n127.0.1.1 node1.example node1\n10.0.0.2 other\n";

    fn unknown<'a>(listen: &str, own: &str, hosts: &[&'a str]) -> Vec<&'a str> {
        let given = [Host::Name("prom.example".to_owned())];
        let known = Hosts::with(listen.parse().unwrap(), &given, own, TABLE);
        let is_unknown = |host: &&&str| !known.contain(&Host::parse(host.as_bytes()).unwrap());
        hosts.iter().filter(is_unknown).copied().collect()
    }

    #[test]
    fn names_of_other_hosts_are_unknown() {
        let hosts = ["localhost:1", "node1", "NODE1.example.", "prom.example", "127.0.0.1", "evil.example"];
        assert_eq!(unknown("127.0.0.1", "node1", &hosts), ["evil.example"]);
        assert_eq!(unknown("127.0.0.1", "node1.example", &hosts), ["evil.example"]);
        assert_eq!(unknown("::", "node2", &hosts), ["node1", "NODE1.example.", "evil.example"]);
        assert_eq!(unknown("0.0.0.0", "node1", &["node1.commented", "other", "node1.evil"]).len(), 3);
    }

    #[test]
    fn a_server_for_this_host_only_knows_only_its_own_address() {
        let hosts = ["127.0.0.1", "0.0.0.0", "[::1]", "192.0.2.1"];
        assert_eq!(unknown("127.0.0.1", "node1", &hosts), ["0.0.0.0", "[::1]", "192.0.2.1"]);
        assert_eq!(unknown("::1", "node1", &hosts), ["127.0.0.1", "0.0.0.0", "192.0.2.1"]);
        for listen in ["0.0.0.0", "::", "192.0.2.1"] {
            assert_eq!(unknown(listen, "node1", &hosts), [""; 0], "{listen}");
        }
    }
}
