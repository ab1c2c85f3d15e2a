/* Every call that the library refuses leaves a reason: the function, the errno, and a sentence that names
 * the field. The calls have wrong pointers, attributes, states and sizes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static const char *(*last_refusal)(void);

/* Checks the reason of the call that just failed: "function: ERRNO: ... field ...". */
static void reason(int line, const char *call, int failed, int number, const char *field)
{
	const char *last = last_refusal();
	const char *name = strerrorname_np(number);
	const char *errno_at = last ? strchr(last, ' ') : NULL;

	if (number == EOPNOTSUPP)
		name = "EOPNOTSUPP";
	if (failed && errno_at && !strncmp(errno_at + 1, name, strlen(name)) &&
	    !strncmp(errno_at + 1 + strlen(name), ": ", 2) && strstr(errno_at + 1 + strlen(name), field))
		return;
	printf("line %d: %s: failed %d, \"%s\", not %s with %s\n", line, call, failed, last, name, field);
	exit(1);
}

/* A call that returns an errno, NULL, -1 or a negative errno. */
#define CODE(call, number, field) reason(__LINE__, #call, (call) == (number), number, field)
#define NULLED(call, number, field) \
	reason(__LINE__, #call, (call) == NULL && errno == (number), number, field)
#define MINUS(call, number, field) \
	reason(__LINE__, #call, (call) == -1 && errno == (number), number, field)
#define NEGATIVE(call, number, field) reason(__LINE__, #call, (call) == -(number), number, field)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096];

static struct ibv_qp_init_attr init_of(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){ .qp_type = type, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
}

static void devices(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	struct ibv_wc wc;
	union ibv_gid gid;
	__be16 pkey;

	NULLED(ibv_open_device(NULL), EINVAL, "device");
	NULLED(ibv_alloc_pd(NULL), EINVAL, "context");
	CODE(ibv_query_device(context, NULL), EINVAL, "attr");
	CODE(ibv_query_port(context, 2, &port), EINVAL, "port_num");
	MINUS(ibv_query_gid(context, 1, -1, &gid), EINVAL, "index");
	MINUS(ibv_query_gid(context, 2, 0, &gid), EINVAL, "port_num");
	CODE(ibv_query_gid_ex(context, 1, 250, &entry, 0), ENODATA, "row 250");
	CODE(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP, "flags");
	MINUS(ibv_query_pkey(context, 1, 1, &pkey), EINVAL, "index");
	MINUS(ibv_get_pkey_index(context, 1, 1), EINVAL, "pkey");
	NULLED(ibv_import_pd(context, 12345), ENOENT, "handle 12345");
	NULLED(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL, "0 entries");
	NULLED(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL, "cqe");
	NULLED(ibv_create_cq(context, 1, NULL, NULL, 1000), EINVAL, "comp_vector");
	CODE(ibv_resize_cq(cq, 1 << 30), EINVAL, "entries");
	NEGATIVE(ibv_poll_cq(cq, -1, &wc), EINVAL, "num_entries");
	NEGATIVE(ibv_poll_cq(cq, 1, NULL), EINVAL, "wc");
}

static void regions(void)
{
	struct ibv_alloc_dm_attr dm = { .length = 1 << 30 };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);

	CHECK(mr);
	NULLED(ibv_reg_mr(NULL, memory, 1, 0), EINVAL, "pd");
	NULLED(ibv_reg_mr(pd, NULL, 1, 0), EINVAL, "NULL");
	NULLED(ibv_reg_mr(pd, memory, 1, IBV_ACCESS_REMOTE_WRITE), EINVAL, "IBV_ACCESS_LOCAL_WRITE");
	NULLED(ibv_reg_mr(pd, memory, 1, 1 << 19), EOPNOTSUPP, "access");
	NULLED(ibv_reg_mr(pd, (void *)4096, 4096, 0), EFAULT, "mapped");
	NULLED(ibv_reg_dmabuf_mr(pd, 0, 1, 0, -1, 0), EOPNOTSUPP, "fd");
	NULLED(ibv_alloc_mw(pd, 3), EINVAL, "type");
	NULLED(ibv_alloc_dm(context, &dm), ENOMEM, "device memory");
	dm.length = 0;
	NULLED(ibv_alloc_dm(context, &dm), EINVAL, "0 bytes");
	reason(__LINE__, "ibv_rereg_mr", ibv_rereg_mr(mr, 8, pd, NULL, 0, 0) != 0, EINVAL, "flags");
	reason(__LINE__, "ibv_rereg_mr", ibv_rereg_mr(NULL, 1, pd, NULL, 0, 0) != 0, EINVAL, "mr");
	CODE(ibv_dealloc_pd(pd), EBUSY, "protection domain");
	CODE(ibv_dereg_mr(NULL), EINVAL, "mr");
	CHECK(!ibv_dereg_mr(mr));
}

static void queue_pairs(void)
{
	const int to_init = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_RC };
	struct ibv_sge sges[8] = { { 0 } };
	struct ibv_recv_wr receive = { .num_sge = -1 }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_qp_attr attr = { .qp_state = 99 };
	struct ibv_ah_attr ah = { .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	union ibv_gid gid = { .raw = { 1 } };

	CHECK(qp);
	NULLED(ibv_create_qp(pd, NULL), EINVAL, "init_attr");
	NULLED(ibv_create_qp(NULL, &init), EINVAL, "pd");
	init.cap.max_send_wr = 1 << 30;
	NULLED(ibv_create_qp(pd, &init), EINVAL, "max_send_wr");
	init = init_of(IBV_QPT_DRIVER);
	NULLED(ibv_create_qp(pd, &init), EOPNOTSUPP, "qp_type");
	init = init_of(IBV_QPT_RC);
	init.send_cq = NULL;
	NULLED(ibv_create_qp(pd, &init), EINVAL, "send_cq");
	NULLED(ibv_create_qp_ex(context, &ex), EINVAL, "comp_mask");
	NULLED(ibv_qp_to_qp_ex(qp), EINVAL, "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS");
	CODE(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL, "attr");
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL, "qp_state");
	CODE(ibv_modify_qp(qp, &attr, 1 << 30), EINVAL, "attr_mask");
	attr.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL, "RTS is reached from");
	attr.qp_state = IBV_QPS_INIT;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL, "IBV_QP_PORT");
	attr.port_num = 7;
	CODE(ibv_modify_qp(qp, &attr, to_init), EINVAL, "port_num");
	attr.qp_access_flags = 1 << 30;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS), EINVAL, "qp_access_flags");
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_AV), EINVAL, "is_global");
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_PATH_MTU), EINVAL, "path_mtu");
	CODE(ibv_post_recv(qp, &receive, &bad_receive), EINVAL, "num_sge");
	receive.num_sge = 0;
	CODE(ibv_post_recv(qp, &receive, &bad_receive), EINVAL, "RESET");
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL, "RESET");
	send.opcode = 77;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL, "opcode");
	send.opcode = IBV_WR_TSO;
	CODE(ibv_post_send(qp, &send, &bad_send), EOPNOTSUPP, "opcode");
	send.opcode = IBV_WR_SEND;
	send.send_flags = 1 << 30;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL, "send_flags");
	CODE(ibv_attach_mcast(qp, &gid, 0), EINVAL, "multicast");
	CODE(ibv_detach_mcast(qp, &gid, 0), EINVAL, "attached");
	NULLED(ibv_create_ah(pd, &ah), EINVAL, "is_global");
	ah.is_global = 1;
	ah.grh.sgid_index = 250;
	NULLED(ibv_create_ah(pd, &ah), EINVAL, "sgid_index");
	CODE(ibv_destroy_cq(cq), EBUSY, "completion queue");
	CODE(ibv_destroy_qp(NULL), EINVAL, "qp");

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, to_init));
	receive = (struct ibv_recv_wr){ .sg_list = sges, .num_sge = 8 };
	CODE(ibv_post_recv(qp, &receive, &bad_receive), EINVAL, "max_recv_sge");
	receive.num_sge = 0;
	CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
	CODE(ibv_post_recv(qp, &receive, &bad_receive), ENOMEM, "full");
	CHECK(!ibv_destroy_qp(qp));
}

