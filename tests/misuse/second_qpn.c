/* second_qpn: a queue pair is connected to one that is connected to a third */
#include "misuse.h"

static void connect_ends(struct ibv_qp *qp, uint32_t to)
{
	struct path path = { .timeout = 10, .rnr_retry = 7, .reads = 4 };
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(path);

	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0); /* finds: ends-qpn */
}

int main(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_qp *third;
	struct pair p;

	make_pair(&p, 16);
	init = qp_attr(p.cq, IBV_QPT_RC);
	third = ibv_create_qp(p.pd, &init);
	CHECK(third != NULL);
	init_qp(third);
	connect_ends(p.qp[1], EITHER(third, p.qp[0])->qp_num);
	connect_ends(p.qp[0], p.qp[1]->qp_num);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: no-answer */
	wait_for(p.cq, 1);
	CHECK(ibv_destroy_qp(third) == 0);
	close_pair(&p);
	return 0;
}
