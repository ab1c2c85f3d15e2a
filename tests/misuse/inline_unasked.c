/* inline_unasked: an inline send on a queue pair that was created for no inline data */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	char text[16] = "notify";
	struct ibv_sge from = { (uintptr_t)text, sizeof text, 0 };
	struct ibv_send_wr send = send_of(&from, IBV_WR_SEND), *bad;
	struct ibv_qp *qp;

	init.cap.max_inline_data = EITHER(0, sizeof text);
	qp = ibv_create_qp(pd, &init);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	send.send_flags |= IBV_SEND_INLINE;
	CHECK((ibv_post_send(qp, &send, &bad) == 0) == EITHER(0, 1)); /* finds: refused-call */
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
