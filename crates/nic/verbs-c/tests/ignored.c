/*
 * Attributes that the manual pages call ignored, irrelevant or valid for others only: calls with strange
 * values there do what they do without. A row for each. Exits 77 without a device.
 */
#include "pair.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#define STRANGE 0x7ffffff1

static int wrong;

static void row(const char *attribute, const char *page, int holds)
{
	if (!holds)
		printf("%s: %s (errno %d)\n", attribute, page, errno);
	wrong += !holds;
}

/* A queue pair is created; it is destroyed again. */
static int works(struct ibv_qp *qp)
{
	return qp && !ibv_destroy_qp(qp);
}

static void creation(struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex sx = { .attr = { 8, 1, STRANGE }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE |
		IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_BASIC, .pd = pd, .xrcd = (void *)STRANGE,
		.cq = (void *)STRANGE, .tm_cap = { STRANGE, STRANGE } };
	struct ibv_srq_init_attr sa = { .attr = { 8, 1, STRANGE } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa), *extended = ibv_create_srq_ex(ctx, &sx);
	struct ibv_srq_attr limit = { 0 }, resize = { .max_wr = STRANGE, .max_sge = STRANGE, .srq_limit = 1 };
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap =
		{ 4, STRANGE, 1, 1, 0 } };
	struct ibv_qp_init_attr_ex more = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { 4, 4, 1, 1, 0 }, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD |
		IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.xrcd = (void *)STRANGE, .create_flags = STRANGE, .max_tso_header = 77,
		.rwq_ind_tbl = (void *)STRANGE, .source_qpn = STRANGE };
	struct ibv_xrcd_init_attr xa = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = 0100 };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &xa);
	struct ibv_cq_init_attr_ex ca = { .cqe = 8, .flags = STRANGE, .parent_domain = (void *)STRANGE };
	struct ibv_cq_ex *cqx = ibv_create_cq_ex(ctx, &ca);

	row("ibv_srq_init_attr.srq_limit", "ibv_create_srq(3)", srq && !ibv_query_srq(srq, &limit) &&
		!limit.srq_limit);
	row("ibv_srq_init_attr_ex.{xrcd,cq,tm_cap}", "ibv_create_srq_ex(3), of another type", extended != NULL);
	row("ibv_srq_attr.{max_wr,max_sge}", "ibv_modify_srq(3)", !ibv_modify_srq(srq, &resize, IBV_SRQ_LIMIT));
	CHECK(!ibv_destroy_srq(extended));
	row("ibv_qp_init_attr.cap.max_recv_wr", "ibv_create_qp(3) without an SRQ is refused",
		!works(ibv_create_qp(pd, &init)));
	init.srq = srq;
	row("ibv_qp_init_attr.cap.max_recv_wr", "ibv_create_qp(3) with an SRQ", works(ibv_create_qp(pd, &init)));
	init.cap.max_recv_sge = STRANGE;
	row("ibv_qp_init_attr.cap.max_recv_sge", "ibv_create_qp(3) with an SRQ", works(ibv_create_qp(pd, &init)));
	row("ibv_qp_init_attr_ex", "ibv_create_qp_ex(3), what comp_mask does not name",
		works(ibv_create_qp_ex(ctx, &more)));
	more.srq = srq;
	more.cap.max_recv_wr = more.cap.max_recv_sge = STRANGE;
	row("ibv_qp_init_attr_ex.cap", "ibv_create_qp_ex(3) with an SRQ", works(ibv_create_qp_ex(ctx, &more)));
	more.qp_type = IBV_QPT_XRC_SEND;
	more.recv_cq = (void *)STRANGE;
	more.srq = (void *)STRANGE;
	row("ibv_qp_init_attr_ex.{recv_cq,srq,cap}", "XRC_SEND receives nothing",
		works(ibv_create_qp_ex(ctx, &more)));
	more = (struct ibv_qp_init_attr_ex){ .send_cq = (void *)STRANGE, .recv_cq = (void *)STRANGE,
		.srq = (void *)STRANGE, .cap = { STRANGE, STRANGE, STRANGE, STRANGE, STRANGE }, .xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .pd = (void *)STRANGE };
	row("ibv_qp_init_attr_ex.{cap,send_cq,recv_cq,srq}", "XRC_RECV has no queues",
		works(ibv_create_qp_ex(ctx, &more)));
	row("ibv_cq_init_attr_ex.{flags,parent_domain}", "ibv_create_cq_ex(3), what comp_mask does not name",
		cqx && !ibv_destroy_cq(ibv_cq_ex_to_cq(cqx)));
	CHECK(!ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
}

