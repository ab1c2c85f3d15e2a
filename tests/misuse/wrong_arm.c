/* wrong_arm: two queues share a channel, and only one of them is armed again; options: --hang 1 */
#include "misuse.h"

int main(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_qp_init_attr init;
	struct ibv_send_wr send, *bad;
	struct ibv_cq *cq[2], *told;
	struct ibv_sge from, to;
	struct ibv_wc wc;
	struct pair p;
	void *context;

	make_pair(&p, 16);
	channel = ibv_create_comp_channel(p.context);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(p.qp[i]) == 0);
		cq[i] = ibv_create_cq(p.context, 16, NULL, channel, 0);
		CHECK(ibv_req_notify_cq(cq[i], 0) == 0);
		init = qp_attr(cq[i], IBV_QPT_RC);
		p.qp[i] = ibv_create_qp(p.pd, &init);
		init_qp(p.qp[i]);
	}
	connect_qp(p.qp[0], p.qp[1]->qp_num, usual);
	connect_qp(p.qp[1], p.qp[0]->qp_num, usual);
	from = sge_of(&p, 0, 64);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_recv(p.qp[1], &receive, &no_receive) == 0);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	alarm(4);
	for (int count = 0; count < 2;) {
		CHECK(ibv_get_cq_event(channel, &told, &context) == 0);
		ibv_ack_cq_events(told, 1);
		told = EITHER(cq[0], told);
		CHECK(ibv_req_notify_cq(told, 0) == 0); /* finds: missed-completion-event */
		while (ibv_poll_cq(told, 1, &wc) == 1)
			count++;
	}
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(p.qp[i]) == 0 && ibv_destroy_cq(cq[i]) == 0);
		p.qp[i] = NULL;
	}
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_pair(&p);
	return 0;
}
