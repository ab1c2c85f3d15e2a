"""Exercises with two connected queue pairs of one process: roxie run -- /usr/bin/python3 verbs.py EXERCISE"""

import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

context = Context(name='roxie0')
pd, cq = PD(context), CQ(context, 16)
local = e.IBV_ACCESS_LOCAL_WRITE
remote = local | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC


def attributes(peer, rnr_retry):
    attr = QPAttr(port_num=1)
    attr.path_mtu, attr.dest_qp_num, attr.qp_access_flags = e.IBV_MTU_1024, peer.qp_num, remote
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, rnr_retry, 12
    attr.max_rd_atomic, attr.max_dest_rd_atomic = 1, 1
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    return attr


def pair(rnr_retry=2):
    """Returns two queue pairs, each in RTS with the other as its peer. Dropping one destroys it."""
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap())
    first, second = QP(pd, init), QP(pd, init)
    first.to_rts(attributes(second, rnr_retry))
    second.to_rts(attributes(first, rnr_retry))
    return first, second


def completion():
    """Waits for a completion; returns its status and vendor_err as `roxie explain` takes them."""
    count = 0
    while not count:
        count, found = cq.poll()
    names = {value: name for name, value in vars(e).items()
             if name.startswith('IBV_WC_') and name.endswith(('_SUCCESS', '_ERR'))}
    return f'{names[found[0].status]} vendor_err {found[0].vendor_err:#x}'


def keys():
    """WRITE to a region that permits it, and to one that does not."""
    source = MR(pd, 4096, local)
    for access in (remote, local):
        first, second = pair()
        target = MR(pd, 4096, access)
        write = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(source.buf, 64, source.lkey)])
        write.set_wr_rdma(target.rkey, target.buf)
        first.post_send(write)
        print(completion())


def receives():
    """SEND to a peer that has no receive posted, and to one that has."""
    source, target = MR(pd, 4096, local), MR(pd, 4096, local)
    for posted in (False, True):
        first, second = pair()
        if posted:
            second.post_recv(RecvWR(num_sge=1, sg=[SGE(target.buf, 4096, target.lkey)]))
        first.post_send(SendWR(num_sge=1, sg=[SGE(source.buf, 64, source.lkey)]))
        print(completion())


def atomics():
    """Fetch-and-add on one counter, three times."""
    counter, old = MR(pd, 8, remote), MR(pd, 8, local)
    first, second = pair()
    for _ in range(3):
        add = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[SGE(old.buf, 8, old.lkey)])
        add.set_wr_atomic(counter.rkey, counter.buf, 5)
        first.post_send(add)
        print(completion(), 'before:', int.from_bytes(old.read(8, 0), 'little'))
    print('counter:', int.from_bytes(counter.read(8, 0), 'little'))


{'keys': keys, 'receives': receives, 'atomics': atomics}[sys.argv[1]]()
