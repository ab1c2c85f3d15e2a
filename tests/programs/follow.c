/*
 * follow get|poll|used|cm: waits for the asynchronous events of the first device, and prints each with the
 *     port and its addresses at that time. Nothing but an event wakes the program. Ends with the device.
 *     get: in ibv_get_async_event; poll: in poll(2), with a non-blocking descriptor; used: as poll, with a
 *     protection domain. cm: with identifiers on the device's address; prints their events, too, and waits
 *     until the device is there again.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

static struct ibv_context *context;
static struct rdma_event_channel *channel;
static struct sockaddr_in address = { .sin_family = AF_INET };
/* Listeners on the address and on all, an identifier that is bound, and one that connects to the first. */
static struct rdma_cm_id *ids[4], *accepted;
static const char *names[] = { "listener", "wildcard", "bound", "client" };

static void show(const char *event)
{
	struct ibv_port_attr port;
	int gids = 0;

	CHECK(!ibv_query_port(context, 1, &port));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		union ibv_gid gid, none = { 0 };

		gids += !ibv_query_gid(context, 1, i, &gid) && memcmp(&gid, &none, sizeof(gid));
	}
	printf("%s: %s, ", event, ibv_port_state_str(port.state));
	if (strcmp(event, ibv_event_type_str(IBV_EVENT_GID_CHANGE)))
		printf("phys_state %d, mtu %d\n", port.phys_state, 128 << port.active_mtu);
	else
		printf("%d gids\n", gids);
	fflush(stdout);
}

/* Takes one event; whether there was one. */
static int take(enum ibv_event_type *type)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(context, &event))
		return 0;
	*type = event.event_type;
	CHECK(event.element.port_num == 1);
	ibv_ack_async_event(&event);
	show(ibv_event_type_str(*type));
	return 1;
}

static const char *name_of(struct rdma_cm_id *id)
{
	for (int i = 0; i < 4; i++)
		if (id == ids[i])
			return names[i];
	return id == accepted ? "accepted" : "another";
}

/* Handles one event of the identifiers. */
static enum rdma_cm_event_type handle(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;

	CHECK(!rdma_get_cm_event(channel, &event));
	type = event->event;
	printf("%s: %s %d\n", name_of(event->id), rdma_event_str(type), event->status);
	fflush(stdout);
	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		CHECK(!rdma_resolve_route(event->id, 1000));
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		CHECK(!rdma_connect(event->id, &param));
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		accepted = event->id;
		CHECK(!rdma_accept(event->id, &param));
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		CHECK(!rdma_establish(event->id));
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		CHECK(rdma_listen(event->id, 1) == -1 && rdma_reject(event->id, NULL, 0) == -1);
		break;
	default:
		break;
	}
	rdma_ack_cm_event(event);
	return type;
}

static void connect_ids(const char *ip)
{
	struct sockaddr_in any = { .sin_family = AF_INET }, port = { 0 };
	int established = 0;

	CHECK(inet_aton(ip, &address.sin_addr) && (channel = rdma_create_event_channel()));
	for (int i = 0; i < 4; i++)
		CHECK(!rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP));
	for (int i = 0; i < 3; i++)
		CHECK(!rdma_bind_addr(ids[i], (struct sockaddr *)(i == 1 ? &any : &address)));
	CHECK(!rdma_listen(ids[0], 1) && !rdma_listen(ids[1], 1));
	port = address;
	port.sin_port = rdma_get_src_port(ids[0]);
	CHECK(!rdma_resolve_addr(ids[3], NULL, (struct sockaddr *)&port, 1000));
	while (!established)
		established = handle() == RDMA_CM_EVENT_ESTABLISHED;
}

/* Waits for another device in the place of the one that was removed, and uses it. */
static void again(void)
{
	struct ibv_device **devices;
	int number = 0;

	while (!number) {
		usleep(20000);
		CHECK(devices = ibv_get_device_list(&number));
	}
	CHECK(context = ibv_open_device(devices[0]));
	CHECK(ibv_alloc_pd(context) && !rdma_create_id(channel, &ids[0], NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(ids[0], (struct sockaddr *)&address) && ids[0]->verbs);
	CHECK(ids[0]->verbs->device == devices[0] && !rdma_listen(ids[0], 1));
	show("again");
}

int main(int argc, char **argv)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	enum ibv_event_type type = IBV_EVENT_CQ_ERR;
	const char *how = argc > 1 ? argv[1] : "";
	struct pollfd fds[2] = { { .events = POLLIN }, { .fd = -1, .events = POLLIN } };

	CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
	CHECK(strcmp(how, "used") || ibv_alloc_pd(context));
	if (!strcmp(how, "cm")) {
		connect_ids(argv[2]);
		fds[1].fd = channel->fd;
	}
	fds[0].fd = context->async_fd;
	if (strcmp(how, "get"))
		CHECK(!fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK));
	show("start");
	while (type != IBV_EVENT_DEVICE_FATAL) {
		if (!strcmp(how, "get")) {
			CHECK(take(&type));
			continue;
		}
		CHECK(poll(fds, 2, -1) > 0);
		if (fds[1].revents)
			handle();
		if (fds[0].revents)
			while (take(&type))
				;
	}
	/* The device of the identifiers may be removed before or after the one of the context. */
	while (fds[1].fd >= 0 && poll(&fds[1], 1, 1000) == 1)
		handle();
	for (int i = 0; i < 4 && ids[i]; i++)
		CHECK(!rdma_destroy_id(ids[i]));
	CHECK(!accepted || !rdma_destroy_id(accepted));
	CHECK(!ibv_close_device(context) || !strcmp(how, "used"));
	if (channel)
		again();
	printf("end\n");
	return 0;
}
