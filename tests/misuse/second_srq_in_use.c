/* second_srq_in_use: a shared receive queue is destroyed before its queue pair */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *qp;

	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	CHECK(srq != NULL && qp != NULL);
	CHECK(ibv_destroy_srq(srq) != 0); /* finds: object-in-use */
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
