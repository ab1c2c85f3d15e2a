/*
 * Calls libibverbs as a program does, with rdma-core's headers: how functions report errors, and one transfer
 * of every kind between queue pairs of this process. Prints the first false condition and exits 1; exits 77
 * without a device.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"

/* The call returns NULL (or -1) and sets errno. */
#define FAILS(e, call) CHECK((errno = 0, !(call)) && errno == (e))
#define MINUS(e, call) CHECK((errno = 0, (call) == -1) && errno == (e))

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static int gid_index;
static union ibv_gid gid;
static char buf[65536] __attribute__((aligned(4096)));
static struct ibv_mr *mr;

static void poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	time_t end = time(NULL) + 10;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, wc)))
		CHECK(time(NULL) < end);
	CHECK(n == 1);
	if (wc->status)
		printf("wc %s\n", ibv_wc_status_str(wc->status));
	CHECK(wc->status == IBV_WC_SUCCESS);
}

static void modify(struct ibv_qp *qp, struct ibv_qp *peer)
{
	int rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						    IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				     (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	CHECK(qp->state == IBV_QPS_INIT);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num =
		peer->qp_num,
				  .max_dest_rd_atomic = 4, .min_rnr_timer = 1 };
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.dgid = gid;
	a.ah_attr.grh.sgid_index = gid_index;
	a.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(qp, &a, ud ? IBV_QP_STATE : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
		IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER : 0)));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				  .max_rd_atomic = 4 };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
	CHECK(qp->state == IBV_QPS_RTS);
}

static void post_recv(struct ibv_qp *qp, uint64_t id, size_t at, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)buf + at, len, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void queries(void)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, table[256];
	__be16 pkey;
	int i;

	CHECK(!ibv_query_device(ctx, &attr));
	CHECK(attr.max_qp > 0 && attr.page_size_cap & 4096 && attr.phys_port_cnt == 1 && attr.node_guid);
	CHECK(ibv_query_device(NULL, &attr) == EINVAL && ibv_query_device(ctx, NULL) == EINVAL);
	memset(&ex, 0xff, sizeof(ex));
	CHECK(!ibv_query_device_ex(ctx, NULL, &ex));
	CHECK(ex.orig_attr.max_qp == attr.max_qp && ex.phys_port_cnt_ex == 1 &&
		ex.odp_caps.general_caps & IBV_ODP_SUPPORT);
	memset(&port, 0xff, sizeof(port));
	CHECK(!ibv_query_port(ctx, 1, &port));
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len > 0);
	CHECK(ibv_query_port(ctx, 0, &port) == EINVAL && ibv_query_port(ctx, 2, &port) == EINVAL);
	for (i = 0; i < port.gid_tbl_len; i++)
		CHECK(!ibv_query_gid(ctx, 1, i, &gid));
	MINUS(EINVAL, ibv_query_gid(ctx, 1, i, &gid));
	MINUS(EINVAL, ibv_query_gid(ctx, 1, -1, &gid));
	CHECK(!ibv_query_gid_ex(ctx, 1, 0, &entry, 0) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(ibv_query_gid_ex(ctx, 1, i, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_table(ctx, table, 256, 0) > 0 && ibv_query_gid_table(ctx, table, 0,
		0) == -EINVAL);
	CHECK(!ibv_query_pkey(ctx, 1, 0, &pkey) && pkey == 0xffff);
	MINUS(EINVAL, ibv_query_pkey(ctx, 1, 1, &pkey));
	CHECK(ibv_get_pkey_index(ctx, 1, 0xffff) == 0);
	MINUS(EINVAL, ibv_get_pkey_index(ctx, 1, 0x1234));
	CHECK(fcntl(ctx->async_fd, F_GETFL) >= 0 && fcntl(ctx->cmd_fd, F_GETFL) >= 0);
	/* An address of this host reaches this process without any network. */
	CHECK(!ibv_query_gid(ctx, 1, gid_index, &gid));
}

static void regions(void)
{
	char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *m;

	FAILS(EINVAL, ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_REMOTE_WRITE));
	FAILS(EOPNOTSUPP, ibv_reg_mr(pd, buf, sizeof(buf), 1 << 15));
	FAILS(EINVAL, ibv_reg_mr(NULL, buf, sizeof(buf), 0));
	FAILS(EINVAL, ibv_reg_mr(pd, NULL, 4096, 0));
	munmap(hole + 4096, 4096);
	FAILS(EFAULT, ibv_reg_mr(pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE));
	mprotect(hole, 4096, PROT_READ);
	FAILS(EFAULT, ibv_reg_mr(pd, hole, 4096, IBV_ACCESS_LOCAL_WRITE));
	CHECK((m = ibv_reg_mr(pd, hole, 4096, 0)) && m->length == 4096 && m->addr == hole && m->pd == pd);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dereg_mr(m) && ibv_dereg_mr(NULL) == EINVAL);
	FAILS(EINVAL, ibv_alloc_mw(pd, 3));
	int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	CHECK((m = ibv_reg_mr(pd, hole + 0, 0, flags)) && !ibv_dereg_mr(m));
	mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr && mr->lkey);
}

