/*
 * What the programs about races share: processes that are connected to a target process by two queue pairs.
 * With one requester both queue pairs are its own; with two requesters each has one, at the place of its
 * number. With -DFIXED the programs make no mistake.
 */
#ifndef RACE_H
#define RACE_H

#include "misuse.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define ROUNDS 100
/* Work requests of which the last ones are in flight when the next one is posted. */
#define BURST 16
#define TARGET 2
#define IS_FIXED EITHER(0, 1)

/* Where receives go. */
#define RECEIVE 32768

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	/* Of the target, if there is one. */
	struct ibv_srq *srq;
	struct ibv_xrcd *xrcd;
	struct ibv_mr *mr;
	char *memory;
	/* Memory of the peer. */
	uint64_t remote;
	uint32_t rkey;
};

/* Memory of all processes. */
struct shared {
	uint32_t qpn[3][2], rkey[3], srqn;
	uint64_t memory[3];
	atomic_int arrived[4096];
};

static struct shared *shared;
static int processes;
/* Of the requesters' queue pairs; the target receives through a shared queue. */
static enum ibv_qp_type services[2] = { IBV_QPT_RC, IBV_QPT_RC };
static int has_srq;

/* Waits until all processes are here; each place is used once. */
static inline void meet(int place)
{
	atomic_fetch_add(&shared->arrived[place], 1);
	while (atomic_load(&shared->arrived[place]) < processes)
		sched_yield();
}

static inline int uses(int role, int requesters, int qp)
{
	return role == TARGET || requesters == 1 || role == qp;
}

static inline void make_srq(struct end *e)
{
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 8, .max_sge = 1 }, .pd = e->pd, .cq = e->cq };

	xrcd.fd = -1;
	xrcd.oflags = O_CREAT;
	attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	attr.srq_type = IBV_SRQT_BASIC;
	if (services[0] == IBV_QPT_XRC_SEND) {
		e->xrcd = ibv_open_xrcd(e->context, &xrcd);
		CHECK(e->xrcd != NULL);
		attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
		attr.srq_type = IBV_SRQT_XRC;
		attr.xrcd = e->xrcd;
	}
	e->srq = ibv_create_srq_ex(e->context, &attr);
	CHECK(e->srq != NULL);
	if (e->xrcd != NULL)
		CHECK(ibv_get_srq_num(e->srq, &shared->srqn) == 0);
}

static inline struct ibv_qp *make_qp(struct end *e, enum ibv_qp_type type, int role)
{
	struct ibv_qp_init_attr attr = qp_attr(e->cq, type);
	struct ibv_qp_init_attr_ex ex = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };

	ex.xrcd = e->xrcd;
	attr.cap.max_send_wr = 32;
	attr.cap.max_inline_data = 64;
	attr.srq = e->srq;
	if (type == IBV_QPT_XRC_SEND && role == TARGET)
		return ibv_create_qp_ex(e->context, &ex);
	return ibv_create_qp(e->pd, &attr);
}

/* Connects over RC, UC or XRC. */
static inline void connect_service(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(usual);
	int responds = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int requests = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	int is_uc = qp->qp_type == IBV_QPT_UC;
	int no_rtr = is_uc || qp->qp_type == IBV_QPT_XRC_SEND ? responds : 0;
	int no_rts = is_uc ? requests | IBV_QP_TIMEOUT : qp->qp_type == IBV_QPT_XRC_RECV ? requests : 0;

	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK & ~no_rtr) == 0);
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK & ~no_rts) == 0);
}

