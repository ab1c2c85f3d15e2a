//! Answers to the requests of rdma(8), as nldev.c of the kernel gives them for its devices.

use std::io;
use std::time::{Duration, Instant};

use roxie::registry::DomainConfig;
use roxie::status::{EngineStatus, ObjectKind, ObjectStatus, QpStatus};
use roxie::transport::QpCounters;
use roxie::verbs::Context;
use roxie_hook::control::{Listing, Remote, Users};

use super::attribute::*;
use super::entry::{object, queue_pair};
use super::message::{ACK, Message, Request};
use crate::abi::device::{IBV_NODE_CA, IBV_PORT_ACTIVE, IBV_PORT_DOWN};
use crate::ibv::device;
use crate::ibv::query::{DEVICE_CAPS, PORT, phys_state};
use crate::refusal;

/// `RDMA_NL_NLDEV`: the client of the type of a message, above its ten bits for the command.
const CLIENT: u16 = 5;
const CLIENT_SHIFT: u16 = 10;

/// `enum rdma_nldev_command`.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const SET: u16 = 2;
    pub(super) const NEWLINK: u16 = 3;
    pub(super) const DELLINK: u16 = 4;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const RES_QP_GET: u16 = 10;
    pub(super) const RES_CM_ID_GET: u16 = 11;
    pub(super) const RES_CQ_GET: u16 = 12;
    pub(super) const RES_MR_GET: u16 = 13;
    pub(super) const RES_PD_GET: u16 = 14;
    pub(super) const STAT_GET: u16 = 17;
    pub(super) const RES_CTX_GET: u16 = 22;
    pub(super) const RES_SRQ_GET: u16 = 23;
}

/// Bytes of a message after which a table continues in the next: `rdma` reads into a page.
const TABLE_LEN: usize = 3 << 10;
/// Time that one process has for its answer, and all of them together, as in `roxie top`.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(3);

/// A device of this process, and its index.
struct Listed {
    index: u32,
    context: Context,
    /// The names of this process's devices on the same interface.
    names: Vec<String>,
}

