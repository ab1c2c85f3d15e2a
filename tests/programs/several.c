/*
 * What a host with two devices does: one line for each question, for comparison between kernels and roxie.
 *
 * several ADDRA PEERA IFB ADDRB PEERB OTHER: an address of each of two interfaces, and of a neighbour behind
 *     each, and an address of this host that no device has. IFB has no other address.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "cm.h"

static const char *addrs[2], *peers[2], *other;
static struct ibv_context *open_devices[2];

/* Whether a device has this address as a GID. */
static int has(struct ibv_context *context, const char *text)
{
	union ibv_gid gid, wanted = { 0 };
	struct ibv_port_attr port;

	wanted.raw[10] = wanted.raw[11] = 0xff;
	if (inet_pton(AF_INET, text, wanted.raw + 12) != 1)
		MUST(inet_pton(AF_INET6, text, wanted.raw) == 1);
	MUST(!ibv_query_port(context, 1, &port));
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(gid.raw, wanted.raw, 16))
			return 1;
	return 0;
}

/* The letter of a device. */
static const char *of(struct ibv_context *context)
{
	if (!context)
		return "no device";
	for (int i = 0; i < 2; i++)
		if (open_devices[i] && context->device == open_devices[i]->device)
			return i ? "device B" : "device A";
	return "another device";
}

static const char *name(int number)
{
	return number ? strerrorname_np(number) : "ok";
}

static struct rdma_cm_id *id_on(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

/* The next event within five seconds; NULL if there is none. */
static struct rdma_cm_event *event(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, 5000) != 1)
		return NULL;
	return rdma_get_cm_event(channel, &event) ? NULL : event;
}

static const char *shown(const struct sockaddr *addr)
{
	static char text[2][NI_MAXHOST];
	static int next;
	char *to = text[next++ % 2];

	if (getnameinfo(addr, addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in),
			to, NI_MAXHOST, NULL, 0, NI_NUMERICHOST))
		strcpy(to, "none");
	for (int i = 0; i < 2; i++)
		if (!strcmp(to, addrs[i]))
			strcpy(to, i ? "B" : "A");
	return to;
}

static void bind_to(struct rdma_event_channel *channel, const char *what, const char *text)
{
	struct rdma_cm_id *id = id_on(channel);
	int failed = rdma_bind_addr(id, at(text, 0)) ? errno : 0;

	printf("bind to %s: %s, %s\n", what, name(failed), of(id->verbs));
	if (!failed) {
		failed = rdma_listen(id, 1) ? errno : 0;
		printf("listen on %s: %s, %s\n", what, name(failed), of(id->verbs));
	}
	rdma_destroy_id(id);
}

static void resolve(struct rdma_event_channel *channel, const char *what, const char *src, const char *dst)
{
	struct rdma_cm_id *id = id_on(channel);
	struct rdma_cm_event *got;

	if (rdma_resolve_addr(id, src ? at(src, 0) : NULL, at(dst, 7471), 2000)) {
		printf("resolve %s: %s\n", what, name(errno));
	} else if (!(got = event(channel))) {
		printf("resolve %s: no event\n", what);
	} else {
		printf("resolve %s: %s %s, %s, source %s\n", what, rdma_event_str(got->event), name(-got->status),
		       of(id->verbs), got->status ? "-" : shown(rdma_get_local_addr(id)));
		rdma_ack_cm_event(got);
	}
	rdma_destroy_id(id);
}

/* Binds one port twice. */
static void twice(struct rdma_event_channel *channel, const char *what, const char *first, const char *second)
{
	static int port = 17100;
	struct rdma_cm_id *one = id_on(channel), *two = id_on(channel);
	int number = port++, failed;

	MUST(!rdma_bind_addr(one, at(first, number)));
	failed = rdma_bind_addr(two, at(second, number)) ? errno : 0;
	printf("one port on %s: %s\n", what, name(failed));
	rdma_destroy_id(one);
	rdma_destroy_id(two);
}

