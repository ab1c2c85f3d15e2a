/* race_echo: a server echoes from the buffer of the next receive; options: --races */
#include "misuse.h"

static struct pair p;

static void receive_at(int side, int offset)
{
	struct ibv_sge to = sge_of(&p, side, 1024);
	struct ibv_recv_wr receive = receive_to(&to), *bad;

	to.addr += offset;
	CHECK(ibv_post_recv(p.qp[side], &receive, &bad) == 0); /* finds: race-local */
}

static void send_from(int side, int offset)
{
	struct ibv_sge from = sge_of(&p, side, 1024);
	struct ibv_send_wr send = send_of(&from, IBV_WR_SEND), *bad;

	from.addr += offset;
	CHECK(ibv_post_send(p.qp[side], &send, &bad) == 0);
}

int main(void)
{
	open_pair(&p, 64, usual);
	for (int i = 0; i < 50; i++) {
		receive_at(1, 0);
		receive_at(0, 4096);
		send_from(0, 0);
		CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
		/* The echo, and the receive of the next request at once. */
		send_from(1, 0);
		receive_at(1, EITHER(0, 8192));
		send_from(0, 1024);
		CHECK(wait_for(p.cq, 4) == IBV_WC_SUCCESS);
	}
	close_pair(&p);
	return 0;
}
