/*
 * Assumes that a WRITE whose completion was polled is visible to the peer's CPU: tells the peer by
 * another way (here a variable, often a TCP connection). An acknowledged WRITE may not have
 * reached memory. Corrected: a READ of the same queue pair, which is executed after the WRITE was placed.
 */
#include "pair.h"

int main(void)
{
	struct end a, b;
	const uint32_t length = 64;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	for (int round = 1; round <= ROUNDS; round++) {
		memset((void *)a.buf, round, length);
		post(&a, IBV_WR_RDMA_WRITE, 0, &b, 0, length, round, 0);
		wait_for(a.send_cq);
#ifdef FIXED
		post(&a, IBV_WR_RDMA_READ, 4096, &b, 0, 1, round, 0);
		wait_for(a.send_cq);
#endif
		CHECK(is_filled(b.buf, length, round));
	}
	return 0;
}
