/*
 * Assumes that the completions of two queue pairs in one CQ come in the order of the posts. Requests
 * of different queues are not ordered. Corrected: tells them apart by qp_num.
 */
#include "pair.h"

int main(void)
{
	struct end a, b, c, d;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	make_pair(&c, &d, (struct options){ .rnr_retry = 7 }, a.send_cq);
	for (int round = 1; round <= ROUNDS; round++) {
		memset((void *)a.buf, round, 64);
		post(&a, IBV_WR_RDMA_WRITE, 0, &b, 0, 64, round, 0);
		/* A program that polls now would see the first one; this one waits for its data. */
		while (b.buf[63] != (unsigned char)round)
			;
		post(&c, IBV_WR_RDMA_WRITE, 0, &d, 0, 64, round, 0);
		struct ibv_wc first = wait_for(a.send_cq), second = wait_for(a.send_cq);
#ifdef FIXED
		CHECK(first.qp_num != second.qp_num);
#else
		CHECK(first.qp_num == a.qp->qp_num && second.qp_num == c.qp->qp_num);
#endif
	}
	return 0;
}
