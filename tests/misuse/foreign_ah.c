/* foreign_ah: a datagram is sent with the address handle of another device */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context[2];
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_ah_attr to;
	struct ibv_pd *pd[2];
	struct ibv_ah *ah;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	open_two(context);
	for (int i = 0; i < 2; i++)
		pd[i] = ibv_alloc_pd(context[i]);
	cq = ibv_create_cq(context[0], 4, NULL, NULL, 0);
	qp = ready_ud(pd[0], cq);
	to = own_address(context[0]);
	ah = ibv_create_ah(pd[EITHER(1, 0)], &to);
	CHECK(qp != NULL && ah != NULL);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0); /* finds: foreign-object */
	CHECK(wait_for(cq, 1) == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_dealloc_pd(pd[i]) == 0 && ibv_close_device(context[i]) == 0);
	return 0;
}
