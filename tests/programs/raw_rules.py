"""Flow rules of every kind, by pyverbs: `receive KINDS` counts the frames that each rule gets, `send` sends
five frames each to 02:00:00:00:00:02, 02:00:00:00:00:03 and the group 03:00:00:00:00:04."""

import socket
import sys
import time

TYPE = b"\x88\xb5"
SENT = ["020000000002", "020000000003", "030000000004"]
COPIES = 5


def send():
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender:
        sender.bind(("veth0", 0))
        for to in SENT * COPIES:
            sender.send(bytes.fromhex(to + "020000000001") + TYPE + bytes(50))


def receive(kinds):
    import pyverbs.enums as e
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.flow import Flow, FlowAttr
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.spec import EthSpec
    from pyverbs.wr import SGE, RecvWR

    types = {
        "normal": e.IBV_FLOW_ATTR_NORMAL,
        "sniffer": e.IBV_FLOW_ATTR_SNIFFER,
        "default": e.IBV_FLOW_ATTR_ALL_DEFAULT,
        "multicast": e.IBV_FLOW_ATTR_MC_DEFAULT,
    }
    context = Context(name="roxie0")
    pd = PD(context)
    receivers = {}
    for kind in kinds:
        cq = CQ(context, 512)
        init = QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=256))
        qp, memory = QP(pd, init, QPAttr(port_num=1)), MR(pd, 200 * 2048, e.IBV_ACCESS_LOCAL_WRITE)
        for i in range(200):
            qp.post_recv(RecvWR(wr_id=i, num_sge=1, sg=[SGE(memory.buf + 2048 * i, 2048, memory.lkey)]))
        attr = FlowAttr(num_of_specs=int(kind == "normal"), port=1, flow_type=types[kind])
        if kind == "normal":
            attr.specs.append(EthSpec(dst_mac="02:00:00:00:00:02", dst_mac_mask="ff:ff:ff:ff:ff:ff"))
        receivers[kind] = (cq, qp, memory, Flow(qp, attr), [0] * len(SENT))
    print("ready", flush=True)
    end = time.time() + 5
    while time.time() < end:
        for cq, _, memory, _, counts in receivers.values():
            for wc in cq.poll(16)[1] or []:
                header = memory.read(14, 2048 * wc.wr_id)
                if header[12:] == TYPE and header[:6].hex() in SENT:
                    counts[SENT.index(header[:6].hex())] += 1
    for kind in kinds:
        print(kind, *receivers[kind][4], flush=True)


if sys.argv[1] == "send":
    send()
else:
    receive(sys.argv[2:])
