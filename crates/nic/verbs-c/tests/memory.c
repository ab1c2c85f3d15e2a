/*
 * Memory regions that change, and memory windows, between two queue pairs of this process. Every access that
 * must be refused ends with the status and on the side that the manual pages say. Exits 77 without a device.
 */
#define PAIR_OPS (IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_ATOMIC_WRITE)
#include "pair.h"

static char area[16384] __attribute__((aligned(4096)));
static struct ibv_mr *mr;

/* Writes one byte from buf[0] to `va` with `rkey`; returns the status. Creates a new pair after an error. */
static enum ibv_wc_status write_to(struct pair *p, uint32_t rkey, uint64_t va)
{
	struct ibv_sge sge = { (uintptr_t)buf, 1, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { va, rkey } };
	return posted(p, p->a, &wr);
}

static enum ibv_wc_status bind2(struct pair *p, struct ibv_mw *mw, size_t at, size_t len, int access)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { mw, ibv_inc_rkey(mw->rkey), { mr, (uintptr_t)area + at, len, access } } };
	enum ibv_wc_status status = posted(p, p->b, &wr);
	if (!status)
		mw->rkey = wr.bind_mw.rkey;
	return status;
}

static enum ibv_wc_status invalidate(struct pair *p, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = rkey };
	return posted(p, p->b, &wr);
}

static void windows_type_1(struct pair *p)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 3, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)area + 64, 32, IBV_ACCESS_REMOTE_WRITE } };
	struct ibv_wc wc;
	uint32_t first = mw->rkey;

	CHECK(mw && mw->pd == pd && mw->type == IBV_MW_TYPE_1);
	CHECK(!ibv_bind_mw(p->b, mw, &bind) && mw->rkey == ibv_inc_rkey(first));
	next(p, &wc);
	CHECK(!wc.status && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 3);
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
	buf[0] = 'w';
	CHECK(!write_to(p, mw->rkey, (uintptr_t)area + 95) && area[95] == 'w');
	CHECK(write_to(p, mw->rkey, (uintptr_t)area + 96) == IBV_WC_REM_ACCESS_ERR);
	CHECK(write_to(p, mw->rkey, (uintptr_t)area + 63) == IBV_WC_REM_ACCESS_ERR);
	CHECK(write_to(p, first, (uintptr_t)area + 64) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!area[96] && !area[63]);

	bind.bind_info.length = 0;
	CHECK(!ibv_bind_mw(p->b, mw, &bind));
	next(p, &wc);
	CHECK(!wc.status && write_to(p, mw->rkey, (uintptr_t)area + 64) == IBV_WC_REM_ACCESS_ERR);
	bind.bind_info.length = sizeof(area) + 1;
	CHECK(!ibv_bind_mw(p->b, mw, &bind));
	next(p, &wc);
	CHECK(wc.status == IBV_WC_MW_BIND_ERR);
	renew(p);

	/* The application restores the key after a failed bind; the next key follows the restored one. */
	uint32_t failed = mw->rkey;
	mw->rkey = first;
	bind.bind_info.length = 32;
	bind.bind_info.mw_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	CHECK(!ibv_bind_mw(p->b, mw, &bind) && mw->rkey == ibv_inc_rkey(first) && mw->rkey != failed);
	next(p, &wc);
	CHECK(!wc.status && !write_to(p, mw->rkey, (uintptr_t)area + 64));
	mw->rkey ^= 0x100;
	CHECK(ibv_bind_mw(p->b, mw, &bind) == EINVAL);
	mw->rkey ^= 0x100;
	CHECK(!ibv_dealloc_mw(mw));
}

static void windows_type_2(struct pair *p)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = { .bind_info = { mr, (uintptr_t)area, 1, IBV_ACCESS_REMOTE_WRITE } };
	int write = IBV_ACCESS_REMOTE_WRITE;
	struct ibv_wc wc;

	CHECK(mw && ibv_bind_mw(p->b, mw, &bind) == EINVAL);
	CHECK(bind2(p, mw, 0, 0, write) == IBV_WC_MW_BIND_ERR);
	CHECK(bind2(p, mw, 128, 8, IBV_ACCESS_MW_BIND) == IBV_WC_MW_BIND_ERR);
	/* LOCAL_WRITE and hints are accepted. The window grants the peer only what is remote. */
	CHECK(!bind2(p, mw, 128, 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
	CHECK(write_to(p, mw->rkey, (uintptr_t)area + 128) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!bind2(p, mw, 128, 8, write | IBV_ACCESS_ZERO_BASED));
	CHECK(bind2(p, mw, 128, 8, write) == IBV_WC_MW_BIND_ERR);
	/* The queue pair was replaced by another of the domain: the window was bound to the old one. */
	CHECK(write_to(p, mw->rkey, 7) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!bind2(p, mw, 128, 8, write | IBV_ACCESS_ZERO_BASED));
	buf[0] = 'z';
	CHECK(!write_to(p, mw->rkey, 7) && area[135] == 'z');
	CHECK(!invalidate(p, mw->rkey));
	CHECK(write_to(p, mw->rkey, 7) == IBV_WC_REM_ACCESS_ERR);
	CHECK(invalidate(p, mw->rkey) == IBV_WC_LOC_QP_OP_ERR);
	CHECK(invalidate(p, mr->rkey) == IBV_WC_LOC_QP_OP_ERR);

	/* The peer invalidates the window with its SEND. */
	CHECK(!bind2(p, mw, 128, 8, write));
	struct ibv_recv_wr rwr = { .wr_id = 9 }, *rbad;
	struct ibv_send_wr inv = { .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = mw->rkey }, *bad;
	CHECK(!ibv_post_recv(p->b, &rwr, &rbad) && !ibv_post_send(p->a, &inv, &bad));
	next(p, &wc);
	CHECK(!wc.status && wc.opcode == IBV_WC_RECV && wc.wc_flags & IBV_WC_WITH_INV);
	CHECK(wc.invalidated_rkey == mw->rkey && wc.wr_id == 9);
	CHECK(write_to(p, mw->rkey, (uintptr_t)area + 128) == IBV_WC_REM_ACCESS_ERR);

	/* The builder can bind and invalidate, too. */
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->b);
	struct ibv_mw_bind_info info = { mr, (uintptr_t)area + 256, 8, write };
	ibv_wr_start(q);
	q->wr_id = 1;
	q->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(q, mw, mw->rkey, &info);
	q->wr_id = 2;
	ibv_wr_local_inv(q, mw->rkey);
	CHECK(!ibv_wr_complete(q));
	next(p, &wc);
	CHECK(!wc.status && wc.wr_id == 1 && wc.opcode == IBV_WC_BIND_MW);
	next(p, &wc);
	CHECK(!wc.status && wc.wr_id == 2 && wc.opcode == IBV_WC_LOCAL_INV);
	CHECK(!ibv_dealloc_mw(mw));
}

