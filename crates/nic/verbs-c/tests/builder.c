/*
 * The work request builder (ibv_wr_*): every operation and every setter on every service that has it.
 * Extended completion queues: every reader, with time stamps. Exits 77 without a device.
 */
#define PAIR_ACCESS \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | FLUSH_GLOBAL)
#define PAIR_OPS (0x3ff | WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE)
/* IBV_ACCESS_FLUSH_GLOBAL and IBV_QP_EX_WITH_FLUSH, which older headers lack. */
#define FLUSH_GLOBAL (1 << 8)
#define WITH_FLUSH (1 << 11)
#include "pair.h"
#include <fcntl.h>
#include <poll.h>

#define FAILS(e, call) CHECK((errno = 0, !(call)) && errno == (e))
#define SECOND 1000000000ull

/* Offsets in `buf`: data to send, received data, data that was read, words for atomics. */
enum { OUT = 0, IN = 8192, BACK = 16384, WORDS = 24576 };

static struct ibv_cq_ex *cqx;
/* The members that `start_poll` and `next_poll` set, and the results of the readers. */
struct seen {
	uint64_t wr_id, ts, wall;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t byte_len, imm, inv, qp_num, src_qp, vendor_err, slid;
	unsigned int flags;
	uint8_t sl, path;
};

static char *at(int offset)
{
	return buf + offset;
}

static void see(struct seen *s)
{
	struct ibv_poll_cq_attr attr = { 0 };
	time_t end = time(NULL) + 10;
	int rc;

	while ((rc = ibv_start_poll(cqx, &attr)) == ENOENT)
		CHECK(time(NULL) < end);
	CHECK(!rc);
	*s = (struct seen){ .wr_id = cqx->wr_id, .status = cqx->status, .opcode = ibv_wc_read_opcode(cqx),
		.byte_len = ibv_wc_read_byte_len(cqx), .imm = be32toh(ibv_wc_read_imm_data(cqx)),
		.inv = ibv_wc_read_invalidated_rkey(cqx), .qp_num = ibv_wc_read_qp_num(cqx),
		.src_qp = ibv_wc_read_src_qp(cqx), .vendor_err = ibv_wc_read_vendor_err(cqx),
		.flags = ibv_wc_read_wc_flags(cqx), .slid = ibv_wc_read_slid(cqx), .sl = ibv_wc_read_sl(cqx),
		.path = ibv_wc_read_dlid_path_bits(cqx), .ts = ibv_wc_read_completion_ts(cqx),
		.wall = ibv_wc_read_completion_wallclock_ns(cqx) };
	ibv_end_poll(cqx);
	/* These have values on InfiniBand only, vendor_err after errors. */
	CHECK(!s->vendor_err == !s->status && !s->slid && !s->path);
	/* mlx5 reports this service level for a datagram that came by RoCEv2 over IPv4. */
	CHECK(s->sl == (s->flags & IBV_WC_GRH ? 10 : 0));
}

/* Checks that the next completion has this ID and opcode, and succeeded. */
static void expect(struct seen *s, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	see(s);
	if (s->status || s->wr_id != wr_id || s->opcode != opcode)
		printf("%s, id %lu, opcode %d\n", ibv_wc_status_str(s->status), s->wr_id, s->opcode);
	CHECK(!s->status && s->wr_id == wr_id && s->opcode == opcode);
}

static void start(struct ibv_qp_ex *q, uint64_t wr_id)
{
	ibv_wr_start(q);
	q->wr_id = wr_id;
	q->wr_flags = IBV_SEND_SIGNALED;
}

static void receive(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)at(IN), 256, buf_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	memset(at(IN), 0, 256);
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* Takes the completions of a send and of a receive, in either order; returns that of the receive. */
static struct seen both(uint64_t sent, uint64_t received, enum ibv_wc_opcode opcode)
{
	struct seen s[2];

	see(&s[0]);
	see(&s[1]);
	int at = s[0].wr_id == received ? 0 : 1;
	CHECK(!s[at].status && s[at].wr_id == received && s[at].opcode == opcode);
	CHECK(!s[1 - at].status && s[1 - at].wr_id == sent);
	return s[at];
}

