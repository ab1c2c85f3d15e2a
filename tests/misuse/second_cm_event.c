/* second_cm_event: an event of an id is taken and never acknowledged */
#include "misuse.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

int main(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel = rdma_create_event_channel(); /* finds: leaked-event-channel */
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0); /* finds: leaked-cm-id */
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0); /* finds: unacknowledged-cm-event */
	return event->status;
}