/* Attributes of the states that the mask does not name, and those of InfiniBand addresses. */
static void states(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap =
		{ 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr a;

	memset(&a, 0xff, sizeof(a));
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	a.pkey_index = a.qp_access_flags = 0;
	row("ibv_qp_attr", "ibv_modify_qp(3) to INIT, what the mask does not name", !ibv_modify_qp(qp, &a,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&a, 0xff, sizeof(a));
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = qp->qp_num;
	a.rq_psn = 0;
	a.max_dest_rd_atomic = 4;
	a.min_rnr_timer = 1;
	a.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .dlid = 0xffff, .src_path_bits = 0x7f,
		.grh = { gid, 0, gid_index, 64, 0 } };
	row("ibv_ah_attr.{dlid,src_path_bits}", "ibv_modify_qp(3): RoCE has no LIDs", !ibv_modify_qp(qp, &a,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&a, 0xff, sizeof(a));
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = a.timeout = 0;
	a.retry_cnt = a.rnr_retry = 7;
	a.max_rd_atomic = 4;
	row("ibv_qp_attr", "ibv_modify_qp(3) to RTS, what the mask does not name", !ibv_modify_qp(qp, &a,
		IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_destroy_qp(qp));
}

static void requests(struct pair *p)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = (void *)STRANGE }, *bad_receive;
	struct ibv_send_wr *bad;
	struct ibv_send_wr write = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags =
		IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_FENCE, .imm_data = STRANGE,
		.wr.rdma = { (uintptr_t)buf + 64, buf_mr->rkey }, .qp_type.xrc.remote_srqn = STRANGE };
	struct ibv_send_wr send = { .sg_list = (void *)STRANGE, .opcode = IBV_WR_SEND, .send_flags =
		IBV_SEND_SIGNALED, .imm_data = STRANGE, .wr.ud = { (void *)STRANGE, STRANGE, STRANGE } };
	struct ibv_ah_attr aa = { .is_global = 1, .port_num = 1, .dlid = 0xffff, .src_path_bits = 0x7f,
		.grh = { gid, 0, gid_index, 64, 0 } };
	struct ibv_ah *ah;
	struct ibv_wc wc;

	row("ibv_send_wr.{imm_data,qp_type.xrc}, IBV_SEND_SOLICITED", "ibv_post_send(3), a WRITE",
		!posted(p, p->a, &write));
	row("ibv_recv_wr.sg_list", "ibv_post_recv(3) without SGEs", !ibv_post_recv(p->b, &receive, &bad_receive));
	CHECK(!ibv_post_send(p->a, &send, &bad));
	for (int i = 0; i < 2; i++) {
		next(p, &wc);
		row("ibv_send_wr.{sg_list,imm_data,wr.ud}", "a SEND without SGEs on RC", !wc.status &&
			!wc.byte_len);
	}
	row("ibv_ah_attr.{dlid,src_path_bits}", "ibv_create_ah(3): RoCE has no LIDs",
		(ah = ibv_create_ah(pd, &aa)) && !ibv_destroy_ah(ah));
	struct ibv_mr *mr = ibv_reg_mr_iova2(pd, buf, 64, (uintptr_t)buf, 0x3ff00000);
	row("IBV_ACCESS_OPTIONAL_RANGE", "ibv_reg_mr(3)", mr && !ibv_dereg_mr(mr));
}

static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != type)
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type);
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/* rdma_connect(3), rdma_accept(3): what does not count with a queue pair, or for datagrams. */
static void parameters(enum rdma_port_space ps)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = ps == RDMA_PS_UDP ? IBV_QPT_UD :
		IBV_QPT_RC }, second = init;
	struct rdma_conn_param param = { .qp_num = STRANGE, .srq = 1, .retry_count = 200,
		.rnr_retry_count = 200 };
	struct rdma_cm_id *listener, *client, *server;

	if (ps == RDMA_PS_UDP)
		param.responder_resources = param.initiator_depth = 200;
	CHECK(!rdma_create_id(ours, &listener, NULL, ps) && !rdma_bind_addr(listener, (void *)&in));
	CHECK(!rdma_listen(listener, 1) && !rdma_create_id(theirs, &client, NULL, ps));
	in.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_resolve_addr(client, NULL, (void *)&in, 1000));
	expect(theirs, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(client, 1000));
	expect(theirs, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_create_qp(client, NULL, &init));
	row("rdma_conn_param", "rdma_connect(3), with a queue pair", !rdma_connect(client, &param));
	server = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!rdma_create_qp(server, NULL, &second));
	row("rdma_conn_param", "rdma_accept(3), with a queue pair", !rdma_accept(server, &param));
	row("rdma_conn_param", "both ends are established", expect(theirs, RDMA_CM_EVENT_ESTABLISHED) == client);
	if (ps == RDMA_PS_TCP)
		expect(ours, RDMA_CM_EVENT_ESTABLISHED);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(theirs);
	rdma_destroy_event_channel(ours);
}

int main(void)
{
	struct pair p;

	open_device();
	make(&p);
	creation(p.cq);
	states(p.cq);
	requests(&p);
	parameters(RDMA_PS_TCP);
	parameters(RDMA_PS_UDP);
	unmake(&p);
	close_device();
	return wrong != 0;
}