static void messages(struct pair *p)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	struct ibv_data_buf pieces[3] = { { "in", 2 }, { "", 0 }, { "line", 4 } };
	struct ibv_sge list[2] = { { (uintptr_t)at(OUT) + 4, 4, buf_mr->lkey },
		{ (uintptr_t)at(OUT), 4, buf_mr->lkey } };
	struct seen s;

	memcpy(at(OUT), "zero-one", 8);
	receive(p->b, 50);
	start(q, 1);
	ibv_wr_send(q);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	s = both(1, 50, IBV_WC_RECV);
	CHECK(s.byte_len == 8 && s.qp_num == p->b->qp_num && s.src_qp == p->a->qp_num && !s.flags);
	CHECK(!memcmp(at(IN), "zero-one", 8));

	receive(p->b, 51);
	start(q, 2);
	ibv_wr_send_imm(q, htobe32(77));
	ibv_wr_set_sge_list(q, 2, list);
	CHECK(!ibv_wr_complete(q));
	s = both(2, 51, IBV_WC_RECV);
	CHECK(s.flags == IBV_WC_WITH_IMM && s.imm == 77 && !memcmp(at(IN), "-onezero", 8));

	receive(p->b, 52);
	start(q, 3);
	ibv_wr_send(q);
	ibv_wr_set_inline_data_list(q, 3, pieces);
	CHECK(!ibv_wr_complete(q));
	s = both(3, 52, IBV_WC_RECV);
	CHECK(s.byte_len == 6 && !memcmp(at(IN), "inline", 6));

	/* A request without a setter sends no data. */
	receive(p->b, 53);
	start(q, 4);
	ibv_wr_send(q);
	CHECK(!ibv_wr_complete(q));
	s = both(4, 53, IBV_WC_RECV);
	CHECK(!s.byte_len);
}

static void remote_memory(struct pair *p)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	uint64_t *words = (uint64_t *)at(WORDS), *back = (uint64_t *)at(BACK);
	struct seen s;
	char passing[8];

	memset(at(IN), 0, 256);
	memcpy(passing, "inline-w", 8);
	start(q, 1);
	ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN));
	ibv_wr_set_inline_data(q, passing, 8);
	/* The builder has copied the inline data. */
	memset(passing, 0, 8);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 1, IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(at(IN), "inline-w", 8));

	receive(p->b, 60);
	start(q, 2);
	ibv_wr_rdma_write_imm(q, buf_mr->rkey, (uintptr_t)at(IN) + 8, htobe32(78));
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	s = both(2, 60, IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(s.byte_len == 8 && s.flags == IBV_WC_WITH_IMM && s.imm == 78 && !memcmp(at(IN) + 8, "zero-one",
		8));

	start(q, 3);
	ibv_wr_rdma_read(q, buf_mr->rkey, (uintptr_t)at(OUT));
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)back, 8);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 3, IBV_WC_RDMA_READ);
	CHECK(s.byte_len == 8 && !memcmp(back, "zero-one", 8));

	words[0] = 40;
	start(q, 4);
	ibv_wr_atomic_fetch_add(q, buf_mr->rkey, (uintptr_t)words, 2);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)back, 8);
	q->wr_id = 5;
	ibv_wr_atomic_cmp_swp(q, buf_mr->rkey, (uintptr_t)words, 42, 7);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)(back + 1), 8);
	q->wr_id = 6;
	ibv_wr_atomic_cmp_swp(q, buf_mr->rkey, (uintptr_t)words, 42, 9);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)(back + 2), 8);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 4, IBV_WC_FETCH_ADD);
	CHECK(s.byte_len == 8);
	expect(&s, 5, IBV_WC_COMP_SWAP);
	expect(&s, 6, IBV_WC_COMP_SWAP);
	CHECK(words[0] == 7 && back[0] == 40 && back[1] == 42 && back[2] == 7);

	uint64_t value = 0x1122334455667788;
	start(q, 7);
	ibv_wr_atomic_write(q, buf_mr->rkey, (uintptr_t)(words + 1), &value);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 7, IBV_WC_ATOMIC_WRITE);
	CHECK(words[1] == value);
}

