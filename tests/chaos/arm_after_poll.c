/*
 * Polls until the CQ is empty, arms it, and sleeps. A completion between the poll and the arming raises
 * no event (ibv_req_notify_cq(3)). Corrected: polls again after the arming.
 */
#include "pair.h"

static int poll_all(struct end *end, int number)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(end->recv_cq, 1, &wc) > 0) {
		CHECK(wc.status == IBV_WC_SUCCESS);
		number++;
	}
	return number;
}

int main(void)
{
	struct end a, b;
	struct ibv_cq *cq;
	void *cookie;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7, .channel = 1 }, NULL);
	for (int round = 1; round <= ROUNDS; round++) {
		int received = 0;

		CHECK(!ibv_req_notify_cq(b.recv_cq, 0));
		for (int message = 0; message < 2; message++)
			receive_at(&b, 0, 64, message);
		for (int message = 0; message < 2; message++)
			post(&a, IBV_WR_SEND, 0, &b, 0, 64, message, 0);
		while (received < 2) {
			CHECK(!ibv_get_cq_event(b.channel, &cq, &cookie));
			ibv_ack_cq_events(cq, 1);
			received = poll_all(&b, received);
			if (received == 2)
				break;
			CHECK(!ibv_req_notify_cq(b.recv_cq, 0));
#ifdef FIXED
			received = poll_all(&b, received);
#endif
		}
		for (int message = 0; message < 2; message++)
			wait_for(a.send_cq);
	}
	return 0;
}