static inline void open_end(struct end *e, int role, int requesters)
{
	e->context = open_first();
	e->pd = ibv_alloc_pd(e->context);
	e->cq = ibv_create_cq(e->context, 64, NULL, NULL, 0);
	e->memory = calloc(1, SIZE);
	e->mr = ibv_reg_mr(e->pd, e->memory, SIZE, ALL_ACCESS);
	CHECK(e->cq != NULL && e->mr != NULL);
	if (has_srq && role == TARGET)
		make_srq(e);
	for (int i = 0; i < 2; i++) {
		e->qp[i] = NULL;
		if (!uses(role, requesters, i))
			continue;
		e->qp[i] = make_qp(e, services[i], role);
		CHECK(e->qp[i] != NULL);
		init_qp(e->qp[i]);
		shared->qpn[role][i] = e->qp[i]->qp_num;
	}
	shared->rkey[role] = e->mr->rkey;
	shared->memory[role] = (uintptr_t)e->memory;
	meet(0);
	for (int i = 0; i < 2; i++) {
		int peer = role == TARGET ? (requesters == 1 ? 0 : i) : TARGET;

		if (e->qp[i] == NULL)
			continue;
		connect_service(e->qp[i], shared->qpn[peer][i]);
		e->remote = shared->memory[peer];
		e->rkey = shared->rkey[peer];
	}
	meet(1);
}

static inline void close_end(struct end *e)
{
	meet(2);
	for (int i = 0; i < 2; i++)
		CHECK(e->qp[i] == NULL || ibv_destroy_qp(e->qp[i]) == 0);
	CHECK(e->srq == NULL || ibv_destroy_srq(e->srq) == 0);
	CHECK(e->xrcd == NULL || ibv_close_xrcd(e->xrcd) == 0);
	CHECK(ibv_dereg_mr(e->mr) == 0);
	free(e->memory);
	CHECK(ibv_destroy_cq(e->cq) == 0);
	CHECK(ibv_dealloc_pd(e->pd) == 0);
	CHECK(ibv_close_device(e->context) == 0);
}

/* Runs `run` in each process: requesters with their numbers, and the target. */
static inline int run_all(int requesters, void (*run)(struct end *, int role))
{
	struct end e = { 0 };
	int role = TARGET, failed = 0;

	processes = requesters + 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	for (int i = 0; i < requesters && role == TARGET; i++)
		if (fork() == 0)
			role = i;
	open_end(&e, role, requesters);
	run(&e, role);
	close_end(&e);
	for (int i = 0, status; role == TARGET && i < requesters; i++)
		failed |= wait(&status) < 0 || status != 0;
	return failed;
}

/* A work request between `local` bytes of the own memory and `remote` bytes of the peer's. */
static inline struct ibv_send_wr request(struct end *e, struct ibv_sge *sge, enum ibv_wr_opcode opcode,
					 int flags, size_t local, size_t remote, uint32_t length)
{
	struct ibv_send_wr wr = send_of(sge, opcode);

	*sge = (struct ibv_sge){ (uintptr_t)e->memory + local, length, e->mr->lkey };
	wr.send_flags = flags;
	wr.qp_type.xrc.remote_srqn = shared->srqn;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = e->remote + remote;
		wr.wr.atomic.rkey = e->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = e->remote + remote;
		wr.wr.rdma.rkey = e->rkey;
	}
	return wr;
}

/* Posts a `request` to a queue pair. */
#define post(e, number, ...)                                                         \
	do {                                                                         \
		struct ibv_sge sge;                                                  \
		struct ibv_send_wr wr = request((e), &sge, __VA_ARGS__), *bad;       \
		CHECK(ibv_post_send((e)->qp[number], &wr, &bad) == 0);               \
	} while (0)

#define SIGNALED IBV_SEND_SIGNALED

static inline void poll_good(struct end *e, int count)
{
	CHECK(wait_for(e->cq, count) == IBV_WC_SUCCESS);
}

/* To the shared queue if there is one. */
static inline void post_receive_at(struct end *e, int qp, size_t offset)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->memory + offset, .length = 64, .lkey = e->mr->lkey };
	struct ibv_recv_wr wr = receive_to(&sge), *bad;

	if (e->srq != NULL)
		CHECK(ibv_post_srq_recv(e->srq, &wr, &bad) == 0);
	else
		CHECK(ibv_post_recv(e->qp[qp], &wr, &bad) == 0);
}

static inline void post_receive(struct end *e, int qp)
{
	post_receive_at(e, qp, RECEIVE);
}

/* The target posts a receive before `place`, and polls it behind. Returns whether this is the target. */
static inline int target_receives(struct end *e, int role, int qp, int place)
{
	if (role == TARGET)
		post_receive(e, qp);
	meet(place);
	if (role == TARGET)
		poll_good(e, 1);
	return role == TARGET;
}

#endif
