//! Opens the device and sends a message from one of its queue pairs to another: the test that all of it
//! works.

use std::time::{Duration, Instant};

use roxie::verbs::{Context, Cq, Device, Qp, QpInitAttr, remedy};
use transport::{
    Access, AddressVector, QpAttr, QpAttrMask as M, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr,
    WcStatus, WrOp,
};

use super::{Check, Status, port};
use crate::nic_args::DeviceArgs;

const NAME: &str = "message";
const TEXT: &[u8] = b"roxie doctor";
/// Within one process a message takes microseconds, on a machine under load milliseconds.
const LIMIT: Duration = Duration::from_secs(2);

/// Sends with the first device. `others`: the checks before this one.
pub(super) fn check(args: &DeviceArgs, others: &[Check]) -> Check {
    if others.iter().any(|check| check.name == port::NAME && check.status == Status::Bad) {
        return Check::note(NAME, "not sent, because the device does not get its port");
    }
    // The check of the device says why it cannot be opened.
    let first = args.configs().ok().map(|mut configs| configs.remove(0));
    let context = first.and_then(|config| Device::open(&config).and_then(|device| device.context()).ok());
    let Some(context) = context else {
        return Check::note(NAME, "not sent, because there is no device");
    };
    let begun = Instant::now();
    if let Err(error) = context.alloc_pd() {
        let remedy = remedy(&error).unwrap_or_else(|| "the other checks may know more".to_owned());
        return Check::bad(NAME, format!("the device does not start: {error}"), remedy);
    }
    let started = begun.elapsed();
    match send(&context) {
        Ok(took) => Check::ok(
            NAME,
            format!(
                "the device started in {:.1} ms, and a SEND arrived in {:.0} us",
                started.as_secs_f64() * 1e3,
                took.as_secs_f64() * 1e6
            ),
        ),
        Err(why) => Check::bad(
            NAME,
            format!("a SEND between two queue pairs of this process did not arrive: {why}"),
            "try 'roxie demo'; if that fails too, a firewall may drop UDP packets of this host to itself",
        ),
    }
}

/// Sends the message; returns the time until its receive completed.
fn send(context: &Context) -> Result<Duration, String> {
    let text = |error: transport::VerbsError| error.to_string();
    let pd = context.alloc_pd().map_err(|error| error.to_string())?;
    let cq = context.create_cq(8, None, 0).map_err(text)?;
    let cap = QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
    let (a, b) = (pd.create_qp(&init).map_err(text)?, pd.create_qp(&init).map_err(text)?);
    connect(context, &a, &b).and_then(|()| connect(context, &b, &a))?;
    let memory = pd.alloc_buffer(256, Access::LOCAL_WRITE).map_err(text)?;
    memory.write(0, TEXT);
    let begun = Instant::now();
    b.post_recv(&RecvWr { wr_id: 0, sg_list: &[memory.sge(128, TEXT.len())] }).map_err(text)?;
    let (sg_list, flags) = (&[memory.sge(0, TEXT.len())], SendFlags::SIGNALED);
    a.post_send(&SendWr { wr_id: 0, op: WrOp::Send, sg_list, flags, dest: None }).map_err(text)?;
    wait(&cq, begun).and_then(|()| wait(&cq, begun))?;
    let took = begun.elapsed();
    let mut received = [0; TEXT.len()];
    memory.read(128, &mut received);
    if received == TEXT { Ok(took) } else { Err("other bytes arrived".to_owned()) }
}

fn wait(cq: &Cq, begun: Instant) -> Result<(), String> {
    loop {
        match cq.poll_one() {
            Some(wc) if wc.status == WcStatus::Success => return Ok(()),
            Some(wc) => return Err(format!("{:?}", wc.status)),
            None if begun.elapsed() > LIMIT => return Err(format!("nothing in {} s", LIMIT.as_secs())),
            None => std::thread::yield_now(),
        }
    }
}

/// RESET to INIT to RTR to RTS, towards another queue pair of this device.
fn connect(context: &Context, qp: &Qp, to: &Qp) -> Result<(), String> {
    let gid = context.gids().first().ok_or("the device has no address")?.gid;
    let attr = QpAttr {
        port_num: 1,
        path_mtu: context.query_port().active_mtu,
        dest_qp: to.qpn(),
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid: gid, hop_limit: 64, ..AddressVector::default() },
        ..QpAttr::default()
    };
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ];
    for (state, mask) in steps {
        let attr = QpAttr { state, ..attr.clone() };
        qp.modify(&attr, M::STATE | mask).map_err(|error| format!("{state:?}: {error}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_the_own_device_arrives() {
        let context = roxie::verbs::Device::open(&roxie::verbs::DeviceConfig {
            netdev: Some("lo".to_owned()),
            domain: roxie::registry::DomainConfig::parse("doctor-test:14794"),
            ..Default::default()
        });
        let context = context.and_then(|device| device.context()).unwrap();
        assert!(send(&context).unwrap() < LIMIT);
    }

    #[test]
    fn without_a_device_no_message_is_sent() {
        let args = DeviceArgs { netdev: Some("nonesuch".to_owned()), ..DeviceArgs::default() };
        assert_eq!(check(&args, &[]).status, Status::Note);
    }

    #[test]
    fn a_taken_port_is_not_a_second_problem_of_the_message() {
        let args = DeviceArgs { netdev: Some("lo".to_owned()), ..DeviceArgs::default() };
        let taken = [Check::bad(port::NAME, "taken by user 0", "stop the program that uses the port")];
        let message = check(&args, &taken);
        assert_eq!(message.status, Status::Note, "{}", message.text);
        assert!(message.text.contains("port"), "{}", message.text);
    }
}
