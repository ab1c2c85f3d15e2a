/*
 * A process is killed while its connections are idle. The peer, another process of the host, gets its
 * disconnect events at once, although neither has anything to send. Prints the first false condition and
 * exits 1; exits 77 without a device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define CONNECTIONS 3
/* Retries would take a minute, and the peer of an idle connection sends nothing to retry. */
#define BOUND_MS 3000

static struct rdma_cm_event *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(ch, &event));
	if (event->event != type)
		printf("got %s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type);
	return event;
}

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr){ .cap = { 8, 8, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
}

/* Accepts all connections, reports when they are established, and waits until it is killed. */
static void server(int out)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	uint16_t port = 0;

	if (!ch || rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&in) || rdma_listen(listener, CONNECTIONS)) {
		CHECK(write(out, &port, sizeof(port)) == sizeof(port));
		exit(0);
	}
	port = rdma_get_src_port(listener);
	CHECK(write(out, &port, sizeof(port)) == sizeof(port));
	for (int established = 0; established < CONNECTIONS;) {
		CHECK(!rdma_get_cm_event(ch, &event));
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct ibv_qp_init_attr init = attributes();
			CHECK(!rdma_create_qp(event->id, NULL, &init) && !rdma_accept(event->id, NULL));
		} else {
			CHECK(event->event == RDMA_CM_EVENT_ESTABLISHED);
			established++;
		}
		rdma_ack_cm_event(event);
	}
	CHECK(write(out, &port, sizeof(port)) == sizeof(port));
	for (;;)
		pause();
}

static struct rdma_cm_id *connect_to(struct rdma_event_channel *ch, uint16_t port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr =
		htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr init = attributes();
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&in, 1000));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(id, 1000));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, NULL));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ESTABLISHED));
	return id;
}

static long now_ms(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int main(void)
{
	int fds[2];
	uint16_t port;

	CHECK(!pipe(fds));
	/* Forks before the device is open, so that the two processes share no state of the library. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		server(fds[1]);
	CHECK(read(fds[0], &port, sizeof(port)) == sizeof(port));
	if (!port)
		return 77;
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *ids[CONNECTIONS];
	CHECK(ch);
	for (int i = 0; i < CONNECTIONS; i++)
		ids[i] = connect_to(ch, port);
	CHECK(read(fds[0], &port, sizeof(port)) == sizeof(port));

	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	long start = now_ms();
	for (int i = 0; i < CONNECTIONS; i++) {
		struct pollfd wait = { .fd = ch->fd, .events = POLLIN };
		CHECK(poll(&wait, 1, BOUND_MS) == 1);
		struct rdma_cm_event *event = expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK(event->status == 0);
		rdma_ack_cm_event(event);
	}
	printf("disconnected after %ld ms\n", now_ms() - start);
	for (int i = 0; i < CONNECTIONS; i++) {
		CHECK(!rdma_disconnect(ids[i]));
		rdma_destroy_qp(ids[i]);
		CHECK(!rdma_destroy_id(ids[i]));
	}
	rdma_destroy_event_channel(ch);
	printf("ok\n");
	return 0;
}
