/*
 * Assumes that the NIC has read a send buffer when ibv_post_send returns, and writes the next message
 * into it. A buffer belongs to the NIC until the completion. Corrected: waits for it.
 */
#include "pair.h"

int main(void)
{
	struct end a, b;
	const uint32_t length = 512;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	for (int round = 1; round <= ROUNDS; round++) {
		receive_at(&b, 0, length, round);
		memset((void *)a.buf, round, length);
		post(&a, IBV_WR_SEND, 0, &b, 0, length, round, 0);
#ifdef FIXED
		wait_for(a.send_cq);
#endif
		memset((void *)a.buf, 0xee, length);
		wait_for(b.recv_cq);
		CHECK(is_filled(b.buf, length, round));
#ifndef FIXED
		wait_for(a.send_cq);
#endif
	}
	return 0;
}