/* In newer headers wr_flush follows wr_atomic_write; IBV_WC_FLUSH is 8, placement 1 global visibility. */
static void flush(struct pair *p)
{
	typedef void flush_fn(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	flush_fn *wr_flush = *(flush_fn **)(&q->wr_atomic_write + 1);
	struct ibv_mr *m = ibv_reg_mr(pd, at(IN), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		FLUSH_GLOBAL);
	struct seen s;

	CHECK(m);
	start(q, 1);
	ibv_wr_rdma_write(q, m->rkey, (uintptr_t)at(IN));
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	q->wr_id = 2;
	wr_flush(q, m->rkey, (uintptr_t)at(IN), 8, 1, 0);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 1, IBV_WC_RDMA_WRITE);
	expect(&s, 2, 8);
	CHECK(!ibv_dereg_mr(m));
}

static void keys(struct pair *p)
{
	struct ibv_qp_ex *a = ibv_qp_to_qp_ex(p->a), *b = ibv_qp_to_qp_ex(p->b);
	struct ibv_mr *m = ibv_reg_mr(pd, at(IN), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { m, (uintptr_t)at(IN), 64, IBV_ACCESS_REMOTE_WRITE };
	struct seen s;

	CHECK(m && mw);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	start(b, 1);
	ibv_wr_bind_mw(b, mw, rkey, &info);
	CHECK(!ibv_wr_complete(b));
	expect(&s, 1, IBV_WC_BIND_MW);
	start(a, 2);
	ibv_wr_rdma_write(a, rkey, (uintptr_t)at(IN));
	ibv_wr_set_sge(a, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(a));
	expect(&s, 2, IBV_WC_RDMA_WRITE);
	receive(p->b, 70);
	start(a, 3);
	ibv_wr_send_inv(a, rkey);
	ibv_wr_set_sge(a, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(a));
	s = both(3, 70, IBV_WC_RECV);
	CHECK(s.flags == IBV_WC_WITH_INV && s.inv == rkey && s.byte_len == 8);
	rkey = ibv_inc_rkey(rkey);
	start(b, 4);
	ibv_wr_bind_mw(b, mw, rkey, &info);
	b->wr_id = 5;
	ibv_wr_local_inv(b, rkey);
	CHECK(!ibv_wr_complete(b));
	expect(&s, 4, IBV_WC_BIND_MW);
	expect(&s, 5, IBV_WC_LOCAL_INV);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(m));
}

/* Requests that `wr_complete` refuses; aborted requests are never sent. */
static void mistakes(struct pair *p)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	struct ibv_sge list[3] = { { (uintptr_t)buf, 1, buf_mr->lkey }, { (uintptr_t)buf, 1, buf_mr->lkey },
		{ (uintptr_t)buf, 1, buf_mr->lkey } };
	struct ibv_poll_cq_attr attr = { 0 }, strange = { .comp_mask = 1 };
	static char big[4096];
	int i;

	memset(at(IN), 0, 8);
	start(q, 1);
	ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN));
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	ibv_wr_abort(q);
	start(q, 2);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(ibv_wr_complete(q) == EINVAL);
	start(q, 3);
	ibv_wr_send(q);
	ibv_wr_set_sge_list(q, 3, list);
	CHECK(ibv_wr_complete(q) == EINVAL);
	start(q, 4);
	ibv_wr_send(q);
	ibv_wr_set_inline_data(q, big, sizeof(big));
	CHECK(ibv_wr_complete(q) == EINVAL);
	start(q, 5);
	ibv_wr_send_tso(q, big, 14, 512);
	CHECK(ibv_wr_complete(q) == EOPNOTSUPP);
	start(q, 6);
	q->wr_flags = 1 << 20;
	ibv_wr_send(q);
	CHECK(ibv_wr_complete(q) == EINVAL);
	start(q, 7);
	for (i = 0; i < 1000; i++)
		ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN));
	CHECK(ibv_wr_complete(q) == ENOMEM);
	start(q, 8);
	ibv_wr_bind_mw(q, NULL, 0, NULL);
	CHECK(ibv_wr_complete(q) == EINVAL);
	start(q, 9);
	CHECK(!ibv_wr_complete(q));
	CHECK(ibv_start_poll(cqx, &attr) == ENOENT && ibv_start_poll(cqx, &strange) == EINVAL);
	CHECK(!buf[IN]);
}

