/* Calls with objects of two devices fail with EINVAL and leave a reason that names the field and both
 * devices. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "check.h"

static const char *(*last_refusal)(void);
static struct ibv_context *context[2];
static struct ibv_pd *pd[2];
static struct ibv_cq *cq[2];

/* Checks the reason of the call that just failed. */
static void reason(int line, const char *call, int failed, const char *field)
{
	const char *last = last_refusal();

	if (failed && last && strstr(last, ": EINVAL: ") && strstr(last, field) && strstr(last, "roxie0") &&
	    strstr(last, "roxie1"))
		return;
	printf("line %d: %s: failed %d, \"%s\", without %s\n", line, call, failed, last, field);
	exit(1);
}

#define NULLED(call, field) reason(__LINE__, #call, (call) == NULL && errno == EINVAL, field)
#define CODE(call, field) reason(__LINE__, #call, (call) == EINVAL, field)
#define MINUS(call, field) reason(__LINE__, #call, (call) == -1 && errno == EINVAL, field)

static struct ibv_qp_init_attr init_of(struct ibv_cq *send, struct ibv_cq *receive)
{
	return (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .send_cq = send, .recv_cq = receive,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
}

static void queue_pairs(void)
{
	struct ibv_srq_init_attr small = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd[1], &small);
	struct ibv_qp_init_attr init = init_of(cq[1], cq[0]);
	struct ibv_qp_init_attr_ex extended = { .qp_type = IBV_QPT_RC, .send_cq = cq[0], .recv_cq = cq[0],
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .pd = pd[0] };
	struct ibv_qp *qp;
	struct ibv_mw *mw = ibv_alloc_mw(pd[1], IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 1 };

	CHECK(srq && mw);
	NULLED(ibv_create_qp(pd[0], &init), "send_cq");
	init = init_of(cq[0], cq[1]);
	NULLED(ibv_create_qp(pd[0], &init), "recv_cq");
	init = init_of(cq[0], cq[0]);
	init.srq = srq;
	NULLED(ibv_create_qp(pd[0], &init), "srq");
	extended.cap = init.cap;
	NULLED(ibv_create_qp_ex(context[1], &extended), "pd");
	init.srq = NULL;
	CHECK((qp = ibv_create_qp(pd[0], &init)));
	CODE(ibv_bind_mw(qp, mw, &bind), "qp");
	CHECK(!ibv_destroy_qp(qp) && !ibv_dealloc_mw(mw) && !ibv_destroy_srq(srq));
}

static void xrc(void)
{
	struct ibv_xrcd_init_attr nameless = { .fd = -1, .oflags = 0100,
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	struct ibv_xrcd *xrcd[2] = { ibv_open_xrcd(context[0], &nameless),
		ibv_open_xrcd(context[1], &nameless) };
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 1, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
		.pd = pd[0], .xrcd = xrcd[1], .cq = cq[0] };
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd[1] };
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
		IBV_QP_OPEN_ATTR_TYPE, .qp_num = 1, .xrcd = xrcd[1], .qp_type = IBV_QPT_XRC_RECV };

	CHECK(xrcd[0] && xrcd[1]);
	NULLED(ibv_create_srq_ex(context[0], &attr), "xrcd");
	attr.xrcd = xrcd[0];
	attr.cq = cq[1];
	NULLED(ibv_create_srq_ex(context[0], &attr), "cq");
	NULLED(ibv_create_srq_ex(context[1], &attr), "pd");
	NULLED(ibv_create_qp_ex(context[0], &target), "xrcd");
	NULLED(ibv_open_qp(context[0], &open), "xrcd");
	CHECK(!ibv_close_xrcd(xrcd[0]) && !ibv_close_xrcd(xrcd[1]));
}

static void other_objects(void)
{
	static char memory[64];
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context[1]);
	struct ibv_td_init_attr plain = { 0 };
	struct ibv_td *td = ibv_alloc_td(context[1], &plain);
	struct ibv_parent_domain_init_attr parent = { .pd = pd[1] };
	struct ibv_alloc_dm_attr length = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context[1], &length);
	struct ibv_mr *mr = ibv_reg_mr(pd[0], memory, sizeof(memory), 0);
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1,
		.pd = pd[0], .cq = cq[1] };

	CHECK(channel && td && dm && mr);
	NULLED(ibv_create_cq(context[0], 1, NULL, channel, 0), "channel");
	NULLED(ibv_alloc_parent_domain(context[0], &parent), "pd");
	parent = (struct ibv_parent_domain_init_attr){ .pd = pd[0], .td = td };
	NULLED(ibv_alloc_parent_domain(context[0], &parent), "td");
	NULLED(ibv_reg_dm_mr(pd[0], dm, 0, 64, IBV_ACCESS_ZERO_BASED), "dm");
	reason(__LINE__, "ibv_rereg_mr",
	       ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd[1], NULL, 0, 0) == IBV_REREG_MR_ERR_CMD, "pd");
	NULLED(ibv_create_wq(context[0], &wq), "cq");
	NULLED(ibv_create_wq(context[1], &wq), "pd");
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm) && !ibv_dealloc_td(td));
	CHECK(!ibv_destroy_comp_channel(channel));
}

static void identifiers(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_srq_init_attr small = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_init_attr init = init_of(cq[0], cq[0]);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int own;

	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
	CHECK(!rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event) && id->verbs);
	own = !strcmp(ibv_get_device_name(id->verbs->device), "roxie1");
	MINUS(rdma_create_qp(id, pd[!own], &init), "pd");
	MINUS(rdma_create_srq(id, pd[!own], &small), "pd");
	init = init_of(cq[!own], NULL);
	MINUS(rdma_create_qp(id, NULL, &init), "send_cq");
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	struct ibv_device **list;
	int number = 0;

	setenv("ROXIE_NETDEV", "lo", 1);
	setenv("ROXIE_DEVICES", "2", 1);
	list = ibv_get_device_list(&number);
	last_refusal = (const char *(*)(void))dlsym(RTLD_DEFAULT, "roxie_last_refusal");
	CHECK(number == 2 && last_refusal);
	for (int i = 0; i < 2; i++) {
		CHECK((context[i] = ibv_open_device(list[i])) && (pd[i] = ibv_alloc_pd(context[i])));
		CHECK((cq[i] = ibv_create_cq(context[i], 8, NULL, NULL, 0)));
	}
	queue_pairs();
	xrc();
	other_objects();
	identifiers();
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_cq(cq[i]) && !ibv_dealloc_pd(pd[i]) && !ibv_close_device(context[i]));
	return 0;
}