static void limits(struct ibv_cq *cq)
{
	struct ibv_device_attr attr;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { 8, 8, 2, 2, 64 } };
	struct ibv_qp_init_attr bad = init, got;
	struct ibv_qp_attr qa;
	struct ibv_qp *qp;
	struct ibv_send_wr swr = { .opcode = IBV_WR_SEND }, *sbad = NULL;
	struct ibv_recv_wr rwr = { 0 }, *rbad = NULL;

	CHECK(!ibv_query_device(ctx, &attr));
	FAILS(EINVAL, ibv_create_cq(ctx, 0, NULL, NULL, 0));
	FAILS(EINVAL, ibv_create_cq(ctx, -1, NULL, NULL, 0));
	FAILS(EINVAL, ibv_create_cq(ctx, attr.max_cqe + 1, NULL, NULL, 0));
	FAILS(EINVAL, ibv_create_cq(ctx, 1, NULL, NULL, ctx->num_comp_vectors));
	bad.cap.max_send_wr = attr.max_qp_wr + 1;
	FAILS(EINVAL, ibv_create_qp(pd, &bad));
	bad = init;
	bad.cap.max_recv_sge = attr.max_sge + 1;
	FAILS(EINVAL, ibv_create_qp(pd, &bad));
	bad = init;
	bad.send_cq = NULL;
	FAILS(EINVAL, ibv_create_qp(pd, &bad));
	bad = init;
	bad.qp_type = IBV_QPT_DRIVER;
	FAILS(EOPNOTSUPP, ibv_create_qp(pd, &bad));

	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 64 && qp->state == IBV_QPS_RESET);
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK(!ibv_query_qp(qp, &qa, IBV_QP_CAP, &got));
	CHECK(qa.cap.max_send_sge >= 2 && got.cap.max_recv_wr >= 8 && got.send_cq == cq &&
		got.qp_type == IBV_QPT_RC);
	CHECK(ibv_post_send(qp, &swr, &sbad) == EINVAL && sbad == &swr);
	CHECK(ibv_post_recv(qp, &rwr, &rbad) == EINVAL && rbad == &rwr);
	qa.qp_state = 17;
	CHECK(ibv_modify_qp(qp, &qa, IBV_QP_STATE) == EINVAL);
	qa.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &qa, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_destroy_cq(cq) == EBUSY && ibv_destroy_qp(NULL) == EINVAL);
	CHECK(!ibv_destroy_qp(qp));
}

static void events(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq, *got;
	void *cookie;
	struct ibv_wc wc;
	struct pollfd pfd;
	int i;

	CHECK(ch && (cq = ibv_create_cq(ctx, 16, &pfd, ch, 0)) && ch->refcnt == 1);
	CHECK(ibv_destroy_comp_channel(ch) == EBUSY);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { 8, 8, 1, 1, 64 } };
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	CHECK(a && b && a->qp_num != b->qp_num);
	modify(a, b);
	modify(b, a);
	fcntl(ch->fd, F_SETFL, O_NONBLOCK);
	MINUS(EAGAIN, ibv_get_cq_event(ch, &got, &cookie));
	fcntl(ch->fd, F_SETFL, 0);
	for (i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)buf, 5, mr->lkey };
		struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode =
			IBV_WR_SEND_WITH_IMM,
			.imm_data = htobe32(0x01020304) }, *bad;
		memcpy(buf, "hello", 5);
		memset(buf + 4096, 0, 64);
		CHECK(!ibv_req_notify_cq(cq, 0));
		post_recv(b, 9, 4096, 64);
		CHECK(!ibv_post_send(a, &wr, &bad));
		pfd = (struct pollfd){ .fd = ch->fd, .events = POLLIN };
		CHECK(poll(&pfd, 1, 10000) == 1);
		CHECK(!ibv_get_cq_event(ch, &got, &cookie) && got == cq && cookie == &pfd);
		ibv_ack_cq_events(cq, 1);
		int seen = 0;
		for (int k = 0; k < 2; k++) {
			poll_one(cq, &wc);
			if (wc.opcode == IBV_WC_RECV) {
				CHECK(wc.wr_id == 9 && wc.byte_len == 5 && wc.wc_flags & IBV_WC_WITH_IMM);
				CHECK(be32toh(wc.imm_data) == 0x01020304 && wc.qp_num == b->qp_num);
				seen++;
			}
		}
		CHECK(seen == 1 && !memcmp(buf + 4096, "hello", 5));
	}
	CHECK(!ibv_resize_cq(cq, 64) && cq->cqe >= 64);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq));
	CHECK(ch->refcnt == 0 && !ibv_destroy_comp_channel(ch));
}

