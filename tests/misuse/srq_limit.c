/* srq_limit: the limit of a shared receive queue is set once, and its second event never comes */
#include "misuse.h"

#define PLACES 4

static struct ibv_sge to;
static struct ibv_srq *srq;

static void fill(void)
{
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct ibv_recv_wr receive = receive_to(&to), *bad;
	static int is_armed;

	for (int i = 0; i < PLACES - 1; i++)
		CHECK(ibv_post_srq_recv(srq, &receive, &bad) == 0);
	if (!is_armed || EITHER(0, 1))
		CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	is_armed = 1;
}

int main(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr init;
	struct ibv_async_event event;
	struct ibv_send_wr send, *bad;
	struct ibv_sge from;
	struct pair p;

	make_pair(&p, 64);
	srq = ibv_create_srq(p.pd, &attr);
	init = qp_attr(p.cq, IBV_QPT_RC);
	init.srq = srq;
	CHECK(ibv_destroy_qp(p.qp[1]) == 0);
	p.qp[1] = ibv_create_qp(p.pd, &init);
	init_qp(p.qp[1]);
	connect_qp(p.qp[0], p.qp[1]->qp_num, usual);
	connect_qp(p.qp[1], p.qp[0]->qp_num, usual);
	to = sge_of(&p, 1, 64);
	from = sge_of(&p, 0, 64);
	send = send_of(&from, IBV_WR_SEND);
	fill();
	for (int i = 0; i < EITHER(7, 6); i++)
		CHECK(ibv_post_send(p.qp[0], &send, &bad) == 0); /* finds: rnr-wait */
	CHECK(ibv_get_async_event(p.context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
	ibv_ack_async_event(&event);
	fill();
	wait_for(p.cq, 12);
	pause_ms(1600);
	CHECK(ibv_destroy_qp(p.qp[0]) == 0 && ibv_destroy_qp(p.qp[1]) == 0);
	p.qp[0] = p.qp[1] = NULL;
	CHECK(ibv_destroy_srq(srq) == 0);
	close_pair(&p);
	return 0;
}
