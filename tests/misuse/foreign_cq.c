/* foreign_cq: a queue pair gets the completion queue of another device */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context[2];
	struct ibv_qp_init_attr init;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	open_two(context);
	pd = ibv_alloc_pd(context[0]);
	cq = ibv_create_cq(context[EITHER(1, 0)], 4, NULL, NULL, 0);
	init = qp_attr(cq, IBV_QPT_RC);
	qp = ibv_create_qp(pd, &init); /* finds: foreign-object */
	CHECK((qp == NULL) == EITHER(1, 0));
	CHECK(qp == NULL || ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context[0]) == 0 && ibv_close_device(context[1]) == 0);
	return 0;
}
