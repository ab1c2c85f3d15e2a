//! A program that makes mistakes on purpose, under `roxie run`: `scenarios --actor server PORT WORDS...`,
//! `scenarios --actor client ADDRESS:PORT WORDS...`, and `scenarios --actor refuse ADDRESS:PORT`, a
//! listener that rejects.
//!
//! Server and client exchange their addresses over TCP and connect a queue pair. The server offers memory
//! and receives. Each word of the client is a work request; the client waits for its completion.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use roxie::cm::{EventChannel, Id, PortSpace};
use roxie::transport::{
    Access, AddressVector, Dest, PathMtu, QpAttr, QpAttrMask as M, QpCap, QpState, QpType, RecvWr, SendFlags,
    SendWr, UdDest, WcStatus, WrOp,
};
use roxie::verbs::{Buffer, Cq, Device, DeviceConfig, Pd, Qp, QpInitAttr};
use roxie::wire::{Gid, Psn, QKey, Qpn, Rkey};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Bytes that the server offers. A page lies between this memory and the next allocation of the same kind.
const LEN: usize = 64 << 10;
const QUEUE: u32 = 64;
const Q_KEY: u32 = 0x1111_1111;
/// Longer than all retries of a scenario.
const COMPLETES: Duration = Duration::from_secs(8);

/// Runs one side with the words after `--actor`.
pub(crate) fn run(words: &[String]) -> Outcome {
    roxie_hook::register();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["server", port, ref rest @ ..] => {
            let listener = TcpListener::bind(("0.0.0.0", port.parse()?))?;
            Actor::new(listener.accept()?.0, rest)?.serve()
        }
        ["client", address, ref rest @ ..] => {
            let address: SocketAddr = address.parse()?;
            Actor::new(TcpStream::connect(address)?, rest)?.ask(rest)
        }
        ["refuse", address] => refuse(address.parse()?),
        _ => Err("--actor server PORT WORDS... | --actor client ADDRESS:PORT WORDS... | \
                    --actor refuse ADDRESS:PORT"
            .into()),
    }
}

/// Rejects one connection.
fn refuse(address: SocketAddr) -> Outcome {
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    let channel = EventChannel::new()?;
    let listener = Id::new(&context, &channel, PortSpace::Tcp, 0)?;
    listener.bind_addr(address)?;
    listener.listen(1)?;
    let event = channel.get_event()?;
    event.id.reject(b"no")?;
    // The REJ must be sent before the process ends.
    std::thread::sleep(Duration::from_millis(100));
    Ok(())
}

/// The addresses and keys that the other side sent.
struct Peer {
    qpn: Qpn,
    psn: Psn,
    addr: u64,
    r_key: u32,
}

struct Actor<'a> {
    tcp: BufReader<TcpStream>,
    words: &'a [&'a str],
    ty: QpType,
    pd: Pd,
    memory: Buffer,
    cq: Cq,
    qp: Qp,
    peer: Peer,
    av: AddressVector,
}

