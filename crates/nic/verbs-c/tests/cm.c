/*
 * Calls librdmacm as a program does: how functions report errors, one connection with event channels, one
 * with synchronous endpoints, one over XRC, one that is rejected. Prints the first false condition and exits
 * 1; exits 77 without a device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

/* The call returns -1 and sets errno. */
#define MINUS(e, call) CHECK((errno = 0, (call) == -1) && errno == (e))

static struct sockaddr *loopback(uint16_t port)
{
	static struct sockaddr_in in;
	in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr =
		htonl(INADDR_LOOPBACK) };
	return (struct sockaddr *)&in;
}

static struct rdma_cm_event *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(ch, &event));
	if (event->event != type)
		printf("got %s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type);
	return event;
}

static void conventions(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id, *destroyed;
	struct rdma_cm_event *event;
	struct sockaddr_in far = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xcb007101) };
	uint8_t tos = 8;

	MINUS(EINVAL, rdma_create_id(ch, NULL, NULL, RDMA_PS_TCP));
	MINUS(EINVAL, rdma_create_id(ch, &id, NULL, 7));
	CHECK(!rdma_create_id(ch, &id, &tos, RDMA_PS_TCP));
	CHECK(id->channel == ch && id->context == &tos && id->ps == RDMA_PS_TCP && !id->verbs && !id->qp);
	MINUS(EINVAL, rdma_bind_addr(id, NULL));
	MINUS(EADDRNOTAVAIL, rdma_bind_addr(id, (struct sockaddr *)&far));
	MINUS(EINVAL, rdma_resolve_route(id, 100));
	MINUS(EINVAL, rdma_connect(id, NULL));
	MINUS(EINVAL, rdma_disconnect(id));
	MINUS(EINVAL, rdma_get_request(id, &destroyed));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
	MINUS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 4));
	MINUS(ENOSYS, rdma_set_option(id, 9, 9, &tos, 1));
	fcntl(ch->fd, F_SETFL, O_NONBLOCK);
	MINUS(EAGAIN, rdma_get_cm_event(ch, &event));
	fcntl(ch->fd, F_SETFL, 0);
	CHECK(!rdma_bind_addr(id, loopback(0)));
	CHECK(rdma_get_src_port(id));
	MINUS(EINVAL, rdma_bind_addr(id, loopback(0)));
	destroyed = id;
	CHECK(!rdma_destroy_id(id));
	MINUS(EINVAL, rdma_destroy_id(destroyed));
	MINUS(EINVAL, rdma_listen(destroyed, 1));
	MINUS(EINVAL, rdma_ack_cm_event(NULL));
}

static const struct ibv_qp_init_attr attributes = { .cap = { 8, 8, 1, 1, 16 }, .qp_type = IBV_QPT_RC,
	.sq_sig_all = 1 };

static void refusal(struct rdma_event_channel *ch, struct rdma_cm_id *listener)
{
	struct ibv_qp_init_attr init = attributes;
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;

	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, loopback(rdma_get_src_port(listener)), 1000));
	/* As with rdma-core, the device is known when the application takes the event. */
	CHECK(!id->verbs);
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(id->verbs);
	CHECK(!rdma_resolve_route(id, 1000));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(id->route.path_rec && id->route.num_paths == 1 && id->verbs);
	CHECK(!rdma_create_qp(id, NULL, &init) && id->qp && id->send_cq && id->recv_cq_channel);
	CHECK(!rdma_connect(id, NULL));
	event = expect(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listener && event->id->context == listener->context);
	CHECK(!rdma_reject(event->id, "no", 2));
	struct rdma_cm_id *child = event->id;
	CHECK(!rdma_ack_cm_event(event) && !rdma_destroy_id(child));
	event = expect(ch, RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == id && event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(!memcmp(event->param.conn.private_data, "no", 2) && id->qp->state == IBV_QPS_ERR);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !rdma_destroy_id(id));
}

