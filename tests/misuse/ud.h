/* Two queue pairs for datagrams with their completion queues, and an address handle of the own device. */
#include "misuse.h"

struct datagrams {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_sge sge;
	char memory[4096];
};

static inline void open_datagrams(struct datagrams *d)
{
	struct ibv_ah_attr to;

	d->context = open_first();
	d->pd = ibv_alloc_pd(d->context);
	for (int i = 0; i < 2; i++) {
		d->cq[i] = ibv_create_cq(d->context, 16, NULL, NULL, 0);
		d->qp[i] = ready_ud(d->pd, d->cq[i]);
	}
	to = own_address(d->context);
	d->ah = ibv_create_ah(d->pd, &to);
	d->mr = ibv_reg_mr(d->pd, d->memory, sizeof(d->memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(d->ah != NULL && d->mr != NULL);
}

/* Returns the list of a work request, from an offset on. */
static inline struct ibv_sge *part(struct datagrams *d, int offset, uint32_t length)
{
	d->sge = (struct ibv_sge){ (uintptr_t)d->memory + offset, length, d->mr->lkey };
	return &d->sge;
}

/* From the first queue pair to the second; waits for the completion. */
static inline void send_datagram(struct datagrams *d, uint32_t length)
{
	struct ibv_send_wr send = send_of(part(d, 0, length), IBV_WR_SEND), *bad;

	send.wr.ud.ah = d->ah;
	send.wr.ud.remote_qpn = d->qp[1]->qp_num;
	send.wr.ud.remote_qkey = 17;
	CHECK(ibv_post_send(d->qp[0], &send, &bad) == 0);
	CHECK(wait_for(d->cq[0], 1) == IBV_WC_SUCCESS);
}

/* Polls for 300 ms; returns how many were received. */
static inline int received(struct datagrams *d)
{
	struct ibv_wc wc;
	int count = 0;

	for (int ms = 0; ms < 300; ms++) {
		count += ibv_poll_cq(d->cq[1], 1, &wc);
		pause_ms(1);
	}
	return count;
}

static inline void close_datagrams(struct datagrams *d)
{
	CHECK(ibv_destroy_ah(d->ah) == 0);
	for (int i = 0; i < 2; i++)
		CHECK((d->qp[i] == NULL || ibv_destroy_qp(d->qp[i]) == 0) && ibv_destroy_cq(d->cq[i]) == 0);
	CHECK(ibv_dereg_mr(d->mr) == 0);
	CHECK(ibv_dealloc_pd(d->pd) == 0 && ibv_close_device(d->context) == 0);
}
