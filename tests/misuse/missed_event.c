/* missed_event: a thread waits for an event of a completion queue that is not armed; options: --hang 1 */
#include "event.h"

static void *wait_for_event(void *unused)
{
	struct ibv_cq *cq;
	void *argument;

	CHECK(ibv_get_cq_event(loop.channel, &cq, &argument) == 0); /* finds: missed-completion-event */
	ibv_ack_cq_events(cq, 1);
	return unused;
}

int main(void)
{
	pthread_t thread;

	open_loop();
	post_loop();
	pause_ms(100);
	CHECK(pthread_create(&thread, NULL, wait_for_event, NULL) == 0);
	pause_ms(1800);
	/* Ends the wait that would last for ever. */
	CHECK(ibv_req_notify_cq(loop.cq, 0) == 0);
	post_loop();
	CHECK(pthread_join(thread, NULL) == 0);
	close_loop();
	return 0;
}
