/* event_after_ack: takes the identifier from an event after it has acknowledged the event */
#include "misuse.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *of_event;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	of_event = event->id;
	CHECK(of_event == id && rdma_ack_cm_event(event) == 0);
	rdma_resolve_route(EITHER(event->id, of_event), 2000); /* finds: use-after-destroy */
	if (EITHER(0, 1))
		CHECK(rdma_get_cm_event(channel, &event) == 0 && rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	return 0;
}
