/* fails_idle: its threads have nothing to do when it fails for a reason of its own; exit: 3 */
#include "misuse.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_int has_failed;

static void *serve(void *cq)
{
	struct ibv_wc wc;

	while (!has_failed) {
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
		pause_ms(1);
	}
	return NULL;
}

int main(void)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_cq *cq[4];
	struct ibv_sge from, to;
	struct ibv_qp *qp[2];
	pthread_t thread[4];
	struct pair p;

	/* A queue for messages, one for sends, and one that is not used. */
	open_pair(&p, 16, usual);
	cq[3] = p.cq;
	for (int i = 0; i < 3; i++)
		CHECK((cq[i] = ibv_create_cq(p.context, 16, NULL, NULL, 0)) != NULL);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = qp_attr(cq[i], IBV_QPT_RC);

		CHECK((qp[i] = ibv_create_qp(p.pd, &init)) != NULL);
		init_qp(qp[i]);
	}
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[i]->qp_num, usual);
	to = sge_of(&p, 0, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(qp[0], &receive, &no_receive) == 0);
	/* One send of two is signaled. */
	from = sge_of(&p, 1, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	CHECK(ibv_post_send(qp[1], &send, &bad) == 0 && wait_for(cq[1], 1) == IBV_WC_SUCCESS);
	send.send_flags = 0;
	CHECK(ibv_post_send(qp[1], &send, &bad) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, serve, cq[i]) == 0);
	pause_ms(500);
	has_failed = 1;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qp[i]) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(ibv_destroy_cq(cq[i]) == 0);
	close_pair(&p);
	return 3;
}