/* A connection to a listener of this process on a wildcard address. */
static void request(const char *what, const char *wildcard, const char *dst)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct rdma_cm_id *listener = id_on(ours), *id = id_on(theirs), *child;
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct rdma_cm_event *got;

	MUST(!rdma_bind_addr(listener, at(wildcard, 0)) && !rdma_listen(listener, 4));
	MUST(!rdma_resolve_addr(id, NULL, at(dst, ntohs(rdma_get_src_port(listener))), 2000));
	MUST((got = event(theirs)));
	if (got->event != RDMA_CM_EVENT_ADDR_RESOLVED) {
		printf("request to %s: %s %s\n", what, rdma_event_str(got->event), name(-got->status));
		goto out;
	}
	rdma_ack_cm_event(got);
	if (rdma_resolve_route(id, 2000)) {
		printf("request to %s: no route, %s\n", what, name(errno));
		goto end;
	}
	MUST((got = event(theirs)) && got->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	rdma_ack_cm_event(got);
	MUST(!rdma_create_qp(id, NULL, &attr) && !rdma_connect(id, &param));
	if (!(got = event(ours))) {
		printf("request to %s: no event\n", what);
		return;
	}
	child = got->id;
	printf("request to %s: %s, at the listener %s, in the request %s, %s from %s\n", what,
	       rdma_event_str(got->event), of(listener->verbs), of(child->verbs),
	       shown(rdma_get_local_addr(child)), shown(rdma_get_peer_addr(child)));
	rdma_ack_cm_event(got);
	MUST(!rdma_create_qp(child, NULL, &attr) && !rdma_accept(child, &param));
	MUST((got = event(theirs)));
	printf("  client: %s\n", rdma_event_str(got->event));
	rdma_ack_cm_event(got);
	MUST((got = event(ours)));
	printf("  server: %s\n", rdma_event_str(got->event));
	rdma_ack_cm_event(got);
	rdma_disconnect(id);
	rdma_destroy_qp(child);
	rdma_destroy_id(child);
	goto end;
out:
	rdma_ack_cm_event(got);
end:
	if (id->qp)
		rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(ours);
	rdma_destroy_event_channel(theirs);
}

/* Objects of two devices do not mix. */
static void mix(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_devices[0]);
	struct ibv_cq *own = ibv_create_cq(open_devices[0], 4, NULL, NULL, 0);
	struct ibv_cq *foreign = ibv_create_cq(open_devices[1], 4, NULL, NULL, 0);
	struct ibv_pd *foreign_pd = ibv_alloc_pd(open_devices[1]);
	struct ibv_srq_init_attr srq_attr = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(foreign_pd, &srq_attr);
	struct ibv_qp_init_attr attr = { .send_cq = own, .recv_cq = own, .cap = { 1, 1, 1, 1, 0 },
					 .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp;

	MUST(pd && own && foreign && foreign_pd && srq);
	qp = ibv_create_qp(pd, &attr);
	printf("QP with the CQ of its device: %s\n", name(qp ? 0 : errno));
	MUST(!ibv_destroy_qp(qp));
	attr.recv_cq = foreign;
	qp = ibv_create_qp(pd, &attr);
	printf("QP with a receive CQ of another device: %s\n", name(qp ? 0 : errno));
	attr.recv_cq = own;
	attr.send_cq = foreign;
	qp = ibv_create_qp(pd, &attr);
	printf("QP with a send CQ of another device: %s\n", name(qp ? 0 : errno));
	attr.send_cq = own;
	attr.srq = srq;
	qp = ibv_create_qp(pd, &attr);
	printf("QP with an SRQ of another device: %s\n", name(qp ? 0 : errno));
	ibv_destroy_srq(srq);
	ibv_destroy_cq(own);
	ibv_destroy_cq(foreign);
	ibv_dealloc_pd(pd);
	ibv_dealloc_pd(foreign_pd);
}

