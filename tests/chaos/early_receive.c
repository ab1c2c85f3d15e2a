/*
 * Polls the last byte of a receive buffer instead of the CQ. The contents of a receive buffer
 * are undefined until the completion. Corrected: waits for it.
 */
#include "pair.h"

/* The bytes are out of order for microseconds: most rounds do not see it. */
#ifdef FIXED
#define TRIES ROUNDS
#else
#define TRIES (60 * ROUNDS)
#endif

int main(void)
{
	struct end a, b;
	const uint32_t length = 4096;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	for (int round = 1; round <= TRIES; round++) {
		memset((void *)a.buf, round, length);
		receive_at(&b, 0, length, round);
		post(&a, IBV_WR_SEND, 0, &b, 0, length, round, 0);
#ifdef FIXED
		wait_for(b.recv_cq);
#else
		while (b.buf[length - 1] != (unsigned char)round)
			;
#endif
		CHECK(is_filled(b.buf, length, round));
#ifndef FIXED
		wait_for(b.recv_cq);
#endif
		wait_for(a.send_cq);
	}
	return 0;
}