static void changed_regions(struct pair *p)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *m = ibv_reg_mr(pd, area, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED |
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	int all = IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION;
	int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	CHECK(other && m);
	uint32_t rkey = m->rkey;
	buf[0] = '0';
	CHECK(!write_to(p, rkey, 4095) && area[4095] == '0');
	CHECK(write_to(p, rkey, (uintptr_t)area) == IBV_WC_REM_ACCESS_ERR);

	CHECK(!ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	CHECK(write_to(p, rkey, 0) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_rereg_mr(m, all, other, area + 4096, 8192, writable));
	CHECK(m->pd == other && m->addr == area + 4096 && m->length == 8192 && m->rkey == rkey);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	CHECK(write_to(p, rkey, (uintptr_t)area + 4096) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) && !ibv_dealloc_pd(other));
	buf[0] = '1';
	CHECK(!write_to(p, rkey, (uintptr_t)area + 4096) && area[4096] == '1');

	CHECK(ibv_rereg_mr(m, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 1, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
		IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(!write_to(p, rkey, (uintptr_t)area + 4096) && !ibv_dereg_mr(m));
	CHECK(write_to(p, rkey, (uintptr_t)area + 4096) == IBV_WC_REM_ACCESS_ERR);
}

/* Writes eight bytes atomically with both ways of posting; refuses an unaligned address. */
static void atomic_writes(struct pair *p)
{
	uint64_t *word = (uint64_t *)(area + 64), value = 0x0102030405060708;
	struct ibv_mr *m = ibv_reg_mr(pd, area, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)word, m->rkey } }, *bad;
	struct ibv_wc wc;

	memcpy(buf, &value, 8);
	CHECK(m && !posted(p, p->a, &wr) && *word == value);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	value = ~value;
	ibv_wr_start(q);
	q->wr_id = 4;
	q->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(q, m->rkey, (uintptr_t)(word + 1), &value);
	value = 0;
	CHECK(!ibv_wr_complete(q));
	next(p, &wc);
	CHECK(!wc.status && wc.opcode == IBV_WC_ATOMIC_WRITE && wc.wr_id == 4 && word[1] == ~word[0]);
	wr.wr.rdma.remote_addr++;
	CHECK(ibv_post_send(p->a, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.rdma.remote_addr--;
	sge.length = 4;
	CHECK(ibv_post_send(p->a, &wr, &bad) == EINVAL);
	sge.length = 8;
	wr.wr.rdma.rkey++;
	CHECK(posted(p, p->a, &wr) == IBV_WC_REM_ACCESS_ERR && !ibv_dereg_mr(m));
}

/* The null region reads as zeros, discards written data, and cannot be reached by the peer. */
static void null_region(struct pair *p)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_sge hole = { 12345, 100, null->lkey }, mine = { (uintptr_t)buf + 8192, 100, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &hole, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buf + 16384, buf_mr->rkey } };

	CHECK(null && null->pd == pd && null->lkey);
	memset(buf + 16384, 7, 100);
	CHECK(!posted(p, p->a, &wr));
	for (int i = 0; i < 100; i++)
		CHECK(!buf[16384 + i]);
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(!posted(p, p->a, &wr));
	wr.sg_list = &mine;
	wr.wr.rdma.rkey = null->lkey;
	CHECK(posted(p, p->a, &wr) == IBV_WC_REM_ACCESS_ERR);
	wr.sg_list = &hole;
	wr.wr.rdma.rkey = buf_mr->rkey;
	CHECK(!ibv_dereg_mr(null));
	CHECK(posted(p, p->a, &wr) == IBV_WC_LOC_PROT_ERR);
}

int main(void)
{
	struct pair p;

	open_device();
	make(&p);
	mr = ibv_reg_mr(pd, area, sizeof(area), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	windows_type_1(&p);
	windows_type_2(&p);
	changed_regions(&p);
	atomic_writes(&p);
	null_region(&p);
	CHECK(!ibv_dereg_mr(mr));
	unmake(&p);
	close_device();
	printf("ok\n");
	return 0;
}
