//! The order of the rows, their indices, and what changes of the addresses do to them.

use super::*;
use crate::interfaces::tests::{address, link, of_kind};

fn shown(entries: &[GidRow]) -> Vec<(String, u32)> {
    entries.iter().map(|row| (row.gid.ip().to_string(), row.ifindex)).collect()
}

#[test]
fn rows_are_ordered_by_kind_and_unusable_addresses_left_out() {
    let links = vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")];
    let addresses = vec![
        address(1, "127.0.0.1"),
        address(1, "::1"),
        address(2, "fe80::1"),
        address(2, "2001:db8::1"),
        Address { is_temporary: true, ..address(2, "2001:db8::2") },
        Address { is_tentative: true, ..address(2, "2001:db8::3") },
        address(2, "10.0.0.1"),
        address(3, "10.0.1.1"),
    ];
    let interfaces = Interfaces::new(links.clone(), addresses, None);
    let want = [("10.0.0.1", 2), ("2001:db8::1", 2), ("fe80::1", 2)];
    assert_eq!(shown(&rows(&links[1], &interfaces)), want.map(|(ip, i)| (ip.to_owned(), i)));
    let local = [("127.0.0.1", 1), ("::1", 1)].map(|(ip, i)| (ip.to_owned(), i));
    assert_eq!(shown(&rows(&links[0], &interfaces)), local);
    assert_eq!(shown(&loopback(&links[1], &interfaces)), local);
    assert_eq!(loopback(&links[0], &interfaces), [GidRow::EMPTY; 2], "they are in the table");
}

#[test]
fn addresses_of_interfaces_above_follow_with_their_interface() {
    let above = |link, kind| Link { lower: Some(2), ..of_kind(kind, link) };
    let links = vec![
        link(1, "lo"),
        link(2, "eth0"),
        above(link(3, "eth0.7"), "vlan"),
        link(4, "eth1"),
        above(link(5, "mv0"), "macvlan"),
    ];
    let addresses = vec![
        address(2, "10.0.0.1"),
        address(3, "10.7.0.1"),
        address(4, "10.1.0.1"),
        address(5, "10.5.0.1"),
        address(2, "fe80::2"),
        address(3, "fe80::2"),
        address(3, "2001:db8::3"),
        address(5, "fe80::5"),
    ];
    let interfaces = Interfaces::new(links.clone(), addresses, None);
    let entries = rows(&links[1], &interfaces);
    let want = [
        ("10.0.0.1", 2),
        ("fe80::2", 2),
        ("10.7.0.1", 3),
        ("2001:db8::3", 3),
        ("fe80::2", 3),
        ("10.5.0.1", 5),
        ("fe80::5", 5),
    ];
    assert_eq!(shown(&entries), want.map(|(ip, i)| (ip.to_owned(), i)));
    assert_eq!(shown(&rows(&links[2], &interfaces)).len(), 3, "the VLAN alone");
    let loopback = [GidRow { gid: Ipv4Addr::LOCALHOST.into(), ifindex: 1 }, GidRow::EMPTY];
    let table = GidTable { ifindex: 2, entries, loopback, ..GidTable::without_addresses() };
    let source = |index| table.source(index).map(|source| (source.ip.to_string(), source.above));
    assert_eq!(source(1), Some(("fe80::2".to_owned(), 0)));
    assert_eq!(source(4), Some(("fe80::2".to_owned(), 3)));
    assert_eq!(source(6), Some(("fe80::5".to_owned(), 5)));
    assert_eq!((source(7), source(254)), (None, Some(("127.0.0.1".to_owned(), 0))));
    let shared = Gid::from("fe80::2".parse::<IpAddr>().unwrap());
    let moved = GidTable { entries: table.entries.iter().rev().copied().collect(), ..table };
    assert_eq!(moved.index_of(&shared), Some(5), "the row of the netdev, wherever it is");
    let on = |scope| moved.has(&shared, scope);
    assert_eq!([None, Some(2), Some(3)].map(on), [true, true, false]);
}

