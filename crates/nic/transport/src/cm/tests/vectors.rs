//! A REQ that a Linux server accepted byte for byte, and its REP.

use super::*;

const REQ: &str = "\
    01070203000000000000000111223344001000000000000011223344000000000000000001061c0600000afffe000001\
    00000000000000000001230300000002000000a1abcdefa7ffff36f0ffffffff00000000000000000000ffff0a000001\
    00000000000000000000ffff0a0000022beef00020400090000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000000040b26e0000000000000000000000000a0000010000000000000000\
    000000000a000002726f7869652d7265712d70726976617465";
const REP: &str = "\
    010702030000000000000001112233440013000000000000556677881122334400000000000456000000000012345600\
    020379c000000afffe000002726f7869652d7265702d70726976617465";

fn mad(hex: &str) -> MadBytes {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut mad = [0; 256];
    for (byte, pair) in mad.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    mad
}

#[test]
fn a_req_is_the_one_linux_accepted() {
    let mut net = Net::new();
    let mut config = CmConfig::new(0x112, 0x2_3344, 0x0000_0aff_fe00_0001, PathMtu::M4096);
    config.packet_life_time = 17;
    let mut cm = Cm::new(config);
    let mut params = net.params();
    params.qp.qpn = Qpn::new(0x123);
    params.path.traffic_class = 0x20;
    params.private_data = b"roxie-req-private";
    cm.connect(net.now, &params).unwrap();
    let (_, _, sent) = cm.poll_transmit().unwrap();
    let (mut ours, mut theirs) = (sent, mad(REQ));
    // The upper half of the transaction id is ours to choose.
    ours[8..12].fill(0);
    theirs[8..12].fill(0);
    assert_eq!(ours, theirs);
    net.run();
}

#[test]
fn the_rep_to_it_is_the_expected_one() {
    let mut net = Net::new();
    net.cm[B] = Cm::new(CmConfig::new(0x556, 0x6_7788, 0x0000_0aff_fe00_0002, PathMtu::M4096));
    net.listen(0);
    assert_eq!(net.cm[B].handle_mad(net.now, &mad(REQ), net.gid[A], net.gid[B]), MadOutcome::Handled);
    let CmEvent { id, kind: CmEventKind::ConnectRequest(request) } = net.event(B).unwrap() else { panic!() };
    assert_eq!(&request.private_data[..17], b"roxie-req-private");
    let params = AcceptParams {
        qp: LocalQp { qpn: Qpn::new(0x456), starting_psn: Psn::new(0x123456), srq: false },
        rnr_retry_count: 6,
        private_data: b"roxie-rep-private",
        ..Net::accept_params()
    };
    net.cm[B].accept(net.now, id, &params).unwrap();
    let (src, dst, sent) = net.cm[B].poll_transmit().unwrap();
    assert_eq!((src, dst), (net.gid[B], net.gid[A]));
    assert_eq!(sent, mad(REP));
}
