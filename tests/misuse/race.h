/*
 * What the programs about races share: processes that are connected to a target process by two queue pairs.
 * With one requester both queue pairs are its own; with two requesters each has one, at the place of its
 * number. With -DFIXED the programs make no mistake.
 */
#ifndef RACE_H
#define RACE_H

#include "misuse.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define ROUNDS 100
/* Work requests of which the last ones are in flight when the next one is posted. */
#define BURST 16
#define TARGET 2
#define IS_FIXED EITHER(0, 1)

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	char *memory;
	/* Memory of the peer. */
	uint64_t remote;
	uint32_t rkey;
};

/* Memory of all processes. */
struct shared {
	uint32_t qpn[3][2], rkey[3];
	uint64_t memory[3];
	atomic_int arrived[4096];
};

static struct shared *shared;
static int processes;

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

static inline void open_end(struct end *e, int role, int requesters)
{
	struct ibv_qp_init_attr attr;

	e->context = open_first();
	e->pd = ibv_alloc_pd(e->context);
	e->cq = ibv_create_cq(e->context, 64, NULL, NULL, 0);
	e->memory = calloc(1, SIZE);
	e->mr = ibv_reg_mr(e->pd, e->memory, SIZE, ALL_ACCESS);
	CHECK(e->cq != NULL && e->mr != NULL);
	attr = qp_attr(e->cq, IBV_QPT_RC);
	attr.cap.max_send_wr = 32;
	for (int i = 0; i < 2; i++) {
		e->qp[i] = NULL;
		if (!uses(role, requesters, i))
			continue;
		e->qp[i] = ibv_create_qp(e->pd, &attr);
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
		connect_qp(e->qp[i], shared->qpn[peer][i], usual);
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
	CHECK(ibv_dereg_mr(e->mr) == 0);
	free(e->memory);
	CHECK(ibv_destroy_cq(e->cq) == 0);
	CHECK(ibv_dealloc_pd(e->pd) == 0);
	CHECK(ibv_close_device(e->context) == 0);
}

/* Runs `run` in each process: requesters with their numbers, and the target. */
static inline int run_all(int requesters, void (*run)(struct end *, int role))
{
	struct end e;
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

static inline void post_receive(struct end *e, int qp)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->memory + 32768, .length = 64, .lkey = e->mr->lkey };
	struct ibv_recv_wr wr = receive_to(&sge), *bad;

	CHECK(ibv_post_recv(e->qp[qp], &wr, &bad) == 0);
}

#endif
