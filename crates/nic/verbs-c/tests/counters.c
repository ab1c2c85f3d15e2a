/*
 * Completion counters (ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3)). The functions are looked up by
 * name and version, because headers before rdma-core 65 lack them. Exits 77 without a device.
 */
#define _GNU_SOURCE
#include "pair.h"
#include <dlfcn.h>
#include <unistd.h>

#define FAILS(e, call) CHECK((errno = 0, !(call)) && errno == (e))
/* Longer than one READ request on the wire, and than one packet. */
#define LONG 200000

/* As in rdma-core 65. */
enum { SEND = 1, RECV = 2, READ = 4, REMOTE_READ = 8, WRITE = 16, REMOTE_WRITE = 32 };
enum { WRS, BYTES };
struct caps { uint64_t max_value; uint32_t max_counters, ops; };
struct counter { struct ibv_context *context; uint32_t handle; };
struct init { uint32_t comp_mask; int type; uint32_t flags; };
struct attach { uint32_t comp_mask, op_mask; };

static int (*query_caps)(struct ibv_context *, struct caps *, size_t);
static struct counter *(*create)(struct ibv_context *, struct init *);
static int (*destroy)(struct counter *);
static int (*set_value)(struct counter *, uint64_t), (*set_err)(struct counter *, uint64_t);
static int (*inc)(struct counter *, uint64_t), (*inc_err)(struct counter *, uint64_t);
static int (*read_value)(struct counter *, uint64_t *), (*read_err)(struct counter *, uint64_t *);
static int (*attach_to)(struct ibv_qp *, struct counter *, struct attach *);

static char big[LONG], big2[LONG];
static struct ibv_mr *big_mr, *big2_mr;

static void *symbol(const char *name)
{
	void *found = dlvsym(RTLD_DEFAULT, name, "IBVERBS_1.18");
	if (!found)
		printf("%s@IBVERBS_1.18 is missing\n", name);
	CHECK(found);
	return found;
}

static void find_symbols(void)
{
	query_caps = symbol("_ibv_query_comp_cntr_caps");
	create = symbol("ibv_create_comp_cntr");
	destroy = symbol("ibv_destroy_comp_cntr");
	set_value = symbol("ibv_set_comp_cntr");
	set_err = symbol("ibv_set_err_comp_cntr");
	inc = symbol("ibv_inc_comp_cntr");
	inc_err = symbol("ibv_inc_err_comp_cntr");
	read_value = symbol("ibv_read_comp_cntr");
	read_err = symbol("ibv_read_err_comp_cntr");
	attach_to = symbol("ibv_qp_attach_comp_cntr");
}

static struct counter *new_counter(int type)
{
	struct init init = { .type = type };
	struct counter *c = create(ctx, &init);
	CHECK(c && c->context == ctx);
	return c;
}

static int attach(struct ibv_qp *qp, struct counter *c, uint32_t ops)
{
	struct attach attr = { .op_mask = ops };
	return attach_to(qp, c, &attr);
}

static uint64_t value(struct counter *c)
{
	uint64_t n;
	CHECK(!read_value(c, &n));
	return n;
}

static uint64_t errors(struct counter *c)
{
	uint64_t n;
	CHECK(!read_err(c, &n));
	return n;
}

/* Waits without polling any CQ. */
static void await(struct counter *c, uint64_t completions, uint64_t failures)
{
	time_t end = time(NULL) + 10;
	while (value(c) != completions || errors(c) != failures) {
		if (time(NULL) > end)
			printf("%llu and %llu instead of %llu and %llu\n", (long long)value(c),
			       (long long)errors(c), (long long)completions, (long long)failures);
		CHECK(time(NULL) <= end);
	}
}

