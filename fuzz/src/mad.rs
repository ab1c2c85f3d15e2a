//! Fuzzes management datagrams: the header and every CM message.

use wire::cm::{
    Apr, CmMessage, Drep, Dreq, IpCmHeader, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, private_data,
};
use wire::{MAD_LEN, MadHeader};

/// Runs one input. The first byte tells how much of a valid header is put in front; the rest is the MAD,
/// padded with zeros.
pub fn run(data: &[u8]) {
    let (mode, rest) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let mut mad = [0; MAD_LEN];
    for (to, from) in mad.iter_mut().zip(rest) {
        *to = *from;
    }
    if mode & 1 != 0 {
        mad[..4].copy_from_slice(&[
            1,
            MadHeader::CLASS_CM,
            MadHeader::CLASS_VERSION_CM,
            MadHeader::METHOD_SEND,
        ]);
        mad[16] = 0;
        mad[17] = 0x10 + (mode >> 1) % 11;
    }
    check(&mad);
}

/// Checks that `parse` of `emit` is the same message, whatever its attribute id.
macro_rules! round_trip {
    ($mad:expr, $($message:ty),*) => {$({
        let message = <$message>::parse($mad);
        let mut out = [0xa5; MAD_LEN];
        message.emit(&mut out);
        assert_eq!(<$message>::parse(&out), message);
        assert!(!message.to_string().is_empty());
    })*};
}

fn check(mad: &[u8; MAD_LEN]) {
    let header = MadHeader::parse(mad.first_chunk().expect("a MAD is longer than its header"));
    assert!(!header.to_string().is_empty());
    round_trip!(mad, Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr);
    match CmMessage::parse(mad) {
        Ok(message) => {
            let mut out = [0xa5; MAD_LEN];
            message.emit(&mut out);
            assert_eq!(CmMessage::parse(&out), Ok(message));
            assert!(!message.to_string().is_empty());
        }
        Err(_) => assert!(!header.is_cm() || !(0x10..=0x1a).contains(&header.attribute_id)),
    }
    let req = Req::parse(mad);
    ip_header(req.ip_header());
    ip_header(SidrReq::parse(mad).ip_header());
    assert_eq!(req.user_data().len(), req.private_data.len() - IpCmHeader::LEN);
    assert_eq!(private_data::<64>(&mad[..usize::from(mad[0])]).is_some(), mad[0] <= 64);
}

fn ip_header(header: Option<IpCmHeader>) {
    let Some(header) = header else { return };
    let mut out = [0xa5; IpCmHeader::LEN];
    header.emit(&mut out);
    assert_eq!(IpCmHeader::parse(&out), Some(header));
    assert!(!header.to_string().is_empty());
}