#[test]
fn in_the_kernels_order_row_0_is_the_link_local_address_of_the_netdev() {
    let links =
        vec![link(1, "lo"), link(2, "eth0"), Link { lower: Some(2), ..of_kind("vlan", link(3, "v")) }];
    let table = |of: &str, more: &[Address]| {
        let addresses = [&[address(1, "::1"), address(2, "10.0.0.1"), address(2, "2001:db8::1")], more];
        let interfaces = Interfaces::new(links.clone(), addresses.concat(), None);
        GidTable::on(&interfaces, Some(of)).unwrap().in_kernel_order(&interfaces)
    };
    let ips = |table: &GidTable| {
        let text = |row: &GidRow| row.gid.ip().to_string();
        table.entries.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    let (own, above) = (address(2, "fe80::2"), address(3, "fe80::3"));
    let full = table("eth0", &[above, own]);
    assert_eq!(ips(&full), "fe80::2 10.0.0.1 2001:db8::1 fe80::3");
    assert_eq!(ips(&table("eth0", &[])), "10.0.0.1 2001:db8::1", "without IPv6 there is none");
    assert_eq!(ips(&table("lo", &[own])), "::1");
    // While the kernel checks the address, and while the link is down, the row waits for it.
    let checked = table("eth0", &[Address { is_tentative: true, ..own }]);
    assert_eq!(ips(&checked), ":: 10.0.0.1 2001:db8::1");
    let now = |more: &[Address]| GidTable { has_default: false, ..table("eth0", more) };
    assert_eq!(ips(&checked.updated(now(&[own])).unwrap()), "fe80::2 10.0.0.1 2001:db8::1");
    let down = full.updated(now(&[above, address(2, "10.0.0.2")])).unwrap();
    assert_eq!(ips(&down), ":: 10.0.0.1 2001:db8::1 fe80::3 10.0.0.2");
    let up = down.updated(now(&[own, above, address(2, "10.0.0.2")])).unwrap();
    assert_eq!(ips(&up), "fe80::2 10.0.0.1 2001:db8::1 fe80::3 10.0.0.2");
}

#[test]
fn a_full_table_in_the_kernels_order_has_the_link_local_address() {
    let of = |n: usize| address(2, &format!("10.{}.{}.1", n / 200, n % 200));
    let addresses = (0..GID_TBL_LEN).map(of).chain([address(2, "fe80::2")]).collect();
    let interfaces = Interfaces::new(vec![link(2, "eth0")], addresses, None);
    let table = GidTable::on(&interfaces, Some("eth0")).unwrap();
    assert_eq!(table.beyond, [GidRow { gid: Gid::from("fe80::2".parse::<IpAddr>().unwrap()), ifindex: 2 }]);
    let table = table.in_kernel_order(&interfaces);
    assert_eq!((table.entries.len(), table.beyond.len()), (GID_TBL_LEN, 1));
    assert_eq!(shown(&table.entries)[0].0, "fe80::2");
    assert_eq!(shown(&table.beyond)[0].0, "10.1.53.1");
}

#[test]
fn loopback_addresses_are_sources_behind_the_table() {
    let row = |ip: &str, ifindex| GidRow { gid: Gid::from(ip.parse::<IpAddr>().unwrap()), ifindex };
    let table = GidTable {
        entries: vec![row("10.0.0.1", 2)],
        loopback: [row("127.0.0.1", 1), GidRow::EMPTY],
        ..GidTable::without_addresses()
    };
    assert_eq!(table.rows().collect::<Vec<_>>(), [(0, row("10.0.0.1", 2))]);
    let loopback = row("127.0.0.1", 1).gid;
    assert_eq!(table.index_of(&loopback), Some(254));
    assert_eq!(table.source_for(loopback.ip()), Some(254));
    assert_eq!(table.address(254), Some(Ipv4Addr::LOCALHOST.into()));
    assert_eq!([1, 253, 255].map(|index| table.address(index)), [None; 3]);
}

#[test]
fn path_mtu_and_guid_follow_rxe() {
    let guid = [2, 0, 0, 0xff, 0xfe, 0, 0, 7];
    let mut table = GidTable { node_guid: guid, ..GidTable::without_addresses() };
    for (mtu, path_mtu) in [
        (1500, PathMtu::M1024),
        (4175, PathMtu::M2048),
        (4176, PathMtu::M4096),
        (9000, PathMtu::M4096),
        (65_536, PathMtu::M4096),
        (68, PathMtu::M256),
    ] {
        table.mtu = mtu;
        assert_eq!(table.active_mtu(), path_mtu, "{mtu}");
    }
    let eth = Link { mac: [0x52, 0x54, 0, 0x0a, 8, 2], ..link(2, "eth0") };
    // The kernel derives fe80::5054:ff:fe0a:802 from this MAC.
    let gid = Gid::from(IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2)));
    assert_eq!(node_guid(&eth, &gid), [0x50, 0x54, 0, 0xff, 0xfe, 0x0a, 8, 2]);
    assert_ne!(node_guid(&link(1, "lo"), &gid), [0; 8]);
    assert_eq!(node_guid(&Link { mac: [0; 6], ..eth }, &gid)[4..], [10, 8, 0, 2]);
    let of_instance = |instance| table.clone().of_instance(instance).node_guid;
    assert_eq!([0, 1, 31].map(of_instance).map(|guid| guid[3]), [0xff, 1, 31]);
}

