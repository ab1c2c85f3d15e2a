/* unpolled: the program ends while a received message is in its completion queue */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context); /* finds: leaked-pd */
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0); /* finds: leaked-cq unpolled-completions */
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init); /* finds: leaked-qp */
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bad_send;

	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
	pause_ms(200);
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
