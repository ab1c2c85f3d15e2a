/* A queue pair that is connected to itself, and its completion queue with a channel. */
#include "misuse.h"

#include <pthread.h>

struct loop {
	struct pair p;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_sge from;
	struct ibv_send_wr send;
};

static struct loop loop;

static void open_loop(void)
{
	struct ibv_qp_init_attr init;

	open_pair(&loop.p, 16, usual);
	loop.channel = ibv_create_comp_channel(loop.p.context);
	loop.cq = ibv_create_cq(loop.p.context, 16, NULL, loop.channel, 0);
	init = qp_attr(loop.cq, IBV_QPT_RC);
	loop.qp = ibv_create_qp(loop.p.pd, &init);
	init_qp(loop.qp);
	connect_qp(loop.qp, loop.qp->qp_num, usual);
	loop.from = sge_of(&loop.p, 0, 64);
	loop.send = remote_of(&loop.p, &loop.from, IBV_WR_RDMA_WRITE);
}

static void post_loop(void)
{
	struct ibv_send_wr *bad;

	CHECK(ibv_post_send(loop.qp, &loop.send, &bad) == 0);
}

static void close_loop(void)
{
	CHECK(wait_for(loop.cq, 2) == IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(loop.qp) == 0 && ibv_destroy_cq(loop.cq) == 0);
	CHECK(ibv_destroy_comp_channel(loop.channel) == 0);
	close_pair(&loop.p);
}
