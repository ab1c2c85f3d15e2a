/* receive_refused: more receives than the queue has places; later messages find none */
#include "misuse.h"

#define MESSAGES 12

int main(void)
{
	struct path once = { .timeout = 14, .rnr_retry = 1, .reads = 4 };
	int status = IBV_WC_SUCCESS, posted = 0;
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from, to;
	struct pair p;

	open_pair(&p, 32, once);
	from = sge_of(&p, 0, 64);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	send = send_of(&from, IBV_WR_SEND);
	for (int i = 0; i < EITHER(MESSAGES, 8); i++, to.addr += 64)
		posted += ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0; /* finds: ends-rnr */
	for (int i = 0; i < EITHER(MESSAGES, 8) && status == IBV_WC_SUCCESS; i++) {
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: receiver-not-ready */
		status = wait_for(p.cq, i < posted ? 2 : 1);
	}
	close_pair(&p);
	return 0;
}
