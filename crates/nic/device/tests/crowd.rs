//! Many processes with one device each in one domain, and many queue pairs on one device.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roxie::transport::numbering::slot_of;
use roxie::transport::{Access, QpAttr, QpCap, QpType, RecvWr, SendFlags, SendWr, WcStatus, WrOp};
use roxie::verbs::{Buffer, Cq, Device, DeviceConfig, Pd, Qp, QpInitAttr};
use roxie::wire::Qpn;

/// Processes, more than the 251 that slots of 65,536 QPNs admitted.
const PROCESSES: usize = 300;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Each process connects a queue pair to one of the next process, sends its number there, and checks the
/// number that it receives.
#[test]
fn three_hundred_processes_exchange_messages() {
    domain::on_both_paths("three_hundred_processes_exchange_messages", || {
        let start = Instant::now();
        let mut crowd: Vec<Neighbour> = (0..PROCESSES).map(Neighbour::start).collect();
        let qpns: Vec<[u32; 2]> = crowd.iter_mut().map(Neighbour::qpns).collect();
        let joined = start.elapsed();
        let slots: HashSet<u16> = qpns.iter().map(|[left, _]| slot_of(Qpn::new(*left))).collect();
        assert_eq!(slots.len(), PROCESSES, "every process has a slot of its own");
        for (at, neighbour) in crowd.iter_mut().enumerate() {
            let ([_, before], [after, _]) =
                (qpns[(at + PROCESSES - 1) % PROCESSES], qpns[(at + 1) % PROCESSES]);
            neighbour.say(&format!("{before} {after}"));
        }
        crowd.iter_mut().for_each(|neighbour| _ = neighbour.expect("connected"));
        crowd.iter_mut().for_each(|neighbour| neighbour.say("go"));
        for (at, neighbour) in crowd.iter_mut().enumerate() {
            let from = neighbour.expect("received").trim().parse();
            assert_eq!(from, Ok((at + PROCESSES - 1) % PROCESSES), "process {at}");
        }
        let (rss, descriptors): (Vec<u64>, Vec<usize>) = crowd.iter().map(Neighbour::usage).unzip();
        println!(
            "{PROCESSES} processes: joined in {joined:?}, all in {:?}; at most {} KiB, {} descriptors each",
            start.elapsed(),
            rss.iter().max().expect("some"),
            descriptors.iter().max().expect("some"),
        );
    });
}

/// A process of the crowd, as the test sees it.
struct Neighbour {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Neighbour {
    fn start(number: usize) -> Neighbour {
        let mut process = Command::new(std::env::current_exe().expect("a test knows its own file"))
            .args(["neighbour_process", "--exact", "--ignored", "--nocapture"])
            .env("ROXIE_TEST_NEIGHBOUR", number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Neighbour { process, output }
    }

    /// Returns what follows `word` in the first line that begins with it.
    fn expect(&mut self, word: &str) -> String {
        let lines = self.output.by_ref().lines().map_while(Result::ok);
        let found = lines.filter_map(|line| line.strip_prefix(word).map(str::to_owned)).next();
        found.unwrap_or_else(|| panic!("process {} ended before it was {word}", self.process.id()))
    }

    fn qpns(&mut self) -> [u32; 2] {
        two_numbers(&self.expect("qpns"))
    }

    fn say(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().expect("piped"), "{line}").expect("the process reads");
    }