static void connection(struct rdma_event_channel *ch, struct rdma_cm_id *listener)
{
	struct ibv_qp_init_attr init = attributes;
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 5,
		.responder_resources = 3,
		.initiator_depth = 2, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id, *child;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	char send[32] = "over the wire", recv[32] = "";
	int n;

	CHECK(second && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, loopback(rdma_get_src_port(listener)), 1000));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(id, 1000));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(!rdma_create_qp(id, NULL, &init) && id->qp->state == IBV_QPS_INIT);
	MINUS(EINVAL, rdma_create_qp(id, NULL, &init));
	CHECK(!rdma_connect(id, &param));

	event = expect(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK(event->param.conn.private_data_len == 56 && !memcmp(event->param.conn.private_data, "hello",
		5));
	CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	CHECK(child->verbs == id->verbs && rdma_get_dst_port(child) == rdma_get_src_port(id));
	init = attributes;
	CHECK(!rdma_create_qp(child, NULL, &init));
	struct ibv_mr *rmr = rdma_reg_msgs(child, recv, sizeof(recv)), *smr = rdma_reg_msgs(id, send,
		sizeof(send));
	CHECK(rmr && smr && !rdma_post_recv(child, &n, recv, sizeof(recv), rmr));
	param.private_data_len = 0;
	CHECK(!rdma_accept(child, &param) && child->qp->state == IBV_QPS_RTS);
	rdma_ack_cm_event(event);
	event = expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id && id->qp->state == IBV_QPS_RTS &&
		event->param.conn.qp_num == child->qp->qp_num);
	rdma_ack_cm_event(event);
	rdma_ack_cm_event(expect(listener->channel, RDMA_CM_EVENT_ESTABLISHED));

	attr.qp_state = IBV_QPS_RTS;
	CHECK(!rdma_init_qp_attr(id, &attr, &n) && n & IBV_QP_TIMEOUT && attr.retry_cnt == 7);
	CHECK(!rdma_post_send(id, &n, send, sizeof(send), smr, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(child, &wc) == 1 && wc.byte_len == sizeof(send) && !strcmp(send, recv));
	CHECK(wc.wr_id == (uintptr_t)&n);

	CHECK(!rdma_migrate_id(child, second) && child->channel == second);
	CHECK(!rdma_disconnect(id));
	event = expect(second, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == child && event->status == 0 && !rdma_disconnect(child));
	rdma_ack_cm_event(event);
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_DISCONNECTED));
	CHECK(!rdma_dereg_mr(rmr) && !rdma_dereg_mr(smr));
	rdma_destroy_qp(id);
	/* The application may destroy the objects of an identifier itself. */
	CHECK(!ibv_destroy_qp(child->qp));
	child->qp = NULL;
	CHECK(!ibv_destroy_cq(child->send_cq) && !ibv_destroy_comp_channel(child->send_cq_channel));
	CHECK(!ibv_destroy_cq(child->recv_cq) && !ibv_destroy_comp_channel(child->recv_cq_channel));
	CHECK(!rdma_destroy_id(child) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(second);
}

static char port[8];
static pthread_barrier_t ready;

static void *endpoint_server(void *unused)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr init = attributes;
	struct rdma_cm_id *listener, *id;
	struct ibv_wc wc;
	char buf[16] = "";

	CHECK(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &res) && res->ai_src_len &&
		res->ai_qp_type == IBV_QPT_RC);
	CHECK(!rdma_create_ep(&listener, res, NULL, &init));
	rdma_freeaddrinfo(res);
	CHECK(!rdma_listen(listener, 1));
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	pthread_barrier_wait(&ready);
	CHECK(!rdma_get_request(listener, &id) && id->qp &&
		id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	struct ibv_mr *mr = rdma_reg_msgs(id, buf, sizeof(buf));
	CHECK(mr && !rdma_post_recv(id, NULL, buf, sizeof(buf), mr));
	CHECK(!rdma_accept(id, NULL));
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && !strcmp(buf, "endpoint"));
	CHECK(!rdma_disconnect(id) && !rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return unused;
}

static void endpoints(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr init = attributes;
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	pthread_t thread;
	char buf[16] = "endpoint";

	pthread_barrier_init(&ready, NULL, 2);
	CHECK(!pthread_create(&thread, NULL, endpoint_server, NULL));
	pthread_barrier_wait(&ready);
	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &res) && res->ai_dst_len);
	CHECK(!rdma_create_ep(&id, res, NULL, &init));
	rdma_freeaddrinfo(res);
	CHECK(id->qp && id->event && !rdma_connect(id, NULL));
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_post_send(id, NULL, buf, sizeof(buf), NULL, IBV_SEND_INLINE));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!rdma_disconnect(id));
	rdma_destroy_ep(id);
	CHECK(!pthread_join(thread, NULL));
}

/*
 * The receiving end of XRC: a queue pair in the library's domain, and a shared receive queue that senders
 * name.
 */