static void other_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { 0, 1, 0 } };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD };
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .pd = pd, .cq = cq, .max_wr = 1 << 30,
		.max_sge = 1 };
	struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 30 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_srq *srq;
	struct ibv_cq *event_cq;
	void *event_context;
	uint32_t number;

	CHECK(channel);
	NULLED(ibv_create_srq(pd, &init), EINVAL, "max_wr");
	init.attr.max_wr = 4;
	CHECK((srq = ibv_create_srq(pd, &init)));
	CODE(ibv_modify_srq(srq, &init.attr, 1 << 10), EINVAL, "srq_attr_mask");
	init.attr.srq_limit = 5;
	CODE(ibv_modify_srq(srq, &init.attr, IBV_SRQ_LIMIT), EINVAL, "limit 5");
	CODE(ibv_get_srq_num(srq, &number), EINVAL, "srq_type");
	CODE(ibv_query_srq(srq, NULL), EINVAL, "attr");
	CHECK(!ibv_destroy_srq(srq));
	NULLED(ibv_open_xrcd(context, &xrcd), EINVAL, "comp_mask");
	xrcd.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	xrcd.fd = -2;
	NULLED(ibv_open_xrcd(context, &xrcd), EINVAL, "fd");
	NULLED(ibv_create_wq(context, &wq), EINVAL, "receive queue");
	wq.wq_type = 9;
	NULLED(ibv_create_wq(context, &wq), EINVAL, "wq_type");
	NULLED(ibv_create_rwq_ind_table(context, &table), EINVAL, "log_ind_tbl_size");
	MINUS(ibv_get_cq_event(NULL, &event_cq, &event_context), EINVAL, "channel");

	/* An empty channel is an answer: no refusal. */
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &event_cq, &event_context) == -1 && errno == EAGAIN && !last_refusal());
	CHECK(!ibv_destroy_comp_channel(channel));
}

