/* cq_overflow: a completion queue of 2 entries for 8 work requests */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_cq *small;
	struct ibv_sge from;
	struct ibv_qp *qp;
	struct pair p;

	open_pair(&p, 16, usual);
	small = ibv_create_cq(p.context, 2, NULL, NULL, 0); /* finds: cq-overflow */
	init = qp_attr(small, IBV_QPT_RC);
	qp = ibv_create_qp(p.pd, &init);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	for (int i = 0; i < 8; i++)
		ibv_post_send(qp, &send, &bad);
	pause_ms(600);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(small) == 0);
	close_pair(&p);
	return 0;
}
