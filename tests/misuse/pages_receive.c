/* pages_receive: the memory of a receive, and the result of a READ, are read before the completion */
#include "misuse.h"

#include <unistd.h>

/* options: --pages=receives */
int main(void)
{
	struct ibv_send_wr send, read, *bad;
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_sge from, to, result;
	struct pair p;
	int sum = 0;

	open_pair(&p, 16, usual);
	memset(p.memory[0], 7, SIZE);
	from = sge_of(&p, 0, 32768);
	to = sge_of(&p, 1, 32768);
	receive = receive_to(&to);
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0);
	send = send_of(&from, IBV_WR_SEND);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
#ifndef FIXED
	sum += p.memory[1][5000]; /* finds: buffer-used-early */
#endif
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	/* The message is shorter than the receive: its rest is the program's. */
	from.length = 4096;
	CHECK(ibv_post_recv(p.qp[1], &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0);
	sum += p.memory[1][20000];
	CHECK(wait_for(p.cq, 2) == IBV_WC_SUCCESS);
	for (int at = 0; at < 32768; at++)
		CHECK(p.memory[1][at] == 7);
	result = sge_of(&p, 0, 16384);
	result.addr += 32768;
	memset(p.memory[0] + 32768, 1, 16384);
	read = remote_of(&p, &result, IBV_WR_RDMA_READ);
	CHECK(ibv_post_send(p.qp[0], &read, &bad) == 0);
#ifndef FIXED
	p.memory[0][32768 + 9000] = 3; /* finds: buffer-used-early */
#endif
	CHECK(wait_for(p.cq, 1) == IBV_WC_SUCCESS);
	sum += p.memory[0][32768 + 8191];
	CHECK(p.memory[0][32768] == 7 && p.memory[0][49151] == 7 && sum > 0);
	close_pair(&p);
	return 0;
}
