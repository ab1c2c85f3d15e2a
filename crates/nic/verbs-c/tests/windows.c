/*
 * Binds of memory windows on every service and in every state of a queue pair. A bind that is refused or
 * flushed leaves the key in ibv_mw, and the window, as they were. Exits 77 without a device.
 */
#include "pair.h"

static char area[4096] __attribute__((aligned(4096)));
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_xrcd *xrcd;

static struct ibv_qp *create(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { 4, 4, 1, 1, 0 }, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
	CHECK(qp);
	return qp;
}

/* Enters the state that follows the present one. */
static void advance(struct ibv_qp *qp)
{
	int connected = qp->qp_type != IBV_QPT_UD, retries = connected && qp->qp_type != IBV_QPT_UC;
	struct ibv_qp_attr a = { .qp_state = qp->state + 1, .port_num = 1, .qkey = 1, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 14,
		.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } } };
	int mask = IBV_QP_STATE;

	switch (qp->state) {
	case IBV_QPS_RESET:
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
		break;
	case IBV_QPS_INIT:
		mask |= connected ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN : 0;
		mask |= qp->qp_type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
		break;
	default:
		mask |= IBV_QP_SQ_PSN;
		mask |= retries ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC : 0;
	}
	CHECK(!ibv_modify_qp(qp, &a, mask));
}

static void enter(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = { .qp_state = state };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

static enum ibv_wc_status completed(void)
{
	time_t end = time(NULL) + 10;
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		CHECK(time(NULL) < end);
	CHECK(n == 1 && wc.wr_id == 7);
	return wc.status;
}

/* Posts the bind of a window of either type; returns the errno of the post. */
static int bind(struct ibv_qp *qp, struct ibv_mw *mw)
{
	struct ibv_mw_bind_info info = { mr, (uintptr_t)area, 64, IBV_ACCESS_LOCAL_WRITE |
		IBV_ACCESS_REMOTE_WRITE };
	struct ibv_mw_bind first = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr second = { .wr_id = 7, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { mw, ibv_inc_rkey(mw->rkey), info } }, *bad;
	return mw->type == IBV_MW_TYPE_1 ? ibv_bind_mw(qp, mw, &first) : ibv_post_send(qp, &second, &bad);
}

static void refused(struct ibv_qp *qp, struct ibv_mw *mw)
{
	uint32_t before = mw->rkey;
	struct ibv_wc wc;

	CHECK(bind(qp, mw) == EINVAL && mw->rkey == before);
	CHECK(!ibv_poll_cq(cq, 1, &wc));
}

static void states(enum ibv_qp_type service, enum ibv_mw_type type)
{
	struct ibv_qp *qp = create(service);
	struct ibv_mw *mw = ibv_alloc_mw(pd, type);

	CHECK(mw);
	for (; qp->state < IBV_QPS_RTS; advance(qp))
		refused(qp, mw);
	uint32_t before = mw->rkey;
	CHECK(!bind(qp, mw) && completed() == IBV_WC_SUCCESS);
	CHECK(mw->rkey == (type == IBV_MW_TYPE_1 ? ibv_inc_rkey(before) : before));
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	/* A type 2 window is bound once. */
	if (type == IBV_MW_TYPE_2) {
		CHECK(!bind(qp, mw) && completed() == IBV_WC_MW_BIND_ERR);
	} else {
		CHECK(!bind(qp, mw) && completed() == IBV_WC_SUCCESS);
		enter(qp, IBV_QPS_ERR);
	}
	CHECK(ibv_dealloc_mw(mw) == 0 && (mw = ibv_alloc_mw(pd, type)));
	/* Binds in the error states are flushed. */
	CHECK(!bind(qp, mw) && completed() == IBV_WC_WR_FLUSH_ERR);
	enter(qp, IBV_QPS_RESET);
	refused(qp, mw);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_destroy_qp(qp));
	/* No window is bound any more. */
	CHECK(!ibv_dereg_mr(mr));
	CHECK((mr = ibv_reg_mr(pd, area, sizeof(area), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)));
}

/* Binds in SQD wait until the queue pair is back in RTS. */
static void drained(enum ibv_mw_type type)
{
	struct ibv_qp *qp = create(IBV_QPT_RC);
	struct ibv_mw *mw = ibv_alloc_mw(pd, type);
	struct ibv_wc wc;

	while (qp->state < IBV_QPS_RTS)
		advance(qp);
	enter(qp, IBV_QPS_SQD);
	CHECK(mw && !bind(qp, mw) && !ibv_poll_cq(cq, 1, &wc));
	enter(qp, IBV_QPS_RTS);
	CHECK(completed() == IBV_WC_SUCCESS);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_destroy_qp(qp));
}

/* Datagrams and the receiving end of XRC bind nothing. */
static void impossible(void)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp *ud = create(IBV_QPT_UD), *target = ibv_create_qp_ex(ctx, &init);
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	CHECK(target && first && second);
	while (ud->state < IBV_QPS_RTS)
		advance(ud);
	refused(ud, first);
	refused(ud, second);
	refused(target, first);
	refused(target, second);
	CHECK(!ibv_dealloc_mw(first) && !ibv_dealloc_mw(second));
	CHECK(!ibv_destroy_qp(ud) && !ibv_destroy_qp(target));
}

int main(void)
{
	static const enum ibv_qp_type services[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND };
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = 0100 };

	open_device();
	CHECK((cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)) && (xrcd = ibv_open_xrcd(ctx, &init)));
	CHECK((mr = ibv_reg_mr(pd, area, sizeof(area), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)));
	for (int i = 0; i < 3; i++) {
		states(services[i], IBV_MW_TYPE_1);
		states(services[i], IBV_MW_TYPE_2);
	}
	drained(IBV_MW_TYPE_1);
	drained(IBV_MW_TYPE_2);
	impossible();
	CHECK(!ibv_dereg_mr(mr) && !ibv_close_xrcd(xrcd) && !ibv_destroy_cq(cq));
	close_device();
	return 0;
}