/// Why a request is refused: the errno, and the reason for the user.
struct Refused(i32, &'static str);

/// The messages that answer a request; `port_id` is the address of its sender.
pub(super) fn answer(request: &Request<'_>, port_id: u32) -> Vec<Vec<u8>> {
    let messages = messages(request, port_id).map(|mut messages| {
        if request.is_dump() {
            messages.push(request.done(port_id));
        } else if request.flags & ACK != 0 {
            messages.push(request.error(port_id, 0, ""));
        }
        messages
    });
    let refused = |Refused(errno, text)| vec![request.error(port_id, errno, text)];
    messages.unwrap_or_else(refused).into_iter().map(Message::finish).collect()
}

fn messages(request: &Request<'_>, port_id: u32) -> Result<Vec<Message>, Refused> {
    let reply = || request.reply(port_id);
    if request.ty >> CLIENT_SHIFT != CLIENT {
        return Err(Refused(libc::EOPNOTSUPP, "roxie answers requests about devices only (RDMA_NL_NLDEV)"));
    }
    match request.ty & ((1 << CLIENT_SHIFT) - 1) {
        command::GET => each(request, |device| Ok(vec![device.describe(reply())])),
        command::PORT_GET => each(request, |device| {
            device.check_port(request)?;
            Ok(vec![device.describe_port(reply())])
        }),
        command::SYS_GET => Ok(vec![system(reply())]),
        command::RES_GET => each(request, |device| Ok(vec![device.summary(reply())])),
        command::RES_QP_GET => each(request, |device| device.queue_pairs(request, reply)),
        command @ (command::RES_CM_ID_GET..=command::RES_PD_GET
        | command::RES_CTX_GET
        | command::RES_SRQ_GET)
            if request.is_dump() =>
        {
            each(request, |device| Ok(device.objects(command, reply)))
        }
        command::STAT_GET => each(request, |device| device.statistics(request, reply)),
        command::SET => Err(Refused(
            libc::EOPNOTSUPP,
            "roxie's devices are named when a command starts: 'roxie run --name NAME'",
        )),
        command::NEWLINK | command::DELLINK => Err(Refused(
            libc::EOPNOTSUPP,
            "roxie makes a device when a command starts: 'roxie run --netdev IFACE' chooses the interface",
        )),
        // `rdma` tries some of these before others that are answered.
        _ => Err(Refused(libc::EOPNOTSUPP, "")),
    }
}

/// The answers of the device that the request names; of all devices if it names none.
fn each(
    request: &Request<'_>,
    mut answer: impl FnMut(&Listed) -> Result<Vec<Message>, Refused>,
) -> Result<Vec<Message>, Refused> {
    let wanted = request.u32(DEV_INDEX);
    let (mut messages, mut is_found) = (Vec::new(), wanted.is_none() && request.is_dump());
    for device in devices().iter().filter(|device| wanted.is_none_or(|wanted| wanted == device.index)) {
        is_found = true;
        messages.extend(answer(device)?);
    }
    is_found.then_some(messages).ok_or(Refused(libc::EINVAL, "there is no device with this index"))
}

/// The devices of this process; none, with a line that says why, if they cannot be used.
fn devices() -> Vec<Listed> {
    let devices = device::devices(true).inspect_err(refusal::explain).unwrap_or_default();
    let opened = devices.iter().map(|device| {
        let netdev = &device.tail.device.gids().netdev;
        let all = devices.iter().map(|device| &device.tail.device);
        let names = all.filter(|other| other.gids().netdev == *netdev).map(|other| other.name().to_owned());
        let (index, context) = (device.tail.index as u32, device.tail.device.context()?);
        Ok(Listed { index, context, names: names.collect() })
    });
    opened.collect::<io::Result<_>>().inspect_err(refusal::explain).unwrap_or_default()
}

/// Devices are seen from the network namespace of their interface only; memory stays usable after fork(2).
fn system(mut message: Message) -> Message {
    const EXCLUSIVE: u8 = 0;
    message.u8(NETNS_MODE, EXCLUSIVE);
    message.u8(COPY_ON_FORK, 1);
    message
}

impl Listed {
    /// Adds index and name of the device.
    fn name(&self, message: &mut Message) {
        message.u32(DEV_INDEX, self.index);
        message.text(DEV_NAME, self.context.device().name());
    }

    fn check_port(&self, request: &Request<'_>) -> Result<(), Refused> {
        let is_there = request.u32(PORT_INDEX).is_none_or(|port| port == u32::from(PORT));
        is_there.then_some(()).ok_or(Refused(libc::EINVAL, "the device has port 1 only"))
    }

    fn describe(&self, mut message: Message) -> Message {
        let attr = self.context.query_device();
        self.name(&mut message);
        message.u32(PORT_INDEX, u32::from(PORT));
        message.u64(CAP_FLAGS, u64::from(DEVICE_CAPS));
        message.text(FW_VERSION, attr.fw_ver);
        message.u64(NODE_GUID, attr.node_guid);
        message.u64(SYS_IMAGE_GUID, attr.node_guid);
        message.u8(DEV_NODE_TYPE, IBV_NODE_CA as u8);
        message.u8(DEV_DIM, 0);
        message.text(DEV_PROTOCOL, "roce");
        message
    }

    fn describe_port(&self, mut message: Message) -> Message {
        let (port, gids) = (self.context.query_port(), self.context.device().gids());
        self.name(&mut message);
        message.u32(PORT_INDEX, u32::from(PORT));
        message.u8(PORT_STATE, (if port.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN }) as u8);
        message.u8(PORT_PHYS_STATE, phys_state(&port));
        message.u32(NDEV_INDEX, gids.ifindex);
        message.text(NDEV_NAME, &gids.netdev);
        message
    }

    /// The number of objects of each kind.
    fn summary(&self, mut message: Message) -> Message {
        let queue_pairs: usize = self.engines().iter().map(|(_, queue_pairs)| queue_pairs.len()).sum();
        let count = |kind| self.objects_of(kind).len();
        let [pds, cqs, mrs, cm_ids, contexts, srqs] = ObjectKind::ALL.map(count);
        self.name(&mut message);
        message.nest(RES_SUMMARY, |message| {
            for (name, count) in [
                ("pd", pds),
                ("cq", cqs),
                ("qp", queue_pairs),
                ("cm_id", cm_ids),
                ("mr", mrs),
                ("ctx", contexts),
                ("srq", srqs),
            ] {
                message.nest(RES_SUMMARY_ENTRY, |message| {
                    message.text(RES_SUMMARY_ENTRY_NAME, name);
                    message.u64(RES_SUMMARY_ENTRY_CURR, count as u64);
                });
            }
        });
        message
    }

    /// The table of one kind of objects.
    fn objects(&self, command: u16, reply: impl Fn() -> Message) -> Vec<Message> {
        let (kind, table, entry) = match command {
            command::RES_PD_GET => (ObjectKind::Pd, RES_PD, RES_PD_ENTRY),
            command::RES_CQ_GET => (ObjectKind::Cq, RES_CQ, RES_CQ_ENTRY),
            command::RES_MR_GET => (ObjectKind::Mr, RES_MR, RES_MR_ENTRY),
            command::RES_CTX_GET => (ObjectKind::Ctx, RES_CTX, RES_CTX_ENTRY),
            command::RES_SRQ_GET => (ObjectKind::Srq, RES_SRQ, RES_SRQ_ENTRY),
            _ => (ObjectKind::CmId, RES_CM_ID, RES_CM_ID_ENTRY),
        };
        let all = self.objects_of(kind).into_iter();
        self.table(reply, table, entry, all, |message, (pid, status)| object(message, pid, &status))
    }

    /// Process id and status of the objects of one kind.
    fn objects_of(&self, kind: ObjectKind) -> Vec<(u32, ObjectStatus)> {
        let ask = |remote: &Remote| {
            let objects = remote.objects(kind).ok()?;
            Some(objects.into_iter().map(|object| (remote.pid(), object)).collect::<Vec<_>>())
        };
        self.ask(ask).concat()
    }

    fn queue_pairs(
        &self,
        request: &Request<'_>,
        reply: impl Fn() -> Message,
    ) -> Result<Vec<Message>, Refused> {
        let engines = self.engines();
        let mut all = engines.iter().flat_map(|(pid, qps)| qps.iter().map(move |qp| (*pid, qp)));
        if request.is_dump() {
            let write = |message: &mut Message, (pid, qp)| queue_pair(message, pid, qp);
            return Ok(self.table(reply, RES_QP, RES_QP_ENTRY, all, write));
        }
        let wanted = request.u32(RES_LQPN);
        let found = all.find(|(_, qp)| wanted == Some(qp.qpn.value())).ok_or(Refused(libc::ENOENT, ""))?;
        let mut message = reply();
        self.name(&mut message);
        queue_pair(&mut message, found.0, found.1);
        Ok(vec![message])
    }

    /// Messages with a table of entries, as many as it takes.
    fn table<T>(
        &self,
        reply: impl Fn() -> Message,
        table: u16,
        entry: u16,
        entries: impl Iterator<Item = T>,
        write: impl Fn(&mut Message, T),
    ) -> Vec<Message> {
        let mut entries = entries.peekable();
        let mut messages = Vec::new();
        while entries.peek().is_some() {
            let mut message = reply();
            self.name(&mut message);
            message.nest(table, |message| {
                while message.len() < TABLE_LEN
                    && let Some(next) = entries.next()
                {
                    message.nest(entry, |message| write(message, next));
                }
            });
            messages.push(message);
        }
        messages
    }

    /// The counters of the port. Counters of single queue pairs, which a request names by `STAT_RES`, cannot
    /// be bound: their table is empty.
    fn statistics(
        &self,
        request: &Request<'_>,
        reply: impl Fn() -> Message,
    ) -> Result<Vec<Message>, Refused> {
        self.check_port(request)?;
        if request.is_dump() {
            return Ok(Vec::new());
        }
        let mut message = reply();
        self.name(&mut message);
        message.u32(PORT_INDEX, u32::from(PORT));
        if request.u32(STAT_MODE).is_some() {
            const NONE: u32 = 0;
            message.u32(STAT_MODE, NONE);
            return Ok(vec![message]);
        }
        if request.u32(STAT_RES).is_some() {
            return Err(Refused(libc::EOPNOTSUPP, "roxie has no counters that are bound to objects"));
        }
        message.nest(STAT_HWCOUNTERS, |message| {
            for (name, value) in self.counters().rows() {
                message.nest(STAT_HWCOUNTER_ENTRY, |message| {
                    message.text(STAT_HWCOUNTER_ENTRY_NAME, name);
                    message.u64(STAT_HWCOUNTER_ENTRY_VALUE, value);
                });
            }
        });
        Ok(vec![message])
    }

    /// The sums over all queue pairs of all processes that use the device, under the names of rxe and of
    /// drivers. With the counters of the ports as well the message would be longer than `rdma` reads.
    fn counters(&self) -> QpCounters {
        let mut sums = QpCounters::default();
        self.ask(|remote| {
            let mut counters = QpCounters::default();
            for (name, value) in remote.engine().ok()?.counters {
                let _has_the_name = counters.set(&name, value);
            }
            sums.absorb(&counters);
            Some(())
        });
        sums
    }

    /// Process id and queue pairs of each engine of the device.
    fn engines(&self) -> Vec<(u32, Vec<QpStatus>)> {
        self.ask(|remote| Some((remote.pid(), remote.queue_pairs().ok()?)))
    }

    /// Whether an engine is one of the device: it has its name and interface. A program may have started with
    /// other names than this process: its devices are shown as the first one of their interface.
    fn has(&self, status: &EngineStatus) -> bool {
        let known = self.names.iter().find(|name| **name == status.device).or(self.names.first());
        status.netdev == self.context.device().gids().netdev
            && known.is_some_and(|name| name == self.context.device().name())
    }

    /// What `question` gets from the engines of the device: of this user, or of all users for root. Processes
    /// that do not answer are left out.
    fn ask<T>(&self, mut question: impl FnMut(&Remote) -> Option<T>) -> Vec<T> {
        let Ok(domain) = DomainConfig::from_env() else { return Vec::new() };
        let (listing, begun) = (Listing::read(&domain), Instant::now());
        let reached = listing.engines().map_while(|(pid, slot)| {
            (begun.elapsed() < ANSWERS_TIMEOUT).then(|| listing.connect(pid, slot, Users::All))
        });
        let connected = reached.flatten().map(|remote| remote.with_timeout(ANSWER_TIMEOUT));
        let ours = connected.filter(|remote| remote.engine().is_ok_and(|status| self.has(&status)));
        ours.filter_map(|remote| question(&remote)).collect()
    }
}
