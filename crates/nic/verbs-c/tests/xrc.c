/*
 * XRC: domains, shared receive queues with numbers, sending and receiving queue pairs, and the requests that
 * each refuses. Exits 77 without a device.
 */
#include "pair.h"
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

static struct ibv_xrcd *xrcd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *ini, *tgt;

/* `fd` -1: a domain without a file. */
static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd, .oflags = oflags };
	errno = 0;
	return ibv_open_xrcd(ctx, &init);
}

/* A shared receive queue of 16 receives, and its number. */
static struct ibv_srq *numbered(struct ibv_pd *of, struct ibv_xrcd *in, uint32_t *number)
{
	struct ibv_srq_init_attr_ex init = { .attr = { 16, 1, 0 }, .srq_type = IBV_SRQT_XRC, .pd = of,
		.xrcd = in, .cq = recv_cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &init);

	CHECK(srq && !ibv_get_srq_num(srq, number) && *number <= 0xffffff);
	return srq;
}

/* `send_ops`: for the work request builder; 0 without it. */
static void halves(uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex send = { .send_cq = send_cq, .qp_type = IBV_QPT_XRC_SEND, .cap =
		{ 16, 0, 1, 0, 64 },
		.pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | (send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = send_ops };
	struct ibv_qp_init_attr_ex recv = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD };

	CHECK((ini = ibv_create_qp_ex(ctx, &send)) && (tgt = ibv_create_qp_ex(ctx, &recv)));
	/* With the attributes of both halves of RC, as perftest gives them. */
	connect_to(ini, tgt->qp_num);
	connect_to(tgt, ini->qp_num);
}

static void destroy_halves(void)
{
	CHECK(!ibv_destroy_qp(ini) && !ibv_destroy_qp(tgt));
}

static void renew_halves(void)
{
	destroy_halves();
	halves(0);
}

static void poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	struct pair p = { .cq = cq };
	next(&p, wc);
}

static void receive(struct ibv_srq *srq, uint64_t wr_id, char *at)
{
	struct ibv_sge sge = { (uintptr_t)at, 64, buf_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

/* Sends the 8 bytes at `buf`; returns the status of the completion. */
static enum ibv_wc_status sent(enum ibv_wr_opcode opcode, uint32_t srqn, uint64_t va, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = opcode, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { va, rkey }, .qp_type.xrc.remote_srqn = srqn },
			*bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(ini, &wr, &bad));
	poll_one(send_cq, &wc);
	CHECK(wc.wr_id == 1 && wc.qp_num == ini->qp_num);
	return wc.status;
}

static void expect(enum ibv_event_type type, void *element)
{
	struct pollfd pfd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK(poll(&pfd, 1, 10000) == 1 && !ibv_get_async_event(ctx, &event));
	CHECK(event.event_type == type && event.element.qp == element);
	ibv_ack_async_event(&event);
}

static void domains(void)
{
	char name[] = "/tmp/roxie-xrc-XXXXXX";
	int fd = mkstemp(name), again = open(name, O_RDONLY);
	struct ibv_xrcd *a, *b;
	uint32_t number;

	CHECK(fd >= 0 && again >= 0 && !unlink(name));
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	CHECK((a = open_domain(fd, O_CREAT | O_EXCL)));
	CHECK(!open_domain(again, O_CREAT | O_EXCL) && errno == EINVAL);
	CHECK((b = open_domain(again, 0)));
	/* The domain was opened twice; a queue of it can be reached through either handle. */
	struct ibv_srq *srq = numbered(pd, b, &number);
	CHECK(ibv_close_xrcd(b) == EBUSY && xrcd != a);
	struct ibv_xrcd *keep = xrcd;
	xrcd = a;
	renew_halves();
	CHECK(ibv_close_xrcd(a) == EBUSY);
	receive(srq, 5, buf + 1024);
	struct ibv_wc wc;
	CHECK(!sent(IBV_WR_SEND, number, 0, 0));
	poll_one(recv_cq, &wc);
	CHECK(wc.wr_id == 5 && !wc.status);
	xrcd = keep;
	renew_halves();
	/* The queue cannot be reached through another domain. */
	CHECK(sent(IBV_WR_SEND, number, 0, 0) == IBV_WC_REM_INV_REQ_ERR);
	expect(IBV_EVENT_QP_REQ_ERR, tgt);
	renew_halves();
	CHECK(!ibv_destroy_srq(srq) && !ibv_close_xrcd(a) && !ibv_close_xrcd(b));
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	CHECK(!open_domain(99999, O_CREAT) && errno);
	close(fd);
	close(again);
}

