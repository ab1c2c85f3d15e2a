/* ends_gid: one end is connected to an address that is not the one of the other end */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to, int is_wrong)
{
	struct path path = { .timeout = 10, .rnr_retry = 7, .reads = 4 };
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(path);

	/* 127.0.0.2 */
	rtr.ah_attr.grh.dgid.raw[15] += EITHER(is_wrong, 0);
	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0); /* finds: ends-gid */
}

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	make_pair(&p, 16);
	connect_ends(p.qp[0], p.qp[1]->qp_num, 1);
	connect_ends(p.qp[1], p.qp[0]->qp_num, 0);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: no-answer */
	wait_for(p.cq, 1);
	close_pair(&p);
	return 0;
}