static void *xrc_server(void *unused)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP,
		.ai_qp_type = IBV_QPT_XRC_RECV }, *res;
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .cap = { 0, 8, 0, 1, 0 } };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct rdma_cm_id *listener, *id;
	struct ibv_wc wc;
	uint32_t number;
	char buf[16] = "";

	CHECK(!rdma_getaddrinfo("127.0.0.1", "0", &hints, &res) && res->ai_qp_type == IBV_QPT_XRC_RECV);
	CHECK(!rdma_create_ep(&listener, res, NULL, NULL) && listener->qp_type == IBV_QPT_XRC_RECV);
	rdma_freeaddrinfo(res);
	CHECK(!rdma_listen(listener, 1));
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	pthread_barrier_wait(&ready);
	CHECK(!rdma_get_request(listener, &id) && !id->qp && id->qp_type == IBV_QPT_XRC_RECV);
	CHECK(!rdma_create_qp_ex(id, &init) && init.xrcd && id->qp->qp_type == IBV_QPT_XRC_RECV);
	CHECK(!rdma_create_srq(id, NULL, &shared) && !ibv_get_srq_num(id->srq, &number));
	struct ibv_mr *mr = rdma_reg_msgs(id, buf, sizeof(buf));
	CHECK(mr && !rdma_post_recv(id, NULL, buf, sizeof(buf), mr));
	struct rdma_conn_param param = { .private_data = &number, .private_data_len = sizeof(number) };
	CHECK(!rdma_accept(id, &param) && id->qp->state == IBV_QPS_RTS);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && !wc.status && !strcmp(buf, "extended"));
	CHECK(!rdma_disconnect(id) && !rdma_dereg_mr(mr));
	/* The shared receive queue still uses the CQ. */
	rdma_destroy_qp(id);
	CHECK(!id->qp && id->recv_cq);
	rdma_destroy_srq(id);
	CHECK(!id->srq && !id->recv_cq);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return unused;
}

static struct rdma_cm_id *resolved(int qp_type)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = qp_type }, *res;
	struct ibv_qp_init_attr init = attributes;
	struct rdma_cm_id *id;

	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &res));
	CHECK(!rdma_create_ep(&id, res, NULL, &init) && id->qp->qp_type == (enum ibv_qp_type)qp_type);
	rdma_freeaddrinfo(res);
	return id;
}

static void extended_connection(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	pthread_t thread;
	char buf[16] = "extended";

	CHECK(!pthread_create(&thread, NULL, xrc_server, NULL));
	pthread_barrier_wait(&ready);
	/* There is no listener for RC. */
	struct rdma_cm_id *id = resolved(IBV_QPT_RC);
	MINUS(ECONNREFUSED, rdma_connect(id, NULL));
	rdma_destroy_ep(id);
	id = resolved(IBV_QPT_XRC_SEND);
	CHECK(!rdma_connect(id, &param) && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_sge sge = { (uintptr_t)buf, sizeof(buf), 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags =
		IBV_SEND_INLINE };
	memcpy(&wr.qp_type.xrc.remote_srqn, id->event->param.conn.private_data, 4);
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!rdma_disconnect(id));
	rdma_destroy_ep(id);
	CHECK(!pthread_join(thread, NULL));
}

/*
 * rdma_destroy_qp destroys a QP that is attached to groups, by the identifier or by the application: nothing
 * uses its CQ afterwards.
 */
static void member_destroyed(void)
{
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef010203) };
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;

	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_UDP));
	CHECK(!rdma_resolve_addr(id, NULL, loopback(7174), 1000));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED));
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 },
		.qp_type = IBV_QPT_UD };
	CHECK(cq && !rdma_create_qp(id, NULL, &init));
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	rdma_ack_cm_event(expect(ch, RDMA_CM_EVENT_MULTICAST_JOIN));
	union ibv_gid other = { .raw = { [10] = 0xff, 0xff, 239, 1, 2, 4 } };
	CHECK(!ibv_attach_mcast(id->qp, &other, 0));
	rdma_destroy_qp(id);
	CHECK(!id->qp && !ibv_destroy_cq(cq));
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static atomic_int started, ended_badly;

static void *waits_for_events(void *channel)
{
	struct rdma_cm_event *event;

	atomic_store(&started, 1);
	/* EINVAL: the channel was destroyed before the call. */
	if (rdma_get_cm_event(channel, &event) && errno != EINVAL)
		atomic_store(&ended_badly, errno);
	return NULL;
}

