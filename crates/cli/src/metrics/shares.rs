//! Shares of the places for clients. No user and no address can take the places of another one: a newcomer
//! without a free place ends a connection of its own party, or of the party with the most connections.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};
use sys::{IdView, TcpUsers};

/// The owner of a connection.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Party {
    /// A user of this host.
    User(u32),
    /// A remote address, with IPv6 a network of 64 bits: one host may use all addresses of its network.
    Address(IpAddr),
    /// All clients of this host without a known user.
    Unknown,
}

/// What a connection waits for. A newcomer ends connections in this order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Stage {
    /// The client has not sent its complete request.
    Request,
    /// The client has not read its complete reply.
    Reply,
    /// The counters are being read.
    Scrape,
}

/// Most connections at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Of all parties together, apart from those that have places of their own.
    pub(super) common: usize,
    /// Of one party.
    pub(super) share: usize,
    /// Users with places of their own, as many as a share: the user of this process, and root.
    pub(super) own_users: [u32; 2],
}

/// Connections of clients that have no place of their own. There are few scrapers; the limit bounds the
/// descriptors that clients can use. Half of it lets fewer parties scrape at a time, double would serve none
/// that is known.
const COMMON_MAX: usize = 64;
/// Parties that can have their share at the same time.
const FULL_SHARES: usize = 4;
/// The part of the descriptor limit for clients; reading the counters needs a descriptor for each engine.
const DESCRIPTORS_PART: usize = 4;

impl Places {
    /// Places for a process that may have this number of descriptors.
    pub(super) fn for_descriptors(limit: u64) -> Places {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let common = (limit / DESCRIPTORS_PART).clamp(1, COMMON_MAX);
        let share = common.div_ceil(FULL_SHARES);
        Places { common, share, own_users: [sys::effective_uid(), 0] }
    }

    /// Returns the index of the connection to end before `newcomer` gets a place, if there is none free.
    /// `clients` is ordered by age, the oldest first.
    pub(super) fn taken_by(&self, clients: &[(Party, Stage)], newcomer: Party) -> Option<usize> {
        let own = count(clients, newcomer);
        if own >= self.share {
            return oldest(clients, newcomer);
        }
        let in_common = clients.iter().filter(|(party, _)| !self.has_own(*party)).count();
        if self.has_own(newcomer) || in_common < self.common {
            return None;
        }
        self.surplus(clients, newcomer)
    }

    /// Returns the index of the connection that another one of `newcomer` replaces with the least harm.
    pub(super) fn surplus(&self, clients: &[(Party, Stage)], newcomer: Party) -> Option<usize> {
        // Among equal parties the newcomer's is chosen, and else the one that has waited longest without a
        // whole request.
        let rank = |(party, stage): (Party, Stage)| {
            (!self.has_own(party), count(clients, party), party == newcomer, Reverse(stage))
        };
        let (largest, _) = clients.iter().rev().copied().max_by_key(|client| rank(*client))?;
        oldest(clients, largest)
    }

    fn has_own(&self, party: Party) -> bool {
        matches!(party, Party::User(uid) if self.own_users.contains(&uid))
    }
}

fn count(clients: &[(Party, Stage)], party: Party) -> usize {
    clients.iter().filter(|(there, _)| *there == party).count()
}

fn oldest(clients: &[(Party, Stage)], party: Party) -> Option<usize> {
    let of_party = clients.iter().enumerate().filter(|(_, (there, _))| *there == party);
    // Of equal ones the first.
    of_party.min_by_key(|(_, (_, stage))| *stage).map(|(index, _)| index)
}

/// Finds the parties of connections.
#[derive(Debug)]
pub(super) struct Parties {
    users: TcpUsers,
    view: Option<IdView>,
}

impl Parties {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// Those of [`TcpUsers::new`].
    pub(super) fn new() -> std::io::Result<Parties> {
        Ok(Parties { users: TcpUsers::new()?, view: sys::id_view() })
    }

    /// Whether the kernel reports the users of TCP sockets: of this one, which listens.
    pub(super) fn knows_users(&mut self, listening: SocketAddr) -> bool {
        let any: IpAddr = if listening.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        self.users.user(listening, SocketAddr::new(any, 0)).is_ok_and(|user| user.is_some())
    }

    /// The party of an accepted connection.
    pub(super) fn of(&mut self, connection: &OwnedFd) -> Party {
        let addresses =
            (address(getpeername(connection.as_raw_fd())), address(getsockname(connection.as_raw_fd())));
        let (Some(peer), Some(local)) = addresses else {
            let user = sys::peer_credentials(connection.as_fd()).ok();
            return user.map_or(Party::Unknown, |user| self.user(user.uid));
        };
        // The client's socket, if it is on this host.
        match self.users.user(peer, local) {
            Ok(Some(uid)) => self.user(uid),
            _ if peer.ip().is_loopback() || peer.ip() == local.ip() => Party::Unknown,
            _ => Party::Address(network(peer.ip())),
        }
    }

    /// The kernel shows all users without an id in this user namespace as one.
    fn user(&self, uid: u32) -> Party {
        let is_one = self.view.is_none_or(|view| view.maps_every_uid || uid != view.overflow_uid);
        if is_one { Party::User(uid) } else { Party::Unknown }
    }
}

