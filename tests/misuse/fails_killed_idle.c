/* fails_killed_idle: a server that waits for a message and has sent unsignaled answers is ended by SIGTERM;
   exit: 143 */
#include "misuse.h"

#include <signal.h>

int main(void)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from, to;
	struct ibv_cq *sends;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	struct pair p;

	open_pair(&p, 16, usual);
	CHECK((sends = ibv_create_cq(p.context, 16, NULL, NULL, 0)) != NULL);
	struct ibv_qp_init_attr init = qp_attr(p.cq, IBV_QPT_RC);
	init.send_cq = sends;
	CHECK((qp = ibv_create_qp(p.pd, &init)) != NULL);
	init_qp(qp);
	connect_qp(qp, qp->qp_num, usual);
	to = sge_of(&p, 0, 64);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(qp, &receive, &no_receive) == 0);
	from = sge_of(&p, 1, 64);
	send = remote_of(&p, &from, IBV_WR_RDMA_WRITE);
	send.send_flags = 0;
	CHECK(ibv_post_send(qp, &send, &bad) == 0);
	for (int ms = 0;; ms++) {
		CHECK(ibv_poll_cq(p.cq, 1, &wc) == 0 && ibv_poll_cq(sends, 1, &wc) == 0);
		pause_ms(1);
		if (ms == 1500)
			raise(SIGTERM);
	}
}
