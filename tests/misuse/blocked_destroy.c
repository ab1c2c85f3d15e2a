/* blocked_destroy: a completion queue is destroyed before its event is acknowledged */
#include "misuse.h"

#include <pthread.h>

static struct ibv_cq *cq;

/* Ends the wait that would last for ever. */
static void *acknowledge_late(void *unused)
{
	pause_ms(1500);
	ibv_ack_cq_events(cq, 1);
	return unused;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_cq *with_event;
	pthread_t thread;
	void *argument;
	struct ibv_qp *qp;

	cq = ibv_create_cq(context, 4, NULL, channel, 0);
	init = qp_attr(cq, IBV_QPT_RC);
	qp = ibv_create_qp(pd, &init);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(qp, &send, &bad) == 0);
	CHECK(ibv_get_cq_event(channel, &with_event, &argument) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && pthread_create(&thread, NULL, acknowledge_late, NULL) == 0);
	CHECK(ibv_destroy_cq(cq) == 0); /* finds: unacknowledged-events */
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
