/* both_wait: both ends of a connection wait for the message that lets them send, until the alarm */
#include "misuse.h"

#include <pthread.h>

static struct ibv_cq *cq[2];
static struct pair p;

static void *wait_for_credit(void *side)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq[(intptr_t)side], 1, &wc) == 0) /* finds: hang */
		pause_ms(1);
	return side;
}

int main(void)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_qp_init_attr init;
	struct ibv_sge from, to;
	pthread_t thread[2];

	make_pair(&p, 16);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(p.qp[i]) == 0);
		cq[i] = ibv_create_cq(p.context, 16, NULL, NULL, 0);
		init = qp_attr(cq[i], IBV_QPT_RC);
		p.qp[i] = ibv_create_qp(p.pd, &init);
		init_qp(p.qp[i]);
		to = sge_of(&p, i, 64);
		receive = receive_to(&to);
		CHECK(ibv_post_recv(p.qp[i], &receive, &no_receive) == 0);
	}
	for (int i = 0; i < 2; i++)
		connect_qp(p.qp[i], p.qp[1 - i]->qp_num, usual);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND_WITH_IMM);
	send.send_flags = 0;
	alarm(1);
	for (intptr_t i = 0; i < 2; i++) {
		if (EITHER(0, 1))
			CHECK(ibv_post_send(p.qp[i], &send, &bad) == 0);
		CHECK(pthread_create(&thread[i], NULL, wait_for_credit, (void *)i) == 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(p.qp[i]) == 0 && ibv_destroy_cq(cq[i]) == 0);
		p.qp[i] = NULL;
	}
	close_pair(&p);
	return 0;
}