/* Runs a command, and prints the events of both devices until none comes for a second and a half. */
static void change(const char *what, const char *format, const char *netdev)
{
	char command[256];
	struct pollfd fds[2];
	int seen[2][64] = { { 0 } };

	snprintf(command, sizeof(command), format, netdev);
	MUST(!system(command));
	for (int i = 0; i < 2; i++)
		fds[i] = (struct pollfd){ .fd = open_devices[i]->async_fd, .events = POLLIN };
	while (poll(fds, 2, 1500) > 0) {
		for (int i = 0; i < 2; i++) {
			struct ibv_async_event got;

			if (!(fds[i].revents & POLLIN))
				continue;
			MUST(!ibv_get_async_event(open_devices[i], &got));
			seen[i][got.event_type]++;
			ibv_ack_async_event(&got);
		}
	}
	printf("%s:", what);
	for (int i = 0; i < 2; i++)
		for (int type = 0; type < 64; type++)
			if (seen[i][type])
				printf(" %s %s;", i ? "B" : "A", ibv_event_type_str(type));
	for (int i = 0; i < 2; i++) {
		struct ibv_port_attr port;

		MUST(!ibv_query_port(open_devices[i], 1, &port));
		printf(" %s %s", i ? "B" : "A", ibv_port_state_str(port.state));
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	const char *netdev;
	struct ibv_device **list, *one, *two;
	int count;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc == 7 && channel);
	for (int i = 0; i < 2; i++) {
		addrs[i] = argv[3 * i + 1];
		peers[i] = argv[3 * i + 2];
	}
	netdev = argv[3];
	other = argv[6];
	MUST((list = ibv_get_device_list(&count)));
	printf("%d devices\n", count);
	for (int i = 0; i < count; i++) {
		struct ibv_context *context = ibv_open_device(list[i]);

		MUST(context);
		for (int of = 0; of < 2; of++)
			if (has(context, addrs[of]))
				open_devices[of] = context;
	}
	MUST(open_devices[0] && open_devices[1]);
	one = open_devices[0]->device;
	two = open_devices[1]->device;
	printf("names differ: %d, GUIDs differ: %d\n", !!strcmp(ibv_get_device_name(one), ibv_get_device_name(two)),
	       ibv_get_device_guid(one) != ibv_get_device_guid(two));

	bind_to(channel, "A", addrs[0]);
	bind_to(channel, "B", addrs[1]);
	bind_to(channel, "0.0.0.0", "0.0.0.0");
	bind_to(channel, "::", "::");
	bind_to(channel, "127.0.0.1", "127.0.0.1");
	bind_to(channel, "::1", "::1");
	bind_to(channel, "an address without a device", other);
	bind_to(channel, "an address of no interface", "192.0.2.77");

	resolve(channel, "the neighbour of A", NULL, peers[0]);
	resolve(channel, "the neighbour of B", NULL, peers[1]);
	resolve(channel, "the neighbour of A, from A", addrs[0], peers[0]);
	resolve(channel, "the neighbour of B, from B", addrs[1], peers[1]);
	resolve(channel, "A", NULL, addrs[0]);
	resolve(channel, "B", NULL, addrs[1]);
	resolve(channel, "B, from A", addrs[0], addrs[1]);
	resolve(channel, "127.0.0.1", NULL, "127.0.0.1");
	resolve(channel, "::1", NULL, "::1");
	resolve(channel, "0.0.0.0", NULL, "0.0.0.0");
	resolve(channel, "127.0.0.1, from B", addrs[1], "127.0.0.1");
	resolve(channel, "an address without a device", NULL, other);
	resolve(channel, "from an address without a device", other, peers[0]);
	resolve(channel, "from an address of no interface", "192.0.2.77", peers[0]);
	resolve(channel, "a host without a route", NULL, "192.0.2.77");

	twice(channel, "A and A", addrs[0], addrs[0]);
	twice(channel, "A and B", addrs[0], addrs[1]);
	twice(channel, "A and 0.0.0.0", addrs[0], "0.0.0.0");
	twice(channel, "0.0.0.0 and B", "0.0.0.0", addrs[1]);
	twice(channel, "A and 127.0.0.1", addrs[0], "127.0.0.1");
	twice(channel, "127.0.0.1 and 0.0.0.0", "127.0.0.1", "0.0.0.0");
	twice(channel, "0.0.0.0 and ::", "0.0.0.0", "::");

	request("A", "0.0.0.0", addrs[0]);
	request("B", "0.0.0.0", addrs[1]);
	request("B on ::", "::", addrs[1]);
	request("127.0.0.1", "0.0.0.0", "127.0.0.1");
	request("127.0.0.1 on 127.0.0.1", "127.0.0.1", "127.0.0.1");
	request("B on 127.0.0.1", "127.0.0.1", addrs[1]);

	mix();

	if (geteuid())
		return 0;
	change("at rest", "true", netdev);
	change("a further address on B", "ip addr add 10.79.9.1/24 dev %s", netdev);
	change("that address removed", "ip addr del 10.79.9.1/24 dev %s", netdev);
	change("B down", "ip link set %s down", netdev);
	change("B up", "ip link set %s up", netdev);
	change("a smaller MTU", "ip link set %s mtu 1400", netdev);
	change("the larger MTU", "ip link set %s mtu 1500", netdev);
	return 0;
}