/* Moves a UC or UD queue pair from RESET to RTS. */
static void connect_unreliable(struct ibv_qp *qp, uint32_t peer)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		(ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } } };
	CHECK(!ibv_modify_qp(qp, &a, ud ? IBV_QP_STATE : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
		IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static struct ibv_qp *make_unreliable(struct ibv_cq *cq, enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .cap =
		{ 16, 16, 2, 2, 64 },
		.pd = pd, .send_ops_flags = ops, .comp_mask = IBV_QP_INIT_ATTR_PD |
			IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	return ibv_create_qp_ex(ctx, &init);
}

static void datagrams(struct ibv_cq *cq)
{
	uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	struct ibv_qp *a = make_unreliable(cq, IBV_QPT_UD, ops), *b = make_unreliable(cq, IBV_QPT_UD, ops);
	struct ibv_ah_attr aa = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &aa);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(a);
	struct seen s;

	FAILS(EOPNOTSUPP, make_unreliable(cq, IBV_QPT_UD, ops | IBV_QP_EX_WITH_RDMA_WRITE));
	CHECK(a && b && ah);
	/* A queue pair that is not in RTS refuses sends. */
	start(q, 1);
	ibv_wr_send(q);
	ibv_wr_set_ud_addr(q, ah, b->qp_num, 0x1234);
	CHECK(ibv_wr_complete(q) == EINVAL);
	connect_unreliable(a, 0);
	connect_unreliable(b, 0);
	receive(b, 80);
	start(q, 2);
	ibv_wr_send_imm(q, htobe32(79));
	ibv_wr_set_ud_addr(q, ah, b->qp_num, 0x1234);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	s = both(2, 80, IBV_WC_RECV);
	CHECK(s.flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && s.imm == 79 && s.byte_len == 48);
	CHECK(s.src_qp == a->qp_num && s.qp_num == b->qp_num && !memcmp(at(IN) + 40, "zero-one", 8));
	start(q, 3);
	ibv_wr_send(q);
	CHECK(ibv_wr_complete(q) == EINVAL);
	start(q, 4);
	ibv_wr_send(q);
	ibv_wr_set_ud_addr(q, NULL, b->qp_num, 0x1234);
	CHECK(ibv_wr_complete(q) == EINVAL);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

/*
 * UC has SEND and WRITE. A local error stops the send queue until the application moves the queue pair to
 * RTS.
 */
static void unreliable(struct ibv_cq *cq)
{
	uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
		IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	struct ibv_qp *a = make_unreliable(cq, IBV_QPT_UC, ops), *b = make_unreliable(cq, IBV_QPT_UC, ops);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(a);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr qa;
	struct seen s;

	FAILS(EOPNOTSUPP, make_unreliable(cq, IBV_QPT_UC, ops | IBV_QP_EX_WITH_RDMA_READ));
	CHECK(a && b);
	connect_unreliable(a, b->qp_num);
	connect_unreliable(b, a->qp_num);
	receive(b, 90);
	start(q, 1);
	ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN) + 64);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 1, IBV_WC_RDMA_WRITE);
	start(q, 2);
	ibv_wr_rdma_write_imm(q, buf_mr->rkey, (uintptr_t)at(IN), htobe32(80));
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	s = both(2, 90, IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(s.imm == 80 && !memcmp(at(IN), "zero-one", 8) && !memcmp(at(IN) + 64, "zero-one", 8));

	start(q, 3);
	ibv_wr_send(q);
	ibv_wr_set_sge(q, buf_mr->lkey ^ 1, (uintptr_t)at(OUT), 8);
	q->wr_id = 4;
	ibv_wr_send(q);
	CHECK(!ibv_wr_complete(q));
	see(&s);
	CHECK(s.wr_id == 3 && s.status == IBV_WC_LOC_PROT_ERR);
	see(&s);
	CHECK(s.wr_id == 4 && s.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_query_qp(a, &qa, IBV_QP_STATE, &init) && qa.qp_state == IBV_QPS_SQE &&
		a->state == IBV_QPS_SQE);

	/* The queue pair still receives. */
	struct ibv_qp_ex *back = ibv_qp_to_qp_ex(b);
	receive(a, 91);
	start(back, 5);
	ibv_wr_send(back);
	ibv_wr_set_sge(back, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(back));
	s = both(5, 91, IBV_WC_RECV);
	start(q, 6);
	ibv_wr_send(q);
	CHECK(!ibv_wr_complete(q));
	see(&s);
	CHECK(s.wr_id == 6 && s.status == IBV_WC_WR_FLUSH_ERR);

	qa = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTS };
	CHECK(ibv_modify_qp(a, &qa, IBV_QP_STATE | IBV_QP_CUR_STATE) == EINVAL);
	qa.cur_qp_state = IBV_QPS_SQE;
	CHECK(!ibv_modify_qp(a, &qa, IBV_QP_STATE | IBV_QP_CUR_STATE) && a->state == IBV_QPS_RTS);
	receive(b, 92);
	start(q, 7);
	ibv_wr_send(q);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	both(7, 92, IBV_WC_RECV);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

