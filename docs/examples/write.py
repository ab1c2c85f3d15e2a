"""Connects two queue pairs of one process and does an RDMA WRITE: roxie run -- /usr/bin/python3 write.py"""

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

context = Context(name='roxie0')
pd, cq = PD(context), CQ(context, 16)
access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
source, target = MR(pd, 4096, access), MR(pd, 4096, access)

def attributes(peer):
    attr = QPAttr(port_num=1)
    attr.path_mtu, attr.dest_qp_num, attr.qp_access_flags = e.IBV_MTU_1024, peer.qp_num, access
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    return attr

init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap())
a, b = QP(pd, init), QP(pd, init)
a.to_rts(attributes(b))
b.to_rts(attributes(a))

source.write('hello, RDMA', 11)
sg = [SGE(source.buf, 11, source.lkey)]
write = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=sg)
write.set_wr_rdma(target.rkey, target.buf)
a.post_send(write)
count = 0
while not count:
    count, completions = cq.poll()
print(completions[0].status == e.IBV_WC_SUCCESS, target.read(11, 0))