static struct ibv_qp *qp_of(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { 16, 16, 2, 2, 64 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, char *from, struct ibv_mr *mr, uint32_t len,
		 struct ibv_mr *to)
{
	struct ibv_sge sge = { (uintptr_t)from, len, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.wr.rdma = { (uintptr_t)to->addr, to->rkey } };
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void post_recv(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)big2, LONG, big2_mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void arguments(void)
{
	struct caps caps;
	struct { struct caps known; char later[8]; } larger;
	struct init init = { 0 };
	struct counter *c = new_counter(WRS), *d = new_counter(WRS);
	uint64_t n;

	CHECK(!query_caps(ctx, &caps, sizeof(caps)));
	CHECK(caps.max_value == UINT64_MAX && caps.max_counters >= 65000 && caps.ops == 63);
	/* A program of a later release gets zeros for what this one does not have. */
	memset(&larger, 0xff, sizeof(larger));
	CHECK(!query_caps(ctx, &larger.known, sizeof(larger)));
	CHECK(!memcmp(&larger.known, &caps, sizeof(caps)) && !memcmp(larger.later, "\0\0\0\0\0\0\0\0", 8));
	CHECK(query_caps(ctx, NULL, sizeof(caps)) == EINVAL);

	CHECK(c->handle != d->handle);
	init.comp_mask = 1;
	FAILS(EINVAL, create(ctx, &init));
	init = (struct init){ .flags = 1 };
	FAILS(EINVAL, create(ctx, &init));
	init = (struct init){ .type = 2 };
	FAILS(EOPNOTSUPP, create(ctx, &init));
	FAILS(EINVAL, create(ctx, NULL));

	CHECK(!value(c) && !errors(c));
	CHECK(!set_value(c, 5) && !inc(c, 3) && value(c) == 8 && !errors(c));
	CHECK(!set_err(c, UINT64_MAX) && !inc_err(c, 2) && errors(c) == 1 && value(c) == 8);
	CHECK(!value(d) && read_value(c, NULL) == EINVAL && read_value(NULL, &n) == EINVAL);
	CHECK(set_value(NULL, 1) == EINVAL && inc_err(NULL, 1) == EINVAL && destroy(NULL) == EINVAL);
	CHECK(!destroy(c) && !destroy(d));
}

/* The device gives as many as it reports. */
static void exhausted(void)
{
	struct init init = { .type = BYTES };
	struct counter **all;
	struct caps caps;
	uint32_t n;

	CHECK(!query_caps(ctx, &caps, sizeof(caps)) && (all = calloc(caps.max_counters, sizeof(*all))));
	for (n = 0; n < caps.max_counters; n++)
		CHECK((all[n] = create(ctx, &init)));
	FAILS(ENOMEM, create(ctx, &init));
	CHECK(!destroy(all[--n]) && (all[n++] = create(ctx, &init)));
	while (n)
		CHECK(!destroy(all[--n]));
	free(all);
}

static void attaching(struct ibv_cq *cq)
{
	struct ibv_qp *a = qp_of(cq, IBV_QPT_RC), *b = qp_of(cq, IBV_QPT_RC);
	struct counter *c = new_counter(WRS), *d = new_counter(BYTES);
	struct attach bad = { .comp_mask = 1, .op_mask = SEND };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	CHECK(attach(a, c, 0) == EINVAL && attach_to(a, c, &bad) == EINVAL && attach_to(a, c, NULL) == EINVAL);
	CHECK(attach(NULL, c, SEND) == EINVAL && attach(a, NULL, SEND) == EINVAL);
	/* The peer's WRITEs and READs may be split on the wire: only their bytes are known. */
	CHECK(attach(a, c, 64) == EOPNOTSUPP && attach(a, d, 64) == EOPNOTSUPP);
	CHECK(attach(a, c, SEND | REMOTE_WRITE) == EOPNOTSUPP && attach(a, c, REMOTE_READ) == EOPNOTSUPP);
	CHECK(!attach(a, c, SEND | READ) && !attach(a, d, RECV | REMOTE_WRITE));
	CHECK(attach(a, d, SEND) == EBUSY && attach(a, c, SEND) == EBUSY && attach(a, d, WRITE | READ) == EBUSY);
	CHECK(!attach(a, d, WRITE) && !attach(b, c, SEND));
	CHECK(destroy(c) == EBUSY && destroy(d) == EBUSY);
	CHECK(!ibv_destroy_qp(a) && destroy(c) == EBUSY && !destroy(d));
	CHECK(!ibv_destroy_qp(b) && !destroy(c));

	/* RESET and INIT only. */
	c = new_counter(WRS);
	a = qp_of(cq, IBV_QPT_RC);
	ready_to_receive(a, 1);
	CHECK(attach(a, c, SEND) == EINVAL);
	CHECK(!ibv_modify_qp(a, &attr, IBV_QP_STATE) && attach(a, c, SEND) == EINVAL);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(a, &attr, IBV_QP_STATE) && !attach(a, c, SEND));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(!ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(!attach(a, c, WRITE));
	CHECK(!ibv_destroy_qp(a) && !destroy(c));
}

/* Unsignaled requests are counted, and no CQ is polled. */
static void counting(struct ibv_cq *cq)
{
	struct ibv_qp *a = qp_of(cq, IBV_QPT_RC), *b = qp_of(cq, IBV_QPT_RC);
	struct counter *sends = new_counter(WRS), *rdma = new_counter(WRS), *bytes = new_counter(BYTES);
	struct counter *recvs = new_counter(WRS), *in = new_counter(BYTES), *out = new_counter(BYTES);
	struct ibv_wc wc[8];
	int n;

	CHECK(!attach(a, sends, SEND) && !attach(a, rdma, READ) && !attach(a, bytes, WRITE));
	CHECK(!attach(b, recvs, RECV) && !attach(b, in, REMOTE_WRITE) && !attach(b, out, REMOTE_READ));
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	for (n = 0; n < 3; n++) {
		post_recv(b);
		post(a, IBV_WR_SEND, big, big_mr, 10, big2_mr);
	}
	post(a, IBV_WR_RDMA_WRITE, big, big_mr, LONG, big2_mr);
	post(a, IBV_WR_RDMA_WRITE, big, big_mr, 7, big2_mr);
	post(a, IBV_WR_RDMA_READ, big, big_mr, LONG, big2_mr);
	await(sends, 3, 0);
	await(recvs, 3, 0);
	await(bytes, LONG + 7, 0);
	await(in, LONG + 7, 0);
	await(rdma, 1, 0);
	await(out, LONG, 0);
	/* Immediate data: a WRITE for the peer's memory, and a receive. */
	post_recv(b);
	post(a, IBV_WR_RDMA_WRITE_WITH_IMM, big, big_mr, 100, big2_mr);
	await(recvs, 4, 0);
	await(in, LONG + 107, 0);
	await(bytes, LONG + 107, 0);
	/* Receives are completed on the CQ as well; unsignaled requests are not. */
	CHECK(ibv_poll_cq(cq, 8, wc) == 4 && ibv_poll_cq(cq, 8, wc) == 0);

	/* A READ that is refused, a SEND that is flushed behind it, and one that is flushed when it is posted. */
	post(a, IBV_WR_RDMA_READ, big, big_mr, 8, &(struct ibv_mr){ .addr = big2, .rkey = ~big2_mr->rkey });
	post(a, IBV_WR_SEND, big, big_mr, 10, big2_mr);
	await(rdma, 1, 1);
	await(sends, 3, 1);
	await(out, LONG, 1);
	post(a, IBV_WR_SEND, big, big_mr, 10, big2_mr);
	await(sends, 3, 2);
	CHECK(value(bytes) == LONG + 107 && errors(bytes) == 0 && errors(in) == 0);
	/* The peer's receives are flushed. */
	post_recv(b);
	await(recvs, 4, 1);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	CHECK(!destroy(sends) && !destroy(rdma) && !destroy(bytes) && !destroy(recvs) && !destroy(in));
	CHECK(!destroy(out));
}

/* One counter of two queue pairs; a reset detaches nothing. */
static void sharing(struct ibv_cq *cq)
{
	struct ibv_qp *a = qp_of(cq, IBV_QPT_UC), *b = qp_of(cq, IBV_QPT_UC);
	struct counter *both = new_counter(WRS), *in = new_counter(BYTES);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_wc wc[4];
	int round;

	CHECK(!attach(a, both, SEND) && !attach(b, both, RECV | SEND) && !attach(b, in, REMOTE_WRITE));
	for (round = 1; round <= 2; round++) {
		struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };
		struct ibv_qp *qps[] = { a, b };
		for (int i = 0; i < 2; i++) {
			struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				.dest_qp_num = qps[1 - i]->qp_num,
				.ah_attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } } };
			struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
			CHECK(!ibv_modify_qp(qps[i], &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				IBV_QP_ACCESS_FLAGS));
			CHECK(!ibv_modify_qp(qps[i], &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
			CHECK(!ibv_modify_qp(qps[i], &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
		}
		post_recv(b);
		post(a, IBV_WR_SEND, big, big_mr, 3000, big2_mr);
		post(a, IBV_WR_RDMA_WRITE, big, big_mr, 5000, big2_mr);
		await(both, 2 * round, 0);
		await(in, 5000 * round, 0);
		CHECK(!ibv_modify_qp(a, &reset, IBV_QP_STATE) && !ibv_modify_qp(b, &reset, IBV_QP_STATE));
	}
	while (ibv_poll_cq(cq, 4, wc))
		;
	CHECK(!ibv_destroy_qp(a) && destroy(both) == EBUSY && !ibv_destroy_qp(b) && !destroy(both) && !destroy(in));
}

/* A program that only waits gets the counts, too. */
static void sleeping(struct ibv_cq *cq)
{
	struct ibv_qp *a = qp_of(cq, IBV_QPT_RC), *b = qp_of(cq, IBV_QPT_RC);
	struct counter *c = new_counter(BYTES);
	int tries;

	CHECK(!attach(b, c, REMOTE_WRITE));
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	post(a, IBV_WR_RDMA_WRITE, big, big_mr, 1000, big2_mr);
	for (tries = 0; tries < 100 && value(c) != 1000; tries++)
		usleep(50000);
	CHECK(value(c) == 1000);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !destroy(c));
}

int main(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_cq *cq;

	open_device();
	find_symbols();
	CHECK((cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
	CHECK((big_mr = ibv_reg_mr(pd, big, LONG, access)) && (big2_mr = ibv_reg_mr(pd, big2, LONG, access)));
	arguments();
	exhausted();
	attaching(cq);
	counting(cq);
	sharing(cq);
	sleeping(cq);
	CHECK(!ibv_dereg_mr(big_mr) && !ibv_dereg_mr(big2_mr) && !ibv_destroy_cq(cq));
	close_device();
	return 0;
}
