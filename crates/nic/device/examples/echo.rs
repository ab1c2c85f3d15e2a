//! Client and server connect through the connection manager; the server echoes one message.
//!
//! ```text
//! cargo run --release -p roxie --example echo -- server 127.0.0.1:7471 &
//! cargo run --release -p roxie --example echo -- client 127.0.0.1:7471 "hello, RDMA"
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id, PortSpace};
use roxie::transport::{Access, QpCap, QpType, RecvWr, SendFlags, SendWr, Wc, WcOpcode, WcStatus, WrOp};
use roxie::verbs::{Buffer, Context, Cq, Device, DeviceConfig, Qp, QpInitAttr};

const LEN: usize = 4096;
/// Time limit for resolving the server's address.
const RESOLVE_MAX: Duration = Duration::from_secs(2);
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let context = Device::open(&DeviceConfig::from_env())?.context()?;
    match words[..] {
        ["server", address] => server(&context, address.parse()?),
        ["client", address, text] => client(&context, address.parse()?, text),
        _ => Err("usage: echo server ADDRESS:PORT | echo client ADDRESS:PORT TEXT".into()),
    }
}

/// A queue pair with a completion queue, and memory for one received and one sent message.
struct Endpoint {
    qp: Qp,
    cq: Cq,
    memory: Buffer,
}

impl Endpoint {
    fn new(context: &Context) -> Outcome<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16, None, 0)?;
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init =
            QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let memory = pd.alloc_buffer(2 * LEN, Access::LOCAL_WRITE)?;
        Ok(Self { qp: pd.create_qp(&init)?, cq, memory })
    }

    fn receive(&self) -> Outcome<()> {
        Ok(self.qp.post_recv(&RecvWr { wr_id: 0, sg_list: &[self.memory.sge(0, LEN)] })?)
    }

    fn send(&self, bytes: &[u8]) -> Outcome<()> {
        self.memory.write(LEN, bytes);
        let sg_list = &[self.memory.sge(LEN, bytes.len())];
        let wr = SendWr { wr_id: 1, op: WrOp::Send, sg_list, flags: SendFlags::SIGNALED, dest: None };
        Ok(self.qp.post_send(&wr)?)
    }

    /// Waits for a completion of this kind.
    fn wait(&self, opcode: WcOpcode) -> Outcome<Wc> {
        loop {
            match self.cq.poll_one() {
                Some(wc) if wc.status != WcStatus::Success => return Err(format!("{:?}", wc.status).into()),
                Some(wc) if wc.opcode == opcode => return Ok(wc),
                _ => {}
            }
        }
    }

    fn received(&self) -> Outcome<Vec<u8>> {
        let wc = self.wait(WcOpcode::Recv)?;
        let mut bytes = vec![0; wc.byte_len as usize];
        self.memory.read(0, &mut bytes);
        Ok(bytes)
    }
}

fn server(context: &Context, address: SocketAddr) -> Outcome<()> {
    let channel = EventChannel::new()?;
    let listener = Id::new(context, &channel, PortSpace::Tcp, 0)?;
    listener.bind_addr(address)?;
    listener.listen(1)?;
    println!("listening on {address}");
    let id = expect(&channel, CmEventKind::ConnectRequest)?.id.clone();
    let end = Endpoint::new(context)?;
    id.attach_qp(&end.qp)?;
    end.receive()?;
    id.accept(None, &[])?;
    expect(&channel, CmEventKind::Established)?;
    let message = end.received()?;
    println!("echoing {:?}", String::from_utf8_lossy(&message));
    end.send(&message)?;
    end.wait(WcOpcode::Send)?;
    expect(&channel, CmEventKind::Disconnected)?;
    // Answers the client, which waits for it.
    id.disconnect()?;
    Ok(())
}

fn client(context: &Context, address: SocketAddr, text: &str) -> Outcome<()> {
    let bytes = text.as_bytes().get(..LEN.min(text.len())).unwrap_or_default();
    let channel = EventChannel::new()?;
    let id = Id::new(context, &channel, PortSpace::Tcp, 0)?;
    id.resolve_addr(None, address, RESOLVE_MAX)?;
    expect(&channel, CmEventKind::AddrResolved)?;
    id.resolve_route()?;
    expect(&channel, CmEventKind::RouteResolved)?;
    let end = Endpoint::new(context)?;
    id.attach_qp(&end.qp)?;
    end.receive()?;
    id.connect(None, &[])?;
    expect(&channel, CmEventKind::Established)?;
    end.send(bytes)?;
    println!("echoed: {:?}", String::from_utf8_lossy(&end.received()?));
    id.disconnect()?;
    expect(&channel, CmEventKind::Disconnected)?;
    Ok(())
}

fn expect(channel: &EventChannel, wanted: CmEventKind) -> Outcome<CmEvent> {
    let event = channel.get_event()?;
    if event.kind == wanted {
        Ok(event)
    } else {
        Err(format!("{:?}, status {}", event.kind, event.status).into())
    }
}
