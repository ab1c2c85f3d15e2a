/* blocked_destroy_id: an identifier is destroyed before its event is acknowledged */
#include "misuse.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>

/* Ends the wait that would last for ever. */
static void *acknowledge_late(void *event)
{
	pause_ms(1500);
	CHECK(rdma_ack_cm_event(event) == 0);
	return NULL;
}

int main(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	pthread_t thread;

	CHECK(channel != NULL && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (EITHER(0, 1))
		CHECK(rdma_ack_cm_event(event) == 0);
	else
		CHECK(pthread_create(&thread, NULL, acknowledge_late, event) == 0);
	CHECK(rdma_destroy_id(id) == 0); /* finds: unacknowledged-events */
	if (EITHER(1, 0))
		CHECK(pthread_join(thread, NULL) == 0);
	rdma_destroy_event_channel(channel);
	return 0;
}
