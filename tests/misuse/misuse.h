/*
 * What the programs of this directory share: two connected queue pairs of one process. Each program makes one
 * mistake, on the line with a comment `finds: KIND`; `options:` in a comment are those of `roxie check`, and
 * `exit:` is its exit code if that is neither 0 nor 66. Some programs are correct if they are compiled with
 * -DFIXED.
 */
#ifndef MISUSE_H
#define MISUSE_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Bytes of the memory of each side. */
#define SIZE 65536
#define ALL_ACCESS \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define CHECK(good) check(good, #good, __LINE__)
/* What is wrong, and what is right with -DFIXED. */
#ifdef FIXED
#define EITHER(wrong, right) (right)
#else
#define EITHER(wrong, right) (wrong)
#endif

static inline void check(int good, const char *what, int line)
{
	if (!good) {
		fprintf(stderr, "line %d: %s failed\n", line, what);
		_exit(1);
	}
}

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr[2];
	char *memory[2];
};

/* What connect_qp sets. */
struct path {
	int timeout, rnr_retry, reads;
};

static inline struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);

	CHECK(context != NULL);
	ibv_free_device_list(list);
	return context;
}

/* Opens two devices on lo. */
static inline void open_two(struct ibv_context *context[2])
{
	struct ibv_device **list;
	int count = 0;

	setenv("ROXIE_NETDEV", "lo", 1);
	setenv("ROXIE_DEVICES", "2", 1);
	list = ibv_get_device_list(&count);
	CHECK(count == 2);
	for (int i = 0; i < 2; i++)
		CHECK((context[i] = ibv_open_device(list[i])) != NULL);
	ibv_free_device_list(list);
}

static inline struct ibv_qp_init_attr qp_attr(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = type, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	return attr;
}

static inline void init_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 17 };
	int third = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;

	attr.qp_access_flags = ALL_ACCESS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | third) == 0);
}

/* A queue pair for datagrams that sends and receives, with the Q_Key of `init_qp`. */
static inline struct ibv_qp *ready_ud(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_UD);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR }, rts = { .qp_state = IBV_QPS_RTS };

	init_qp(qp);
	CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE) == 0);
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	return qp;
}

static inline struct ibv_ah_attr own_address(struct ibv_context *context)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };

	CHECK(ibv_query_gid(context, 1, 0, &attr.grh.dgid) == 0);
	return attr;
}

#define RTR_MASK \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK \
	(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | \
	 IBV_QP_MAX_QP_RD_ATOMIC)

/* Attributes of RTR_MASK. */
static inline struct ibv_qp_attr rtr_of(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to };

	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr = own_address(qp->context);
	return attr;
}

/* Attributes of RTS_MASK. */
static inline struct ibv_qp_attr rts_of(struct path path)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = path.timeout, .retry_cnt = 2 };

	attr.rnr_retry = path.rnr_retry;
	attr.max_rd_atomic = path.reads;
	return attr;
}

static inline void connect_qp(struct ibv_qp *qp, uint32_t to, struct path path)
{
	struct ibv_qp_attr rtr = rtr_of(qp, to), rts = rts_of(path);

	CHECK(ibv_modify_qp(qp, &rtr, RTR_MASK) == 0);
	CHECK(ibv_modify_qp(qp, &rts, RTS_MASK) == 0);
}

/* Makes a pair; the queue pairs are in INIT. */
static inline void make_pair(struct pair *p, int cqe)
{
	struct ibv_qp_init_attr attr;

	p->context = open_first();
	p->pd = ibv_alloc_pd(p->context);
	p->cq = ibv_create_cq(p->context, cqe, NULL, NULL, 0);
	CHECK(p->pd != NULL && p->cq != NULL);
	attr = qp_attr(p->cq, IBV_QPT_RC);
	for (int side = 0; side < 2; side++) {
		p->memory[side] = calloc(1, SIZE);
		p->mr[side] = ibv_reg_mr(p->pd, p->memory[side], SIZE, ALL_ACCESS);
		p->qp[side] = ibv_create_qp(p->pd, &attr);
		CHECK(p->mr[side] != NULL && p->qp[side] != NULL);
		init_qp(p->qp[side]);
	}
}

static inline void open_pair(struct pair *p, int cqe, struct path path)
{
	make_pair(p, cqe);
	connect_qp(p->qp[0], p->qp[1]->qp_num, path);
	connect_qp(p->qp[1], p->qp[0]->qp_num, path);
}

/* A queue pair with a peer that does not exist. */
static inline struct ibv_qp *connect_nowhere(struct pair *p, struct path path)
{
	struct ibv_qp_init_attr init = qp_attr(p->cq, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(p->pd, &init);

	CHECK(qp != NULL);
	init_qp(qp);
	connect_qp(qp, p->qp[0]->qp_num ^ 0xff, path);
	return qp;
}

static const struct path usual = { .timeout = 14, .rnr_retry = 7, .reads = 4 };

static inline void close_pair(struct pair *p)
{
	for (int side = 0; side < 2; side++) {
		if (p->qp[side] != NULL)
			CHECK(ibv_destroy_qp(p->qp[side]) == 0);
		if (p->mr[side] != NULL)
			CHECK(ibv_dereg_mr(p->mr[side]) == 0);
		free(p->memory[side]);
	}
	CHECK(ibv_destroy_cq(p->cq) == 0);
	CHECK(ibv_dealloc_pd(p->pd) == 0);
	CHECK(ibv_close_device(p->context) == 0);
}

static inline struct ibv_sge sge_of(struct pair *p, int side, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)p->memory[side], .length = length, .lkey = p->mr[side]->lkey };
	return sge;
}

static inline struct ibv_recv_wr receive_to(struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = sge, .num_sge = 1 };
	return wr;
}

static inline struct ibv_send_wr send_of(struct ibv_sge *sge, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = sge, .num_sge = 1, .opcode = opcode };

	wr.send_flags = IBV_SEND_SIGNALED;
	return wr;
}

/* A WRITE or READ of the memory of the other side. */
static inline struct ibv_send_wr remote_of(struct pair *p, struct ibv_sge *sge, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr = send_of(sge, opcode);

	wr.wr.rdma.remote_addr = (uintptr_t)p->memory[1];
	wr.wr.rdma.rkey = p->mr[1]->rkey;
	return wr;
}

/* Polls until so many completions are there; prints and returns the last status that is not success. */
static inline int wait_for(struct ibv_cq *cq, int count)
{
	int status = IBV_WC_SUCCESS;
	struct ibv_wc wc;

	while (count > 0) {
		int polled = ibv_poll_cq(cq, 1, &wc);

		CHECK(polled >= 0);
		if (polled == 1 && wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR) {
			status = wc.status;
			printf("wr_id %d: %s, vendor_err %#x\n", (int)wc.wr_id, ibv_wc_status_str(status), wc.vendor_err);
		}
		count -= polled;
	}
	return status;
}

static inline void pause_ms(int ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	nanosleep(&time, NULL);
}

#endif
