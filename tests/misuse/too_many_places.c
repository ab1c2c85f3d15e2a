/* too_many_places: no queue pair has so many places, and the program has no other; fixed, it takes fewer */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *qp;

	init.cap.max_send_wr = 1 << 28;
	CHECK(ibv_create_qp(pd, &init) == NULL); /* finds: refused-call */
	init.cap.max_send_wr = 16;
	if (EITHER(0, 1)) {
		CHECK((qp = ibv_create_qp(pd, &init)) != NULL);
		CHECK(ibv_destroy_qp(qp) == 0);
	}
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
