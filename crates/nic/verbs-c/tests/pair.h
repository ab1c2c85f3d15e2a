/*
 * For C tests: a device, a buffer, and two RC queue pairs of this process that are connected with each other.
 * Include this file first.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static int gid_index;
static union ibv_gid gid;
static char buf[65536] __attribute__((aligned(4096)));
static struct ibv_mr *buf_mr;

/* `a` is the requester, `b` the responder; both complete on one CQ. */
struct pair {
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
};

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	CHECK(list);
	if (!list[0])
		exit(77);
	CHECK((ctx = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK(!ibv_query_port(ctx, 1, &port));
	/* An address of this host reaches this process without any network. */
	CHECK(port.gid_tbl_len > 0 && !ibv_query_gid(ctx, 1, gid_index, &gid));
	if (!(pd = ibv_alloc_pd(ctx))) {
		printf("no protection domain: errno %d\n", errno);
		exit(77);
	}
	CHECK((buf_mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
}

static void close_device(void)
{
	CHECK(!ibv_dereg_mr(buf_mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

#ifndef PAIR_ACCESS
#define PAIR_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#endif
#ifndef PAIR_OPS
#define PAIR_OPS (IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV)
#endif

static void ready_to_receive(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = PAIR_ACCESS };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } } };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 4 };
	ready_to_receive(qp, peer);
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void make_qps(struct pair *p)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC,
		.cap = { 16, 16, 2, 2, 64 }, .pd = pd, .send_ops_flags = PAIR_OPS,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	CHECK((p->a = ibv_create_qp_ex(ctx, &init)) && (p->b = ibv_create_qp_ex(ctx, &init)));
	connect_to(p->a, p->b->qp_num);
	connect_to(p->b, p->a->qp_num);
}

static void make(struct pair *p)
{
	CHECK((p->cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
	make_qps(p);
}

/* Replaces a pair in the error state. */
static void renew(struct pair *p)
{
	CHECK(!ibv_destroy_qp(p->a) && !ibv_destroy_qp(p->b));
	make_qps(p);
}

static void unmake(struct pair *p)
{
	CHECK(!ibv_destroy_qp(p->a) && !ibv_destroy_qp(p->b) && !ibv_destroy_cq(p->cq));
}

static void next(struct pair *p, struct ibv_wc *wc)
{
	time_t end = time(NULL) + 10;
	int n;
	while (!(n = ibv_poll_cq(p->cq, 1, wc)))
		CHECK(time(NULL) < end);
	CHECK(n == 1);
}

/* Posts one signaled request; returns its status. Creates a new pair after an error. */
static enum ibv_wc_status posted(struct pair *p, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(qp, wr, &bad));
	do
		next(p, &wc);
	while (wc.qp_num != qp->qp_num);
	if (wc.status)
		renew(p);
	return wc.status;
}