/// An internet address; an IPv4-mapped one becomes IPv4.
fn address(of_socket: nix::Result<SockaddrStorage>) -> Option<SocketAddr> {
    let storage = of_socket.ok()?;
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::V4((*v4).into()));
    }
    let v6: std::net::SocketAddrV6 = (*storage.as_sockaddr_in6()?).into();
    Some(match v6.ip().to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(v4.into(), v6.port()),
        None => v6.into(),
    })
}

fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { common: 8, share: 3, own_users: [1000, 0] };

    /// Connections of these parties, which have not sent their requests.
    fn waiting(parties: &[Party]) -> Vec<(Party, Stage)> {
        parties.iter().map(|party| (*party, Stage::Request)).collect()
    }

    /// Lets parties connect in this order, and returns the connections that remain.
    fn connect(clients: &mut Vec<(Party, Stage)>, parties: &[Party]) {
        for party in parties {
            if let Some(index) = PLACES.taken_by(clients, *party) {
                clients.remove(index);
            }
            clients.push((*party, Stage::Request));
        }
    }

    #[test]
    fn a_user_cannot_take_the_places_of_others() {
        let (hostile, third) = (Party::User(4000), Party::User(5000));
        let mut clients = Vec::new();
        connect(&mut clients, &[third]);
        connect(&mut clients, &[hostile; 200]);
        assert_eq!((count(&clients, hostile), count(&clients, third)), (3, 1));
        connect(&mut clients, &[Party::User(1000), Party::User(0), Party::Address([192, 0, 2, 1].into())]);
        assert_eq!(clients.len(), 7, "none was ended");
    }

    #[test]
    fn many_hostile_parties_leave_a_place_to_each_other_one() {
        let hostile: Vec<Party> = (4000..4100).flat_map(|uid| [Party::User(uid); 2]).collect();
        let mut clients = Vec::new();
        connect(&mut clients, &[Party::User(1000), Party::User(0)]);
        connect(&mut clients, &hostile);
        assert_eq!(clients.len(), 10, "the common places and two connections with places of their own");
        assert_eq!(clients[..2], waiting(&[Party::User(1000), Party::User(0)]));
        connect(&mut clients, &[Party::User(5000)]);
        assert_eq!((clients.len(), count(&clients, Party::User(5000))), (10, 1));

        // Its request is complete, those of others are not.
        let mut clients: Vec<_> = (4000..4007).map(|uid| (Party::User(uid), Stage::Request)).collect();
        clients.push((Party::User(5000), Stage::Scrape));
        assert_eq!(PLACES.taken_by(&clients, Party::User(4999)), Some(0), "the one that has waited longest");

        // A party with two connections loses one of them, not the one that has its only one.
        let two = [4000, 4001, 4002, 4003].map(|uid| [Party::User(uid); 2]).concat();
        let mut clients = Vec::new();
        connect(&mut clients, &[Party::User(5000)]);
        connect(&mut clients, &two);
        assert_eq!((clients.len(), count(&clients, Party::User(5000))), (8, 1));
        connect(&mut clients, &[Party::User(4000); 5]);
        assert_eq!((clients.len(), count(&clients, Party::User(4000))), (8, 2), "at its own cost");
    }

    #[test]
    fn the_oldest_connection_without_a_request_is_ended_first() {
        let party = Party::User(4000);
        let mut clients = [Stage::Scrape, Stage::Reply, Stage::Request].map(|stage| (party, stage)).to_vec();
        let ended = |clients: &[(Party, Stage)]| PLACES.taken_by(clients, party);
        assert_eq!(ended(&clients), Some(2));
        clients[2].1 = Stage::Reply;
        assert_eq!(ended(&clients), Some(1));
        clients[1].1 = Stage::Scrape;
        assert_eq!(ended(&clients), Some(2));
        clients[2].1 = Stage::Scrape;
        assert_eq!(ended(&clients), Some(0));
        assert_eq!(ended(&clients[..2]), None);
    }

    #[test]
    fn own_places_are_the_last_to_be_ended() {
        let mut clients = waiting(&[Party::User(0); 3]);
        clients.extend(waiting(&[Party::Unknown]));
        assert_eq!(PLACES.surplus(&clients, Party::Unknown), Some(3));
        assert_eq!(PLACES.surplus(&clients[..3], Party::Unknown), Some(0));
        assert_eq!(PLACES.surplus(&[], Party::Unknown), None);
    }

    #[test]
    fn few_descriptors_are_few_places() {
        let places = |limit| Places::for_descriptors(limit);
        assert_eq!((places(1024).common, places(1024).share), (64, 16));
        assert_eq!((places(20).common, places(20).share), (5, 2));
        assert_eq!((places(0).common, places(u64::MAX).share), (1, 16));
    }

    #[test]
    fn an_ipv6_network_is_one_party() {
        let [one, two]: [IpAddr; 2] = ["2001:db8::1", "2001:db8::2:3:4:5"].map(|ip| ip.parse().unwrap());
        assert_eq!(network(one), network(two));
        assert_ne!(network(one), network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network([192, 0, 2, 1].into()), IpAddr::from([192, 0, 2, 1]));
    }
}
