/* rnr_wait: the receive is posted two seconds after the SEND */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad_send;
	struct ibv_sge from, to;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
#ifdef FIXED
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0);
#endif
	CHECK(ibv_post_send(p.qp[0], &send, &bad_send) == 0); /* finds: rnr-wait */
#ifndef FIXED
	pause_ms(2000);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0);
#endif
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	close_pair(&p);
	return 0;
}