static void identifiers(void)
{
	struct sockaddr_in away = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201) };
	struct sockaddr unknown = { .sa_family = AF_UNIX };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .responder_resources = 200 };
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct rdma_cm_id *id, *other;
	int mask, big = 7;

	CHECK(channel);
	MINUS(rdma_create_id(channel, &id, NULL, 1), EINVAL, "ps");
	MINUS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL, "id");
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(channel, &other, NULL, RDMA_PS_UDP));
	MINUS(rdma_bind_addr(id, NULL), EINVAL, "addr");
	MINUS(rdma_bind_addr(id, &unknown), EINVAL, "addr");
	MINUS(rdma_bind_addr(id, (struct sockaddr *)&away), EADDRNOTAVAIL, "192.0.2.1");
	MINUS(rdma_bind_addr(NULL, (struct sockaddr *)&away), EINVAL, "id");
	MINUS(rdma_resolve_addr(id, NULL, NULL, 100), EINVAL, "dst_addr");
	MINUS(rdma_resolve_route(id, 100), EINVAL, "RDMA_CM_EVENT_ADDR_RESOLVED");
	MINUS(rdma_connect(id, NULL), EINVAL, "conn_param");
	MINUS(rdma_connect(id, &param), EINVAL, "RDMA_CM_EVENT_ROUTE_RESOLVED");
	MINUS(rdma_accept(id, &param), EINVAL, "connection");
	MINUS(rdma_reject(id, NULL, 0), EINVAL, "connection");
	MINUS(rdma_disconnect(id), EINVAL, "connection");
	MINUS(rdma_establish(id), EINVAL, "connection");
	MINUS(rdma_notify(id, IBV_EVENT_DEVICE_FATAL), EINVAL, "event");
	MINUS(rdma_set_option(id, 9, 9, &big, sizeof(big)), ENOSYS, "option 9");
	MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &big, sizeof(big)), EINVAL, "optlen");
	MINUS(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &big, 1), EINVAL,
	      "RDMA_OPTION_ID_ACK_TIMEOUT");
	MINUS(rdma_create_qp(id, pd, &init), EINVAL, "device");
	MINUS(rdma_init_qp_attr(id, &attr, &mask), EINVAL, "attributes");
	MINUS(rdma_join_multicast(other, (struct sockaddr *)&away, NULL), EINVAL, "192.0.2.1");
	MINUS(rdma_leave_multicast(other, (struct sockaddr *)&away), EADDRNOTAVAIL, "192.0.2.1");
	MINUS(rdma_migrate_id(id, (struct rdma_event_channel *)&big), EINVAL, "channel");
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN && !last_refusal());
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(other));
	MINUS(rdma_destroy_id(id), EINVAL, "id");
	rdma_destroy_event_channel(channel);
}

static void sockets(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	socklen_t len = sizeof(any);
	int stream = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK(stream >= 0);
	MINUS(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP, "domain");
	MINUS(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP, "type");
	MINUS(rclose(12345), EBADF, "12345");
	MINUS(rbind(stream, (struct sockaddr *)&any, 1), EINVAL, "addr");
	MINUS(rshutdown(stream, 9), EINVAL, "how");
	MINUS(rsetsockopt(stream, SOL_SOCKET, 12345, &len, sizeof(len)), EOPNOTSUPP, "option 12345");
	MINUS(rgetpeername(stream, (struct sockaddr *)&any, &len), ENOTCONN, "connected");
	MINUS(rsend(stream, memory, 1, 0), ENOTCONN, "socket");
	CHECK(!rclose(stream));
}

int main(void)
{
	int number = 0;
	struct ibv_device **list = ibv_get_device_list(&number);

	last_refusal = (const char *(*)(void))dlsym(RTLD_DEFAULT, "roxie_last_refusal");
	if (number == 0) {
		printf("no device\n");
		return 77;
	}
	CHECK(last_refusal && !last_refusal());
	CHECK((context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 8, NULL, NULL, 0)));
	devices();
	regions();
	queue_pairs();
	other_queues();
	identifiers();
	sockets();
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
