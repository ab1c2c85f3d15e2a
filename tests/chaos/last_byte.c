/*
 * Assumes that the last byte of a WRITE becomes visible last: polls it, and then reads the others. The
 * bytes of a message may become visible in any order. Corrected: WRITE with immediate, and the
 * completion of its receive.
 */
#include "pair.h"

int main(void)
{
	struct end a, b;
	const uint32_t length = 2048;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	for (int round = 1; round <= ROUNDS; round++) {
		memset((void *)a.buf, round, length);
#ifdef FIXED
		receive_at(&b, 0, 0, round);
		post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, &b, 0, length, round, 0);
		wait_for(b.recv_cq);
#else
		post(&a, IBV_WR_RDMA_WRITE, 0, &b, 0, length, round, 0);
		while (b.buf[length - 1] != (unsigned char)round)
			;
#endif
		CHECK(is_filled(b.buf, length, round));
		wait_for(a.send_cq);
	}
	return 0;
}