static void xrc(struct ibv_cq *cq)
{
	struct ibv_xrcd_init_attr di = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &di);
	struct ibv_srq_init_attr_ex si = { .attr = { 16, 1, 0 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd =
		xrcd,
		.cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			IBV_SRQ_INIT_ATTR_XRCD |
			IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &si);
	struct ibv_qp_init_attr_ex ti = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask =
		IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp *ini, *tgt;
	uint32_t number;
	struct seen s;

	CHECK(xrcd && srq && !ibv_get_srq_num(srq, &number));
	FAILS(EOPNOTSUPP, make_unreliable(cq, IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_ATOMIC_WRITE));
	ini = make_unreliable(cq, IBV_QPT_XRC_SEND, 0x3ff);
	CHECK(ini && (tgt = ibv_create_qp_ex(ctx, &ti)));
	connect_to(ini, tgt->qp_num);
	connect_to(tgt, ini->qp_num);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(ini);
	struct ibv_sge sge = { (uintptr_t)at(IN), 64, buf_mr->lkey };
	struct ibv_recv_wr rwr = { .wr_id = 95, .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(at(IN), 0, 64);
	CHECK(!ibv_post_srq_recv(srq, &rwr, &bad));
	start(q, 1);
	ibv_wr_send_imm(q, htobe32(81));
	ibv_wr_set_xrc_srqn(q, number);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	s = both(1, 95, IBV_WC_RECV);
	CHECK(s.imm == 81 && s.src_qp == ini->qp_num && !memcmp(at(IN), "zero-one", 8));
	start(q, 2);
	ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN) + 64);
	ibv_wr_set_xrc_srqn(q, number);
	ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
	CHECK(!ibv_wr_complete(q));
	expect(&s, 2, IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(at(IN) + 64, "zero-one", 8));
	CHECK(!ibv_destroy_qp(ini) && !ibv_destroy_qp(tgt) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
}

/* Readers return the same each time, and times do not go back. Some batches are left early. */
static void orders(struct pair *p)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t ts = 0, wall = 0, id = 0;

	for (uint64_t posted = 0; posted < 16000;) {
		do {
			start(q, posted++);
			ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN));
			CHECK(!ibv_wr_complete(q));
		} while (posted % 8);
		while (id < posted) {
			while (ibv_start_poll(cqx, &attr));
			do {
				uint64_t first = ibv_wc_read_completion_wallclock_ns(cqx);
				CHECK(cqx->wr_id == id++ && ibv_wc_read_completion_ts(cqx) >= ts && first >= wall);
				ts = ibv_wc_read_completion_ts(cqx);
				CHECK((wall = ibv_wc_read_completion_wallclock_ns(cqx)) == first);
			} while (id % 3 && !ibv_next_poll(cqx));
			ibv_end_poll(cqx);
		}
	}
}

