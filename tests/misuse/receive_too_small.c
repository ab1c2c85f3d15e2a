/* receive_too_small: a message of 4096 bytes for a receive of 64 */
#include "misuse.h"

int main(void)
{
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad_send;
	struct ibv_sge from, to;
	struct pair p;

	open_pair(&p, 16, usual);
	to = sge_of(&p, 1, EITHER(64, 4096));
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0); /* finds: receive-too-small */
	from = sge_of(&p, 0, 4096);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad_send) == 0); /* finds: remote-invalid-request */
	CHECK((wait_for(p.cq, 2) == IBV_WC_SUCCESS) == EITHER(0, 1));
	close_pair(&p);
	return 0;
}
