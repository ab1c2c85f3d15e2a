/* gives_up: waits half a second for a message that no peer sends, and fails; exit: 1 */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *no_receive;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from, to;
	struct ibv_wc wc;
	int polled = 0;
	struct pair p;

	open_pair(&p, 16, usual);
	from = sge_of(&p, 0, 64);
	to = sge_of(&p, 1, 64);
	receive = receive_to(&to);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_recv(p.qp[1], &receive, &no_receive) == 0);
	if (EITHER(0, 1))
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	for (int ms = 0; polled < EITHER(1, 2) && (ms < 500 || EITHER(0, 1)); ms++) {
		polled += ibv_poll_cq(p.cq, 1, &wc); /* finds: hang */
		pause_ms(1);
	}
	close_pair(&p);
	return polled == EITHER(1, 2) ? 0 : 1;
}
