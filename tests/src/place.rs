//! The place where a pair of programs runs: topology, address family, user, ports.

use std::fmt;

/// Where the two processes are.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Topology {
    /// One host, loopback addresses.
    Loopback,
    /// One host, the address of a veth.
    SameHost,
    /// Two network namespaces joined by a veth.
    TwoHosts,
}

/// Address family.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The user of the programs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum User {
    /// Root.
    Root,
    /// An unprivileged user with 64 KiB of lockable memory.
    Ordinary,
}

/// The port of one side.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Port {
    /// UDP sockets, also within a host.
    #[default]
    Udp,
    /// UDP sockets, and shared memory within a host: the default of the device.
    Shm,
    /// AF_XDP, with its program in the driver.
    Native,
    /// AF_XDP, with its program in the network stack.
    Generic,
}

/// A place.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Place {
    /// Where the two processes are.
    pub topology: Topology,
    /// Address family.
    pub family: Family,
    /// User of both programs.
    pub user: User,
    /// MTU of the veth.
    pub mtu: u32,
    /// Port of the server and of the client.
    pub ports: [Port; 2],
}

impl Place {
    /// A place with a veth of MTU 1500 and UDP sockets.
    #[must_use]
    pub fn new(topology: Topology, family: Family, user: User) -> Self {
        Self { topology, family, user, mtu: 1500, ports: [Port::Udp; 2] }
    }

    /// One host, with shared memory between the processes.
    #[must_use]
    pub fn shm(topology: Topology, family: Family, user: User) -> Self {
        Self { ports: [Port::Shm; 2], ..Self::new(topology, family, user) }
    }

    /// Two hosts, at least one of them with AF_XDP.
    #[must_use]
    pub fn xsk(family: Family, mtu: u32, server: Port, client: Port) -> Self {
        let ports = [server, client];
        Self { mtu, ports, ..Self::new(Topology::TwoHosts, family, User::Root) }
    }

    /// Every mode: on both sides, against the other mode, and against UDP sockets; packets of one and of
    /// two chunks.
    #[must_use]
    pub fn all_xsk() -> Vec<Self> {
        use Port::{Generic, Native, Udp};
        let mut places = Vec::new();
        for family in [Family::V4, Family::V6] {
            for (mtu, server, client) in [
                (1500, Native, Native),
                (1500, Generic, Generic),
                (1500, Native, Udp),
                (9000, Native, Native),
                (9000, Generic, Native),
                (9000, Udp, Generic),
            ] {
                places.push(Self::xsk(family, mtu, server, client));
            }
        }
        places
    }

    /// All twelve places with UDP sockets.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut places = Vec::new();
        for user in [User::Root, User::Ordinary] {
            for topology in [Topology::TwoHosts, Topology::SameHost, Topology::Loopback] {
                places.extend([Family::V4, Family::V6].map(|family| Self::new(topology, family, user)));
            }
        }
        places
    }

    /// The largest path MTU of the link: 4096 on loopback, 1024 at MTU 1500 (IBA Annex A17).
    #[must_use]
    pub fn path_mtu(&self) -> u32 {
        match self.topology {
            Topology::Loopback => 4096,
            _ => [4096, 2048, 1024, 512].into_iter().find(|m| m + 100 <= self.mtu).unwrap_or(256),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = match self.topology {
            Topology::Loopback => "lo",
            Topology::SameHost => "host",
            Topology::TwoHosts => "net",
        };
        let family = match self.family {
            Family::V4 => "4",
            Family::V6 => "6",
        };
        let user = match self.user {
            User::Root => "root",
            User::Ordinary => "user",
        };
        write!(f, "{topology}{family}")?;
        if self.mtu != 1500 {
            write!(f, "-mtu{}", self.mtu)?;
        }
        let port = |port| match port {
            Port::Udp => "udp",
            Port::Shm => "shm",
            Port::Native => "xsk",
            Port::Generic => "xskgeneric",
        };
        match self.ports {
            [Port::Udp, Port::Udp] => {}
            [server, client] if server == client => write!(f, "-{}", port(server))?,
            [server, client] => write!(f, "-{}-{}", port(server), port(client))?,
        }
        write!(f, "/{user}")
    }
}
