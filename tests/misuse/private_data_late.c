/* private_data_late: reads the private data of a request after it has acknowledged the event */
#include "misuse.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;

/* Acknowledges the next event; its private data go to `data`, if it is not NULL. */
static struct rdma_cm_id *take(enum rdma_cm_event_type expected, int *data)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	const int *first;

	CHECK(rdma_get_cm_event(channel, &event) == 0 && event->event == expected);
	id = event->id;
	first = event->param.conn.private_data;
	if (data != NULL && EITHER(0, 1))
		*data = *first;
	CHECK(rdma_ack_cm_event(event) == 0);
	if (data != NULL && EITHER(1, 0))
		*data = *first; /* finds: use-after-destroy */
	return id;
}

int main(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int sent = 0x1234, got = 0;
	struct rdma_conn_param param = { .private_data = &sent, .private_data_len = sizeof sent };
	struct rdma_cm_id *listener, *client, *request;

	CHECK((channel = rdma_create_event_channel()) != NULL);
	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&to) == 0 && rdma_listen(listener, 4) == 0);
	to.sin_port = rdma_get_src_port(listener);
	CHECK(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 2000) == 0);
	take(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	CHECK(rdma_resolve_route(client, 2000) == 0);
	take(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	CHECK(rdma_connect(client, &param) == 0);
	request = take(RDMA_CM_EVENT_CONNECT_REQUEST, &got);
	CHECK(got == sent);
	CHECK(rdma_reject(request, NULL, 0) == 0);
	take(RDMA_CM_EVENT_REJECTED, NULL);
	CHECK(rdma_destroy_id(request) == 0 && rdma_destroy_id(client) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	return 0;
}
