/* no_send_sge: a queue pair for sends without memory (max_send_sge is 0), and a send with memory */
#include "misuse.h"

int main(void)
{
	struct ibv_send_wr write_wr, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_sge from;
	struct ibv_qp *qp;
	struct pair p;

	open_pair(&p, 16, usual);
	init = qp_attr(p.cq, IBV_QPT_RC);
	init.cap.max_send_sge = EITHER(0, 1);
	qp = ibv_create_qp(p.pd, &init);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	from = sge_of(&p, 0, 64);
	write_wr = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	if (ibv_post_send(qp, &write_wr, &bad) == 0) /* finds: refused-call */
		CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0);
	close_pair(&p);
	return 0;
}