#[test]
fn an_index_stays_with_its_address() {
    let row = |ip: &&str| GidRow { gid: ip.parse::<IpAddr>().unwrap().into(), ifindex: 1 };
    let table =
        |ips: &[&str]| GidTable { entries: ips.iter().map(row).collect(), ..GidTable::without_addresses() };
    let gid = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap());
    let first = table(&["10.0.0.1", "10.0.0.2", "127.0.0.1"]);
    assert_eq!(
        first.updated(table(&["127.0.0.1", "10.0.0.2", "10.0.0.1"])),
        None,
        "the order of the addresses does not matter"
    );
    let second = first.updated(table(&["10.0.0.2", "127.0.0.1"])).unwrap();
    assert_eq!((second.index_of(&gid("10.0.0.1")), second.address(0)), (None, None));
    assert_eq!(second.index_of(&Gid::ZERO), None);
    assert_eq!(second.rows().map(|(index, _)| index).collect::<Vec<_>>(), [1, 2]);
    let third = second.updated(table(&["10.0.0.8", "10.0.0.9", "10.0.0.2", "127.0.0.1"])).unwrap();
    let index = |ip| third.index_of(&gid(ip));
    assert_eq!(["10.0.0.8", "10.0.0.2", "127.0.0.1", "10.0.0.9"].map(index), [0, 1, 2, 3].map(Some));
    // All addresses are removed, then the loopback address comes back.
    let none = third.updated(GidTable { up: false, ..table(&[]) }).unwrap();
    assert_eq!((none.rows().count(), none.up), (0, false));
    assert_eq!(none.updated(table(&["127.0.0.1"])).unwrap().address(2), Some(Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn addresses_beyond_the_table_take_no_row_of_another_and_follow_when_one_is_free() {
    let mut addresses: Vec<_> =
        (0..=255).map(|n| address(2, &format!("2001:db8::{n:x}"))).chain([address(2, "fe80::1")]).collect();
    let mut read = |ips: &[&str]| {
        addresses.splice(0..0, ips.iter().map(|ip| address(2, ip)));
        let interfaces = Interfaces::new(vec![link(2, "eth0")], addresses.clone(), None);
        GidTable::on(&interfaces, Some("eth0")).unwrap()
    };
    let beyond = |table: &GidTable| shown(&table.beyond).into_iter().map(|(ip, _)| ip).collect::<Vec<_>>();
    let first = read(&["10.0.0.1", "10.0.0.1"]);
    assert_eq!(first.rows().count(), GID_TBL_LEN);
    assert_eq!(beyond(&first), ["2001:db8::fd", "2001:db8::fe", "2001:db8::ff", "fe80::1"]);
    // A new IPv4 address would be before the others in a new table.
    let second = first.updated(read(&["10.0.0.2"])).unwrap();
    assert_eq!(second.entries, first.entries);
    assert_eq!(beyond(&second)[..2], ["10.0.0.2", "2001:db8::fd"]);
    addresses.retain(|address| !["10.0.0.1", "2001:db8::7"].contains(&&*address.ip.to_string()));
    let interfaces = Interfaces::new(vec![link(2, "eth0")], addresses, None);
    let third = second.updated(GidTable::on(&interfaces, Some("eth0")).unwrap()).unwrap();
    assert_eq!([0, 8].map(|index| third.address(index).unwrap().to_string()), ["10.0.0.2", "2001:db8::fd"]);
    assert_eq!(beyond(&third), ["2001:db8::fe", "2001:db8::ff", "fe80::1"]);
}

#[test]
fn an_address_that_comes_back_gets_its_index_again() {
    let row = |ip: &&str| GidRow { gid: ip.parse::<IpAddr>().unwrap().into(), ifindex: 1 };
    let table =
        |ips: &[&str]| GidTable { entries: ips.iter().map(row).collect(), ..GidTable::without_addresses() };
    let shown = |table: &GidTable| {
        table.rows().map(|(index, row)| format!("{index} {}", row.gid.ip())).collect::<Vec<_>>()
    };
    let first = table(&["10.0.0.1", "fd00::1", "fe80::1"]);
    let down = first.updated(table(&["10.0.0.1"])).unwrap();
    assert_eq!(shown(&down), ["0 10.0.0.1"]);
    let up = down.updated(table(&["10.0.0.1", "fe80::1"])).unwrap();
    assert_eq!(shown(&up), ["0 10.0.0.1", "2 fe80::1"]);
    let both = down.updated(table(&["10.0.0.1", "fd00::2", "fe80::1", "fd00::1"])).unwrap();
    assert_eq!(shown(&both), ["0 10.0.0.1", "1 fd00::1", "2 fe80::1", "3 fd00::2"]);
}

#[test]
fn the_table_of_this_machine_is_usable() {
    let table = GidTable::read(None).unwrap();
    assert!(!table.entries.is_empty() && table.node_guid != [0; 8]);
    for (i, row) in table.entries.iter().enumerate() {
        assert_eq!(table.index_of(&row.gid), u8::try_from(i).ok());
        assert_eq!(
            table.source_for(row.gid.ip()),
            u8::try_from(i).ok(),
            "the source for an own address is that address"
        );
    }
    let lo = GidTable::read(Some("lo")).unwrap();
    assert_eq!(lo.entries[0].gid.ip(), Ipv4Addr::LOCALHOST);
    assert_eq!(lo.active_mtu(), PathMtu::M4096);
    let error = GidTable::read(Some("no-such-netdev")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
