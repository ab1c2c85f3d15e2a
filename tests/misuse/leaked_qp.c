/* leaked_qp: queues that are never destroyed */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context); /* finds: leaked-pd */
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0); /* finds: leaked-cq */
	struct ibv_qp_init_attr attr = qp_attr(cq, IBV_QPT_RC);

	CHECK(ibv_create_qp(pd, &attr) != NULL); /* finds: leaked-qp */
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