static void shared_receives(struct ibv_cq *cq)
{
	struct ibv_srq_init_attr si = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &si);
	struct ibv_srq_attr sa;
	struct ibv_async_event event;
	struct ibv_wc wc;

	CHECK(srq && si.attr.max_wr >= 8 && !ibv_query_srq(srq, &sa) && sa.max_wr == si.attr.max_wr);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { 8, 0, 1, 1, 0 } };
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	CHECK(a && b && a->srq == srq && ibv_destroy_srq(srq) == EBUSY);
	modify(a, b);
	modify(b, a);
	for (int i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)buf + 4096, 64, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	}
	sa.srq_limit = 3;
	CHECK(!ibv_modify_srq(srq, &sa, IBV_SRQ_LIMIT) && ibv_modify_srq(srq, &sa, 8) == EINVAL);
	struct ibv_srq_attr room = { .max_wr = 2 };
	CHECK(ibv_modify_srq(srq, &room, IBV_SRQ_MAX_WR) == EINVAL);
	room.max_wr = 100;
	CHECK(!ibv_modify_srq(srq, &room, IBV_SRQ_MAX_WR) && !ibv_query_srq(srq, &room));
	CHECK(room.max_wr == 100 && room.srq_limit == 3);
	struct ibv_sge sge = { (uintptr_t)buf, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags =
		IBV_SEND_SIGNALED },
		*bad;
	CHECK(!ibv_post_send(a, &wr, &bad));
	poll_one(cq, &wc);
	poll_one(cq, &wc);
	CHECK(!ibv_get_async_event(ctx, &event));
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_srq(srq));
}

static void datagrams(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap =
		{ 8, 8, 1, 1, 0 } };
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	struct ibv_ah_attr aa = { .is_global = 1, .port_num = 1 }, back;
	struct ibv_ah *ah, *reply;
	struct ibv_wc wc, rwc = { 0 };

	CHECK(a && b);
	modify(a, b);
	modify(b, a);
	FAILS(EINVAL, ibv_create_ah(pd, &(struct ibv_ah_attr){ .port_num = 1 }));
	aa.grh.dgid = gid;
	aa.grh.sgid_index = 250;
	FAILS(EINVAL, ibv_create_ah(pd, &aa));
	aa.grh.sgid_index = gid_index;
	aa.grh.hop_limit = 64;
	CHECK((ah = ibv_create_ah(pd, &aa)));
	post_recv(b, 3, 4096, 100);
	struct ibv_sge sge = { (uintptr_t)buf, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags =
		IBV_SEND_SIGNALED },
		*bad;
	CHECK(ibv_post_send(a, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = 0x1234;
	memcpy(buf, "datagram", 8);
	CHECK(!ibv_post_send(a, &wr, &bad));
	for (int i = 0; i < 2; i++) {
		poll_one(cq, &wc);
		if (wc.opcode == IBV_WC_RECV)
			rwc = wc;
	}
	CHECK(rwc.wr_id == 3 && rwc.byte_len == 48 && rwc.wc_flags & IBV_WC_GRH && rwc.src_qp == a->qp_num);
	CHECK(!memcmp(buf + 4096 + 40, "datagram", 8));
	CHECK(!ibv_init_ah_from_wc(ctx, 1, &rwc, (struct ibv_grh *)(buf + 4096), &back));
	CHECK(back.is_global && back.grh.sgid_index == gid_index && !memcmp(&back.grh.dgid, &gid, 16));
	CHECK((reply = ibv_create_ah_from_wc(pd, &rwc, (struct ibv_grh *)(buf + 4096), 1)));
	CHECK(!ibv_destroy_ah(reply) && !ibv_destroy_ah(ah) && !ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

int main(void)
{
	int n = -1;
	struct ibv_device **list = ibv_get_device_list(&n), **again;
	char board[64];

	CHECK(list);
	if (n == 0)
		return 77;
	CHECK(!list[1] && (again = ibv_get_device_list(NULL)) && again[0] == list[0]);
	ibv_free_device_list(again);
	CHECK(list[0]->node_type == IBV_NODE_CA && !strcmp(ibv_get_device_name(list[0]), list[0]->name));
	CHECK(ibv_get_device_index(list[0]) == -1);
	CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "board_id", board, sizeof(board)) > 0);
	CHECK(ibv_read_sysfs_file("/nowhere", "at_all", board, sizeof(board)) == -1);
	FAILS(EINVAL, ibv_open_device(NULL));
	CHECK((ctx = ibv_open_device(list[0])) && ctx->device == list[0]);
	ibv_free_device_list(list);
	queries();
	if (!(pd = ibv_alloc_pd(ctx))) {
		printf("no protection domain: errno %d\n", errno);
		return 77;
	}
	regions();
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	CHECK(cq && cq->cqe >= 64);
	limits(cq);
	events();
	shared_receives(cq);
	datagrams(cq);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	printf("ok\n");
	return 0;
}
