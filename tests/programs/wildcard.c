/*
 * wildcard FIRST COMMAND SECOND [ADDRESS...]: a program listens on 0.0.0.0 and, for IPv6 only, on :: with the
 *     same port. Requests come to FIRST and then to SECOND, which COMMAND adds to an interface. Then it
 *     listens on each ADDRESS with another port, and each gets a request.
 */
#include <poll.h>

#include "cm.h"

static struct rdma_cm_event *event(struct rdma_event_channel *channel, int kind)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	MUST(poll(&fd, 1, 8000) == 1 && !rdma_get_cm_event(channel, &event));
	if ((int)event->event != kind) {
		printf("%s %d instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(kind));
		exit(1);
	}
	return event;
}

/* A request to an address; the listener that gets it refuses it. */
static void request(struct rdma_event_channel *ours, const char *dst, int port)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_event *got;
	struct rdma_cm_id *id;

	MUST(theirs && !rdma_create_id(theirs, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, at(dst, port), 2000));
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(!rdma_resolve_route(id, 2000));
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_ROUTE_RESOLVED));
	MUST(!rdma_create_qp(id, NULL, &attr) && !rdma_connect(id, &param));
	got = event(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	printf("%s: a request at %s on %s\n", dst, (char *)got->listen_id->context,
	       ibv_get_device_name(got->id->verbs->device));
	MUST(!rdma_reject(got->id, NULL, 0));
	rdma_destroy_id(got->id);
	rdma_ack_cm_event(got);
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_REJECTED));
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(theirs);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *four, *six, *own;
	int on = 1, port, i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc >= 4 && channel);
	MUST(!rdma_create_id(channel, &four, "0.0.0.0", RDMA_PS_TCP));
	MUST(!rdma_create_id(channel, &six, "::", RDMA_PS_TCP));
	MUST(!rdma_bind_addr(four, at("0.0.0.0", 0)));
	port = ntohs(rdma_get_src_port(four));
	MUST(!rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	MUST(!rdma_bind_addr(six, at("::", port)) && !rdma_listen(six, 4) && !rdma_listen(four, 4));
	request(channel, argv[1], port);
	MUST(!system(argv[2]));
	request(channel, argv[3], port);
	for (i = 4; i < argc; i++) {
		MUST(!rdma_create_id(channel, &own, argv[i], RDMA_PS_TCP));
		MUST(!rdma_bind_addr(own, at(argv[i], port + 1)) && !rdma_listen(own, 4));
	}
	for (i = 4; i < argc; i++)
		request(channel, argv[i], port + 1);
	return 0;
}
