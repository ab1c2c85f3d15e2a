/*
 * Posts a receive just before the message comes, and sets rnr_retry to 0. IBA 9.7.5.2.8: a responder that
 * is not ready answers with an RNR NAK, also while it has not learned of a posted receive. Corrected:
 * retries.
 */
#include "pair.h"

#ifdef FIXED
#define RNR_RETRY 7
#else
#define RNR_RETRY 0
#endif

int main(void)
{
	struct end a, b;

	make_pair(&a, &b, (struct options){ .rnr_retry = RNR_RETRY }, NULL);
	for (int round = 1; round <= ROUNDS; round++) {
		receive_at(&b, 0, 64, round);
		post(&a, IBV_WR_SEND, 0, &b, 0, 64, round, 0);
		wait_for(a.send_cq);
		wait_for(b.recv_cq);
	}
	return 0;
}