    /// Resident memory in KiB, and the number of open descriptors.
    fn usage(&self) -> (u64, usize) {
        let proc = format!("/proc/{}", self.process.id());
        let status = std::fs::read_to_string(format!("{proc}/status")).expect("it runs");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        let rss = rss.trim().trim_end_matches(" kB").parse().expect("a number");
        (rss, std::fs::read_dir(format!("{proc}/fd")).expect("it runs").count())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

fn two_numbers(text: &str) -> [u32; 2] {
    let mut words = text.split_whitespace().map(|word| word.parse().expect("a number"));
    [(); 2].map(|()| words.next().expect("two numbers"))
}

/// A process of the crowd, if [`Neighbour::start`] started it.
#[test]
#[ignore = "helper process of another test"]
fn neighbour_process() {
    let Ok(number) = std::env::var("ROXIE_TEST_NEIGHBOUR") else { return };
    let number: u64 = number.parse().expect("a number");
    let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
    let pd = context.alloc_pd().unwrap_or_else(|error| panic!("the engine does not start: {error}"));
    let cq = context.create_cq(16, None, 0).expect("within limits");
    let [left, right] = [(); 2].map(|()| create(&pd, &cq));
    println!("\nqpns {} {}", left.qpn().value(), right.qpn().value());
    let mut orders = std::io::stdin().lines().map(|line| line.expect("a pipe"));
    let [before, after] = two_numbers(&orders.next().expect("the numbers of the neighbours"));
    for (qp, peer) in [(&left, before), (&right, after)] {
        // Three hundred processes share the CPUs, so ACKs may be late.
        rc::connect(qp, &QpAttr { dest_qp: Qpn::new(peer), timeout: 18, ..rc::attr_to(qp) });
    }
    let buffer = pd.alloc_buffer(64, Access::LOCAL_WRITE).expect("memory");
    let recv = RecvWr { wr_id: 1, sg_list: &[buffer.sge(0, 8)] };
    left.post_recv(&recv).expect("room");
    println!("\nconnected");
    orders.next().expect("go");
    buffer.write(8, &number.to_le_bytes());
    send(&right, &buffer, 8);
    for _ in 0..2 {
        assert_eq!(completion(&cq), WcStatus::Success);
    }
    println!("\nreceived {}", received(&buffer));
    // Serves the others until the test kills it.
    orders.next();
}

fn create(pd: &Pd, cq: &Cq) -> Qp {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
    pd.create_qp(&init).expect("within limits")
}

fn send(qp: &Qp, buffer: &Buffer, at: usize) {
    let wr = SendWr {
        wr_id: 2,
        op: WrOp::Send,
        sg_list: &[buffer.sge(at, 8)],
        flags: SendFlags::empty(),
        dest: None,
    };
    qp.post_send(&wr).expect("room");
}

fn received(buffer: &Buffer) -> u64 {
    let mut bytes = [0; 8];
    buffer.read(0, &mut bytes);
    u64::from_le_bytes(bytes)
}

fn completion(cq: &Cq) -> WcStatus {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(wc) = cq.poll_one() {
            return wc.status;
        }
        assert!(Instant::now() < until, "no completion");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// They are in three slots, so packets arrive at three sockets.
#[test]
fn ten_thousand_queue_pairs_of_one_device_have_numbers_of_their_own_and_receive() {
    const TEST: &str = "ten_thousand_queue_pairs_of_one_device_have_numbers_of_their_own_and_receive";
    domain::on_both_paths(TEST, || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        let cq = context.create_cq(16, None, 0).expect("within limits");
        let qps: Vec<Qp> = (0..10_000).map(|_| create(&pd, &cq)).collect();
        let qpns: HashSet<Qpn> = qps.iter().map(Qp::qpn).collect();
        assert_eq!(qpns.len(), qps.len());
        let slots: HashSet<u16> = qpns.iter().map(|qpn| slot_of(*qpn)).collect();
        assert_eq!(slots.len(), 3);
        let buffer = pd.alloc_buffer(64, Access::LOCAL_WRITE).expect("memory");
        // Pairs within each slot, and from each slot to the next.
        for (a, b) in [(0, 1), (5000, 5001), (9998, 9999), (2, 5002), (5003, 9000), (9001, 3)] {
            let (a, b) = (&qps[a], &qps[b]);
            rc::connect(a, &rc::attr_to(b));
            rc::connect(b, &rc::attr_to(a));
            b.post_recv(&RecvWr { wr_id: 1, sg_list: &[buffer.sge(0, 8)] }).expect("room");
            buffer.write(8, &u64::from(a.qpn().value()).to_le_bytes());
            send(a, &buffer, 8);
            for _ in 0..2 {
                assert_eq!(completion(&cq), WcStatus::Success);
            }
            assert_eq!(received(&buffer), u64::from(a.qpn().value()));
        }
        // A number comes again only after the queue pair was destroyed.
        let (kept, destroyed) = qps.split_at(5000);
        let kept: HashSet<Qpn> = kept.iter().map(Qp::qpn).collect();
        let before: HashSet<Qpn> = destroyed.iter().map(Qp::qpn).collect();
        drop(qps);
        let again: Vec<Qp> = (0..2000).map(|_| create(&pd, &cq)).collect();
        let soon = again.iter().filter(|qp| before.contains(&qp.qpn()) || kept.contains(&qp.qpn())).count();
        assert_eq!(soon, 0, "numbers of queue pairs that were destroyed just now");
    });
}