impl<'a> Actor<'a> {
    fn new(tcp: TcpStream, words: &'a [&'a str]) -> Outcome<Self> {
        let ty = match words.first() {
            Some(&"uc") => QpType::Uc,
            Some(&"ud") => QpType::Ud,
            _ => QpType::Rc,
        };
        let context = Device::open(&DeviceConfig::from_env())?.context()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(QUEUE, None, 0)?;
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: QUEUE,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let qp =
            pd.create_qp(&QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 })?;
        let rights = match value(words, "rights=") {
            Some("none") => Access::empty(),
            _ => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        };
        let memory = pd.alloc_buffer(LEN, Access::LOCAL_WRITE | rights)?;
        let own = Gid::from(tcp.local_addr()?.ip());
        let entry =
            context.gids().into_iter().find(|entry| entry.gid == own).ok_or("no GID for this address")?;
        let av = AddressVector {
            dgid: Gid::from(tcp.peer_addr()?.ip()),
            sgid_index: entry.index,
            hop_limit: 64,
            ..AddressVector::default()
        };

        let mut tcp = BufReader::new(tcp);
        let psn = Psn::new(qp.qpn().value().wrapping_mul(0x9e37));
        writeln!(
            tcp.get_mut(),
            "{} {} {} {}",
            qp.qpn().value(),
            psn.value(),
            memory.addr(),
            memory.rkey().0
        )?;
        let mut line = String::new();
        tcp.read_line(&mut line)?;
        let said: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let &[qpn, peer_psn, addr, r_key] = &said[..] else {
            return Err("the other side sent no address".into());
        };
        let peer =
            Peer { qpn: Qpn::new(qpn as u32), psn: Psn::new(peer_psn as u32), addr, r_key: r_key as u32 };
        let actor = Self { tcp, words, ty, pd, memory, cq, qp, peer, av };
        actor.connect(psn)?;
        Ok(actor)
    }

    fn connect(&self, psn: Psn) -> Outcome {
        let number = |name: &str, default: u8| value(self.words, name).map_or(Ok(default), str::parse);
        let attr = QpAttr {
            port_num: 1,
            path_mtu: PathMtu::M1024,
            dest_qp: self.peer.qpn,
            rq_psn: self.peer.psn,
            sq_psn: psn,
            q_key: QKey(Q_KEY),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: number("rnr-timer=", 12)?,
            timeout: number("timeout=", 14)?,
            retry_cnt: number("retry=", 7)?,
            rnr_retry: number("rnr-retry=", 7)?,
            av: self.av,
            ..QpAttr::default()
        };
        let (init, rtr, rts) = match self.ty {
            QpType::Ud => (M::QKEY, M::empty(), M::SQ_PSN),
            QpType::Uc => (M::ACCESS_FLAGS, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN, M::SQ_PSN),
            _ => (
                M::ACCESS_FLAGS,
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
                M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
            ),
        };
        for (state, mask) in
            [(QpState::Init, M::PKEY_INDEX | M::PORT | init), (QpState::Rtr, rtr), (QpState::Rts, rts)]
        {
            self.qp.modify(&QpAttr { state, ..attr.clone() }, mask | M::STATE)?;
        }
        Ok(())
    }

    /// Posts receives, and stays until the client has ended.
    fn serve(mut self) -> Outcome {
        let late: u64 = value(self.words, "late=").map_or(Ok(0), str::parse)?;
        let len: usize = value(self.words, "receive=").map_or(Ok(8192), str::parse)?;
        let none = self.words.contains(&"deaf") || value(self.words, "pace=").is_some();
        let count = if none { 0 } else { QUEUE / 2 };
        if late == 0 {
            self.receive(count, len)?;
        }
        self.tcp.get_mut().write_all(b"\n")?;
        if late > 0 {
            std::thread::sleep(Duration::from_millis(late));
            self.receive(count, len)?;
        }
        if let Some(pause) = value(self.words, "forget=") {
            std::thread::sleep(Duration::from_millis(pause.parse()?));
            // The key is invalid after the region is dropped.
            self.memory = self.pd.alloc_buffer(LEN, Access::LOCAL_WRITE)?;
        }
        if let Some(pause) = value(self.words, "pace=") {
            let pause = Duration::from_millis(pause.parse()?);
            for _ in 0..QUEUE / 2 {
                std::thread::sleep(pause);
                self.receive(1, len)?;
            }
        }
        self.tcp.read_to_string(&mut String::new())?;
        Ok(())
    }

    fn receive(&self, count: u32, len: usize) -> Outcome {
        for wr_id in 0..u64::from(count) {
            self.qp.post_recv(&RecvWr { wr_id, sg_list: &[self.memory.sge(0, len)] })?;
        }
        Ok(())
    }

    /// Does what the words say, in order, until one fails.
    fn ask(mut self, words: &[&str]) -> Outcome {
        self.tcp.read_line(&mut String::new())?;
        let (mut key, mut q_key) = (self.peer.r_key, Q_KEY);
        for word in words {
            let (what, rest) = word.split_once('=').unwrap_or((word, ""));
            let (len, offset) = rest.split_once('@').unwrap_or((rest, "0"));
            let (len, offset): (usize, u64) = (len.parse().unwrap_or(8), offset.parse()?);
            let (remote_addr, r_key) = (self.peer.addr + offset, Rkey(key));
            let op = match what {
                "send" => WrOp::Send,
                "invalidate" => WrOp::SendInv(r_key),
                "write" => WrOp::Write { remote_addr, r_key },
                "read" => WrOp::Read { remote_addr, r_key },
                "add" => WrOp::FetchAdd { remote_addr, r_key, add: 1 },
                "wrong-key" => {
                    key ^= 0x0005_5500;
                    continue;
                }
                "wrong-q-key" => {
                    q_key ^= 1;
                    continue;
                }
                "pause" => {
                    std::thread::sleep(Duration::from_millis(len as u64));
                    continue;
                }
                _ => continue,
            };
            let to = UdDest { av: self.av, remote_qpn: self.peer.qpn, remote_qkey: QKey(q_key) };
            let dest = (self.ty == QpType::Ud).then_some(Dest::Ud(to));
            let sg_list = &[self.memory.sge(0, len)];
            self.qp.post_send(&SendWr { wr_id: 0, op, sg_list, flags: SendFlags::SIGNALED, dest })?;
            let status = self.completion()?;
            println!("{word}: {status:?}");
            if status != WcStatus::Success {
                break;
            }
        }
        Ok(())
    }

    fn completion(&self) -> Outcome<WcStatus> {
        let start = Instant::now();
        while start.elapsed() < COMPLETES {
            match self.cq.poll_one() {
                Some(wc) => return Ok(wc.status),
                None => std::thread::yield_now(),
            }
        }
        Err("no completion".into())
    }
}

/// The value after `name` in one of the words.
fn value<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name))
}
