/*
 * Asynchronous events, moderation of completion events, thread and parent domains, draining of a send queue.
 * Exits 77 without a device.
 */
#include "pair.h"
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

/* Checks that the next event has this type and names this queue pair. */
static void expect(enum ibv_event_type type, struct ibv_qp *qp)
{
	struct pollfd pfd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK(poll(&pfd, 1, 10000) == 1 && !ibv_get_async_event(ctx, &event));
	if (event.event_type != type)
		printf("%s instead of %s\n", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	CHECK(event.event_type == type && event.element.qp == qp);
	ibv_ack_async_event(&event);
}

static void nothing_else(void)
{
	struct pollfd pfd = { .fd = ctx->async_fd, .events = POLLIN };
	CHECK(poll(&pfd, 1, 0) == 0);
}

static struct ibv_send_wr write_of(struct ibv_sge *sge, uint64_t va, uint32_t rkey)
{
	return (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { va, rkey } };
}

/* A responder that refuses a request without a receive reports an event. */
static void refused_requests(struct pair *p)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge, (uintptr_t)buf, buf_mr->rkey + 1), *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(p->a, &wr, &bad));
	next(p, &wc);
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
	expect(IBV_EVENT_QP_ACCESS_ERR, p->b);
	renew(p);

	struct ibv_send_wr atomic = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = (uintptr_t)buf + 4, .rkey = buf_mr->rkey } };
	CHECK(!ibv_post_send(p->a, &atomic, &bad));
	next(p, &wc);
	CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR);
	expect(IBV_EVENT_QP_REQ_ERR, p->b);
	renew(p);
	nothing_else();
}

/* A packet that arrives before the queue pair is in RTS establishes the connection. */
static void established(struct pair *p)
{
	struct ibv_qp_init_attr init = { .send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC,
		.cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge, (uintptr_t)buf + 64, buf_mr->rkey), *bad;
	struct ibv_wc wc;

	CHECK(a && b);
	ready_to_receive(b, a->qp_num);
	connect_to(a, b->qp_num);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_post_send(a, &wr, &bad));
		next(p, &wc);
		CHECK(!wc.status);
	}
	expect(IBV_EVENT_COMM_EST, b);
	nothing_else();
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

static void drained(struct pair *p)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge, (uintptr_t)buf + 16384, buf_mr->rkey), *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;

	for (int i = 0; i < 4; i++)
		CHECK(!ibv_post_send(p->a, &wr, &bad));
	CHECK(!ibv_modify_qp(p->a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	expect(IBV_EVENT_SQ_DRAINED, p->a);
	CHECK(!ibv_query_qp(p->a, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_SQD);
	CHECK(!attr.sq_draining);
	/* A request posted now waits until the queue pair returns to RTS. */
	wr.wr_id = 9;
	CHECK(!ibv_post_send(p->a, &wr, &bad));
	int before = 0;
	while (ibv_poll_cq(p->cq, 1, &wc))
		CHECK(!wc.status && wc.wr_id != 9 && ++before <= 4);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(p->a, &attr, IBV_QP_STATE));
	do
		next(p, &wc);
	while (wc.wr_id != 9 && ++before <= 4);
	CHECK(!wc.status && before == 4);
	nothing_else();
}

static void last_wqe(struct pair *p)
{
	struct ibv_srq_init_attr si = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &si);
	struct ibv_qp_init_attr init = { .send_cq = p->cq, .recv_cq = p->cq, .srq = srq, .qp_type =
		IBV_QPT_RC,
		.cap = { 4, 0, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	CHECK(srq && qp);
	connect_to(qp, p->a->qp_num);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	expect(IBV_EVENT_QP_LAST_WQE_REACHED, qp);
	nothing_else();
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
}

static void moderated(void)
{
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, ch, 0), *got;
	struct pair p = { .cq = cq };
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 4, 60000 } };
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge, (uintptr_t)buf + 64, buf_mr->rkey), *bad;
	struct pollfd pfd = { .fd = ch->fd, .events = POLLIN };
	struct ibv_device_attr_ex ex;
	struct ibv_wc wc;
	void *cookie;

	CHECK(!ibv_query_device_ex(ctx, NULL, &ex) && ex.cq_mod_caps.max_cq_count >= 4);
	CHECK(cq && !ibv_modify_cq(cq, &attr));
	make_qps(&p);
	CHECK(!ibv_req_notify_cq(cq, 0));
	/* Three completions: the event comes when the period ends. */
	for (int i = 0; i < 3; i++) {
		CHECK(!ibv_post_send(p.a, &wr, &bad));
		next(&p, &wc);
	}
	CHECK(poll(&pfd, 1, 0) == 0);
	CHECK(poll(&pfd, 1, 10000) == 1 && !ibv_get_cq_event(ch, &got, &cookie) && got == cq);
	ibv_ack_cq_events(cq, 1);
	/* Four completions: the event comes at once. */
	attr.moderate.cq_period = 65535;
	CHECK(!ibv_modify_cq(cq, &attr) && !ibv_req_notify_cq(cq, 0));
	for (int i = 0; i < 4; i++) {
		CHECK(!ibv_post_send(p.a, &wr, &bad));
		next(&p, &wc);
	}
	CHECK(poll(&pfd, 1, 0) == 1 && !ibv_get_cq_event(ch, &got, &cookie));
	ibv_ack_cq_events(cq, 1);
	attr.attr_mask = 2;
	CHECK(ibv_modify_cq(cq, &attr) == EOPNOTSUPP);
	unmake(&p);
	CHECK(!ibv_destroy_comp_channel(ch));
}

