/* cq_can_overflow: a completion queue of 4 entries for a queue pair with 16 places; options: --strict */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_cq *small;
	struct ibv_sge to;
	struct ibv_qp *qp;
	struct pair p;

	open_pair(&p, 32, usual);
	small = ibv_create_cq(p.context, 4, NULL, NULL, 0); /* finds: cq-can-overflow */
	init = qp_attr(small, IBV_QPT_RC);
	qp = ibv_create_qp(p.pd, &init);
	init_qp(qp);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(small) == 0);
	close_pair(&p);
	return 0;
}
