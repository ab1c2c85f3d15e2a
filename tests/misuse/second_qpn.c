/* second_qpn: a queue pair is connected to one that is connected to a third */
#include "misuse.h"

int main(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct ibv_qp *third;
	struct path path = { .timeout = 10, .rnr_retry = 7, .reads = 4 };
	struct pair p;

	make_pair(&p, 16);
	init = qp_attr(p.cq, IBV_QPT_RC);
	third = ibv_create_qp(p.pd, &init);
	CHECK(third != NULL);
	init_qp(third);
	connect_qp(p.qp[1], third->qp_num, path);
	connect_qp(p.qp[0], p.qp[1]->qp_num, path);
	from = sge_of(&p, 0, 8);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: no-answer */
	wait_for(p.cq, 1);
	CHECK(ibv_destroy_qp(third) == 0);
	close_pair(&p);
	return 0;
}
