/*
 * For C tests of XRC: domains, shared receive queues with numbers, and one sending and one receiving queue
 * pair that are connected with each other. Include it after pair.h.
 */
#include <fcntl.h>

static struct ibv_qp *ini, *tgt;

/* `fd` -1: a domain without a file. */
static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd, .oflags = oflags };
	errno = 0;
	return ibv_open_xrcd(ctx, &init);
}

/* A shared receive queue of 16 receives, and its number. */
static struct ibv_srq *numbered_on(struct ibv_pd *of, struct ibv_xrcd *in, struct ibv_cq *cq,
				   uint32_t *number)
{
	struct ibv_srq_init_attr_ex init = { .attr = { 16, 1, 0 }, .srq_type = IBV_SRQT_XRC, .pd = of,
		.xrcd = in, .cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &init);

	CHECK(srq && !ibv_get_srq_num(srq, number) && *number <= 0xffffff);
	return srq;
}

/* `send_ops`: for the work request builder; 0 without it. */
static void make_halves(struct ibv_xrcd *in, struct ibv_cq *send_cq, uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex send = { .send_cq = send_cq, .qp_type = IBV_QPT_XRC_SEND, .cap =
		{ 16, 0, 1, 0, 64 },
		.pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | (send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = send_ops };
	struct ibv_qp_init_attr_ex recv = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = in,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD };

	CHECK((ini = ibv_create_qp_ex(ctx, &send)) && (tgt = ibv_create_qp_ex(ctx, &recv)));
	/* With the attributes of both halves of RC, as perftest gives them. */
	connect_to(ini, tgt->qp_num);
	connect_to(tgt, ini->qp_num);
}

static void destroy_halves(void)
{
	CHECK(!ibv_destroy_qp(ini) && !ibv_destroy_qp(tgt));
}

static void poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	struct pair p = { .cq = cq };
	next(&p, wc);
}
