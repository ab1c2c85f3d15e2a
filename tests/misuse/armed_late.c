/* armed_late: a thread waits for an event of a queue armed after its completion; options: --hang 1 */
#include "misuse.h"

#include <pthread.h>

static struct ibv_comp_channel *channel;

static void *wait_for_event(void *unused)
{
	struct ibv_cq *cq;
	void *argument;

	CHECK(ibv_get_cq_event(channel, &cq, &argument) == 0); /* finds: missed-completion-event */
	ibv_ack_cq_events(cq, 1);
	return unused;
}

int main(void)
{
	struct ibv_send_wr send, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_sge from;
	pthread_t thread;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct pair p;

	open_pair(&p, 16, usual);
	channel = ibv_create_comp_channel(p.context);
	cq = ibv_create_cq(p.context, 16, NULL, channel, 0);
	init = qp_attr(cq, IBV_QPT_RC);
	qp = ibv_create_qp(p.pd, &init);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	from = sge_of(&p, 0, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(qp, &send, &bad) == 0);
	pause_ms(100);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(pthread_create(&thread, NULL, wait_for_event, NULL) == 0);
	pause_ms(1800);
	/* Ends the wait that would last for ever. */
	CHECK(ibv_post_send(qp, &send, &bad) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && wait_for(cq, 2) == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	close_pair(&p);
	return 0;
}