static void messages(struct ibv_srq *first, uint32_t number, struct ibv_srq *second, uint32_t other)
{
	struct ibv_wc wc;

	memcpy(buf, "xrc-data", 8);
	receive(first, 10, buf + 1024);
	receive(second, 11, buf + 2048);
	CHECK(!sent(IBV_WR_SEND, other, 0, 0));
	poll_one(recv_cq, &wc);
	CHECK(!wc.status && wc.wr_id == 11 && wc.byte_len == 8 && wc.opcode == IBV_WC_RECV);
	CHECK(wc.qp_num == tgt->qp_num && wc.src_qp == ini->qp_num && !memcmp(buf + 2048, "xrc-data", 8));
	CHECK(!sent(IBV_WR_SEND, number, 0, 0));
	poll_one(recv_cq, &wc);
	CHECK(!wc.status && wc.wr_id == 10 && !memcmp(buf + 1024, "xrc-data", 8));

	CHECK(!sent(IBV_WR_RDMA_WRITE, number, (uintptr_t)buf + 4096, buf_mr->rkey));
	CHECK(!memcmp(buf + 4096, "xrc-data", 8));
	memcpy(buf + 4096, "readback", 8);
	CHECK(!sent(IBV_WR_RDMA_READ, number, (uintptr_t)buf + 4096, buf_mr->rkey));
	CHECK(!memcmp(buf, "readback", 8));
	receive(first, 12, buf + 1024);
	CHECK(!sent(IBV_WR_RDMA_WRITE_WITH_IMM, number, (uintptr_t)buf + 4096, buf_mr->rkey));
	poll_one(recv_cq, &wc);
	CHECK(!wc.status && wc.wr_id == 12 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);

	struct ibv_srq_attr limit = { .srq_limit = 1 };
	receive(first, 13, buf + 1024);
	CHECK(!ibv_modify_srq(first, &limit, IBV_SRQ_LIMIT));
	CHECK(!sent(IBV_WR_SEND, number, 0, 0));
	poll_one(recv_cq, &wc);
	expect(IBV_EVENT_SRQ_LIMIT_REACHED, first);
}

/* The same with the work request builder. */
static void built(struct ibv_srq *srq, uint32_t number)
{
	destroy_halves();
	halves(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(ini);
	struct ibv_wc wc;

	CHECK(qpx);
	receive(srq, 20, buf + 1024);
	ibv_wr_start(qpx);
	qpx->wr_id = 2;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qpx);
	ibv_wr_set_xrc_srqn(qpx, number);
	ibv_wr_set_sge(qpx, buf_mr->lkey, (uintptr_t)buf, 8);
	CHECK(!ibv_wr_complete(qpx));
	poll_one(send_cq, &wc);
	CHECK(!wc.status && wc.wr_id == 2);
	poll_one(recv_cq, &wc);
	CHECK(!wc.status && wc.wr_id == 20);
	/* A request without the number of a queue is refused. */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, buf_mr->lkey, (uintptr_t)buf, 8);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	renew_halves();
}

static void refused(uint32_t number)
{
	struct ibv_pd *stranger = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = ibv_reg_mr(stranger, buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_recv_wr recv = { .num_sge = 0 }, *bad_recv;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad;

	CHECK(stranger && mr);
	CHECK(sent(IBV_WR_SEND, number ^ 0x8000, 0, 0) == IBV_WC_REM_INV_REQ_ERR);
	expect(IBV_EVENT_QP_REQ_ERR, tgt);
	renew_halves();
	CHECK(sent(IBV_WR_RDMA_WRITE, number ^ 0x800000, (uintptr_t)buf,
		buf_mr->rkey) == IBV_WC_REM_INV_REQ_ERR);
	expect(IBV_EVENT_QP_REQ_ERR, tgt);
	renew_halves();
	/* The key must belong to the protection domain of the queue. */
	CHECK(sent(IBV_WR_RDMA_WRITE, number, (uintptr_t)buf, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	expect(IBV_EVENT_QP_ACCESS_ERR, tgt);
	renew_halves();
	CHECK(ibv_post_recv(ini, &recv, &bad_recv) == EINVAL && ibv_post_recv(tgt, &recv,
		&bad_recv) == EINVAL);
	CHECK(ibv_post_send(tgt, &send, &bad) == EINVAL);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(stranger));
}

static void opened_by_number(struct ibv_srq *srq, uint32_t number)
{
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
		IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT, .qp_num = tgt->qp_num, .xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV, .qp_context = buf };
	struct ibv_qp *second = ibv_open_qp(ctx, &attr);
	struct ibv_wc wc;

	CHECK(second && second != tgt && second->qp_num == tgt->qp_num && second->qp_context == buf);
	attr.qp_num ^= 1;
	CHECK(!ibv_open_qp(ctx, &attr) && errno == EINVAL);
	/* The queue pair lives until its last handle is destroyed. */
	CHECK(!ibv_destroy_qp(tgt));
	tgt = second;
	receive(srq, 30, buf + 1024);
	CHECK(!sent(IBV_WR_SEND, number, 0, 0));
	poll_one(recv_cq, &wc);
	CHECK(!wc.status && wc.wr_id == 30 && wc.qp_num == second->qp_num);
}

int main(void)
{
	uint32_t number, other, none;
	struct ibv_device_attr attr;

	open_device();
	CHECK(!ibv_query_device(ctx, &attr) && attr.device_cap_flags & IBV_DEVICE_XRC);
	CHECK((send_cq = ibv_create_cq(ctx, 32, NULL, NULL, 0)) &&
		(recv_cq = ibv_create_cq(ctx, 32, NULL, NULL, 0)));
	CHECK((xrcd = open_domain(-1, O_CREAT)));
	struct ibv_srq *first = numbered(pd, xrcd, &number), *second = numbered(pd, xrcd, &other);
	struct ibv_srq_init_attr si = { .attr = { 1, 1, 0 } };
	struct ibv_srq *plain = ibv_create_srq(pd, &si);
	CHECK(number != other && plain && ibv_get_srq_num(plain, &none) == EINVAL && !ibv_destroy_srq(plain));
	halves(0);
	messages(first, number, second, other);
	built(first, number);
	refused(number);
	opened_by_number(first, number);
	domains();
	destroy_halves();
	CHECK(ibv_destroy_cq(recv_cq) == EBUSY && ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(!ibv_destroy_srq(first) && !ibv_destroy_srq(second) && !ibv_close_xrcd(xrcd));
	CHECK(!ibv_destroy_cq(recv_cq) && !ibv_destroy_cq(send_cq));
	close_device();
	printf("ok\n");
	return 0;
}
