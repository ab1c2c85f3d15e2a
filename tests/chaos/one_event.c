/*
 * Assumes that each channel event comes with exactly one completion. ibv_get_cq_event(3): an event may
 * come for completions that were polled before, and one event may stand for many. Corrected: polls what
 * there is.
 */
#include "pair.h"

int main(void)
{
	struct end a, b;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *cookie;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7, .channel = 1 }, NULL);
	CHECK(!ibv_req_notify_cq(b.recv_cq, 0));
	for (int round = 1; round <= ROUNDS; round++) {
		int received = 0;

		receive_at(&b, 0, 64, round);
		post(&a, IBV_WR_SEND, 0, &b, 0, 64, round, 0);
		while (!received) {
			CHECK(!ibv_get_cq_event(b.channel, &cq, &cookie));
			ibv_ack_cq_events(cq, 1);
			CHECK(!ibv_req_notify_cq(b.recv_cq, 0));
			received = ibv_poll_cq(b.recv_cq, 1, &wc);
#ifndef FIXED
			CHECK(received == 1);
#endif
			CHECK(!received || wc.status == IBV_WC_SUCCESS);
		}
		wait_for(a.send_cq);
	}
	return 0;
}
