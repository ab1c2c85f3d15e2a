/* acknowledged_too_often: completions are acknowledged instead of events */
#include "misuse.h"

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *with_event;
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	void *argument;

	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(qp, &send, &bad) == 0 && ibv_post_send(qp, &send, &bad) == 0);
	CHECK(ibv_get_cq_event(channel, &with_event, &argument) == 0);
	/* One event, two completions. */
	wait_for(cq, 2);
	ibv_ack_cq_events(cq, EITHER(2, 1)); /* finds: acknowledged-too-often */
	/* Takes one back: ibv_destroy_cq would wait for ever. */
	ibv_ack_cq_events(cq, EITHER(-1, 0));
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