/*
 * rping destroys its channel while a thread waits there, and exits without an error because the thread keeps
 * sleeping.
 */
static void destroyed_under_its_reader(void)
{
	for (int round = 0; round < 1500; round++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		pthread_attr_t attr;
		pthread_t thread;

		CHECK(channel);
		atomic_store(&started, 0);
		pthread_attr_init(&attr);
		pthread_attr_setstacksize(&attr, 64 << 10);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		CHECK(!pthread_create(&thread, &attr, waits_for_events, channel));
		while (!atomic_load(&started))
			;
		for (volatile int spin = 0; spin < round % 512; spin++)
			;
		rdma_destroy_event_channel(channel);
	}
	usleep(100000);
	CHECK(!atomic_load(&ended_badly));
}

/* A thread waits on a destroyed channel, whose address a later channel gets: that one has no identifiers. */
static void address_of_a_destroyed_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel(), *later[64];
	struct rdma_cm_id *id;
	pthread_t thread;
	int n = 0;

	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	atomic_store(&started, 0);
	CHECK(!pthread_create(&thread, NULL, waits_for_events, channel));
	while (!atomic_load(&started))
		;
	usleep(50000);
	rdma_destroy_event_channel(channel);
	do
		CHECK((later[n] = rdma_create_event_channel()));
	while (later[n++] != channel && n < 64);
	while (n > 0)
		rdma_destroy_event_channel(later[--n]);
	CHECK(!rdma_bind_addr(id, loopback(0)));
}

/* Missing in older headers. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
#pragma weak rdma_write_cm_event
#pragma weak rdma_resolve_addrinfo
#pragma weak rdma_query_addrinfo
enum { EVENT_ADDRINFO_RESOLVED = 16, EVENT_USER = 18, FLAG_SA = 0x10 };

static void own_events(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_NUMERICHOST | RAI_PASSIVE,
		.ai_port_space = RDMA_PS_TCP };
	uint64_t arg;

	CHECK(rdma_write_cm_event && rdma_resolve_addrinfo && rdma_query_addrinfo);
	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	MINUS(EINVAL, rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0));
	CHECK(!rdma_write_cm_event(id, EVENT_USER, -5, 0x1122334455667788));
	event = expect(ch, EVENT_USER);
	memcpy(&arg, &event->param, sizeof(arg));
	CHECK(event->id == id && event->status == -5 && arg == 0x1122334455667788 &&
		!rdma_ack_cm_event(event));

	MINUS(ENOENT, rdma_query_addrinfo(id, &info));
	MINUS(EOPNOTSUPP, (hints.ai_flags |= FLAG_SA, rdma_resolve_addrinfo(id, NULL, "x", &hints)));
	hints.ai_flags &= ~FLAG_SA;
	MINUS(ENODATA, rdma_resolve_addrinfo(id, "no address", NULL, &hints));
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints));
	MINUS(EBUSY, rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints));
	event = expect(ch, EVENT_ADDRINFO_RESOLVED);
	CHECK(event->id == id && !event->status && !rdma_ack_cm_event(event));
	CHECK(!rdma_query_addrinfo(id, &info) && info->ai_src_len == sizeof(struct sockaddr_in));
	CHECK(((struct sockaddr_in *)info->ai_src_addr)->sin_port == htons(7471));
	rdma_freeaddrinfo(info);
	MINUS(ENOENT, rdma_query_addrinfo(id, &info));
	/* Destroying the identifier frees a result that was not queried. */
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) && !rdma_destroy_id(id));
}

int main(void)
{
	struct rdma_event_channel *ch, *server;
	struct rdma_cm_id *listener;
	struct ibv_context **devices;
	int n = -1;

	CHECK((devices = rdma_get_devices(&n)));
	if (n < 1)
		return 77;
	CHECK((ch = rdma_create_event_channel()) && (server = rdma_create_event_channel()));
	if (rdma_create_id(server, &listener, &n, RDMA_PS_TCP)) {
		printf("no identifier: errno %d\n", errno);
		return 77;
	}
	if (rdma_bind_addr(listener, loopback(0)) && errno == ENODEV)
		return 77;
	CHECK(!rdma_listen(listener, 4));
	rdma_free_devices(devices);
	conventions(ch);
	own_events(ch);
	refusal(ch, listener);
	connection(ch, listener);
	endpoints();
	extended_connection();
	member_destroyed();
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(server);
	address_of_a_destroyed_channel();
	destroyed_under_its_reader();
	printf("ok\n");
	return 0;
}