/* A full CQ reports one event, and its queue pair enters the error state. */
static void overflown(void)
{
	struct pair p = { .cq = ibv_create_cq(ctx, 2, NULL, NULL, 0) };
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge, (uintptr_t)buf + 64, buf_mr->rkey), *bad;
	struct pollfd pfd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(p.cq);
	make_qps(&p);
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_post_send(p.a, &wr, &bad));
	CHECK(poll(&pfd, 1, 10000) == 1 && !ibv_get_async_event(ctx, &event));
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == p.cq);
	ibv_ack_async_event(&event);
	expect(IBV_EVENT_QP_FATAL, p.a);
	nothing_else();
	CHECK(!ibv_query_qp(p.a, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	unmake(&p);
}

/* A CQ can grow, and cannot shrink below the number of completions in it. */
static void resized(void)
{
	struct pair p = { .cq = ibv_create_cq(ctx, 2, NULL, NULL, 0) };
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;

	CHECK(p.cq);
	make_qps(&p);
	CHECK(!ibv_resize_cq(p.cq, 8) && p.cq->cqe >= 8);
	for (int i = 0; i < 4; i++)
		CHECK(!ibv_post_recv(p.b, &wr, &bad));
	CHECK(!ibv_modify_qp(p.b, &attr, IBV_QP_STATE));
	CHECK(ibv_resize_cq(p.cq, 3) == EINVAL);
	next(&p, &wc);
	CHECK(!ibv_resize_cq(p.cq, 3));
	for (int i = 0; i < 3; i++) {
		next(&p, &wc);
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	nothing_else();
	unmake(&p);
}

/* A key of a parent domain is valid in its protection domain, and the reverse. */
static void parent_domains(struct pair *p)
{
	struct ibv_td_init_attr ti = { 0 };
	struct ibv_td *td = ibv_alloc_td(ctx, &ti);
	struct ibv_parent_domain_init_attr pi = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &pi), *keep = pd;

	CHECK(td && parent && parent != pd && parent->context == ctx);
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	struct ibv_mr *mr = ibv_reg_mr(parent, buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge, (uintptr_t)buf + 64, mr->rkey);
	CHECK(mr && ibv_dealloc_pd(parent) == EBUSY && !posted(p, p->a, &wr));
	pd = parent;
	renew(p);
	CHECK(!posted(p, p->a, &wr));
	pd = keep;
	renew(p);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
	pi.pd = NULL;
	errno = 0;
	CHECK(!ibv_alloc_parent_domain(ctx, &pi) && errno == EINVAL);
}

int main(void)
{
	struct pair p;

	open_device();
	make(&p);
	refused_requests(&p);
	established(&p);
	drained(&p);
	last_wqe(&p);
	moderated();
	overflown();
	resized();
	parent_domains(&p);
	unmake(&p);
	close_device();
	printf("ok\n");
	return 0;
}