static uint64_t device_clock(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	CHECK(!ibv_query_rt_values_ex(ctx, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return values.raw_clock.tv_sec * SECOND + values.raw_clock.tv_nsec;
}

/* Completions carry the time when they were added, by the device's clock and by the time of day. */
static void times(struct pair *p)
{
	struct ibv_device_attr_ex attr;
	struct ibv_values_ex none = { .comp_mask = 0 };
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	struct timespec pause = { 0, 20000000 }, day;
	struct seen first, second;
	struct ibv_wc wc;

	CHECK(!ibv_query_device_ex(ctx, NULL, &attr) && attr.hca_core_clock &&
		attr.completion_timestamp_mask);
	CHECK(!ibv_query_rt_values_ex(ctx, &none) && !none.comp_mask);
	uint64_t khz = attr.hca_core_clock, ticks = device_clock();
	nanosleep(&pause, NULL);
	ticks = (device_clock() - ticks) & attr.completion_timestamp_mask;
	CHECK(ticks / khz >= 20 && ticks / khz < 10000);

	uint64_t before = device_clock();
	for (int i = 1; i <= 2; i++) {
		struct pollfd pfd = { .fd = p->cq->channel->fd, .events = POLLIN };
		struct ibv_cq *cq;
		void *cookie;
		CHECK(!ibv_req_notify_cq(p->cq, 0));
		start(q, i);
		ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN));
		ibv_wr_set_sge(q, buf_mr->lkey, (uintptr_t)at(OUT), 8);
		CHECK(!ibv_wr_complete(q));
		/* The completion is in the CQ, and no call has polled it. */
		CHECK(poll(&pfd, 1, 10000) == 1 && !ibv_get_cq_event(p->cq->channel, &cq, &cookie));
		ibv_ack_cq_events(cq, 1);
	}
	uint64_t after = device_clock();
	nanosleep(&pause, NULL);
	expect(&first, 1, IBV_WC_RDMA_WRITE);
	expect(&second, 2, IBV_WC_RDMA_WRITE);
	CHECK(before < first.ts && first.ts < second.ts && second.ts < after);
	CHECK(!clock_gettime(CLOCK_REALTIME, &day));
	uint64_t now = day.tv_sec * SECOND + day.tv_nsec;
	CHECK(first.wall < second.wall && second.wall < now && now - first.wall < 10 * SECOND);

	/* ibv_poll_cq removes the time stamps of its completions, too. */
	for (int i = 3; i <= 4; i++) {
		start(q, i);
		ibv_wr_rdma_write(q, buf_mr->rkey, (uintptr_t)at(IN));
		CHECK(!ibv_wr_complete(q));
	}
	next(p, &wc);
	CHECK(wc.wr_id == 3);
	expect(&first, 4, IBV_WC_RDMA_WRITE);
	CHECK(first.ts > after && first.ts < device_clock());
}

int main(void)
{
	struct ibv_cq_init_attr_ex ca = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	struct pair p;

	open_device();
	CHECK((ca.channel = ibv_create_comp_channel(ctx)));
	CHECK((cqx = ibv_create_cq_ex(ctx, &ca)));
	ca.wc_flags |= IBV_WC_EX_WITH_CVLAN;
	FAILS(EOPNOTSUPP, ibv_create_cq_ex(ctx, &ca));
	p.cq = ibv_cq_ex_to_cq(cqx);
	make_qps(&p);
	messages(&p);
	remote_memory(&p);
	flush(&p);
	keys(&p);
	mistakes(&p);
	times(&p);
	orders(&p);
	CHECK(!ibv_destroy_qp(p.a) && !ibv_destroy_qp(p.b));
	datagrams(p.cq);
	unreliable(p.cq);
	xrc(p.cq);
	CHECK(!ibv_destroy_cq(p.cq) && !ibv_destroy_comp_channel(ca.channel));
	close_device();
	printf("ok\n");
	return 0;
}
