/*
 * Writes data through one queue pair and a flag through another, and assumes that the flag becomes
 * visible last. Requests of different queue pairs are not ordered. Corrected: the same queue
 * pair.
 */
#include "pair.h"

#ifdef FIXED
#define FLAG_QP &a
#else
#define FLAG_QP &c
#endif

int main(void)
{
	struct end a, b, c, d;
	const uint32_t length = 64, flag = 4096;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	make_pair(&c, &d, (struct options){ .rnr_retry = 7 }, a.send_cq);
	for (int round = 1; round <= ROUNDS; round++) {
		memset((void *)a.buf, round, length);
		memset((void *)c.buf, round, length);
		post(&a, IBV_WR_RDMA_WRITE, 0, &b, 0, length, 1, 0);
		wait_for(a.send_cq);
		post(FLAG_QP, IBV_WR_RDMA_WRITE, 0, &b, flag, 1, 2, 0);
		while (b.buf[flag] != (unsigned char)round)
			;
		CHECK(is_filled(b.buf, length, round));
		wait_for(a.send_cq);
	}
	return 0;
}
