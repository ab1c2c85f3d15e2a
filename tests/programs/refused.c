/*
 * refused: calls that the device refuses. Prints roxie_last_refusal after each of them; exits with 1 if a
 *     call succeeds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

static const char *(*last_refusal)(void);

static void refused(int is_refused)
{
	if (!is_refused) {
		printf("a call succeeded after: %s\n", last_refusal());
		exit(1);
	}
	printf("%s\n", last_refusal());
}

/* A call of rdma_cm in the wrong order, and an address that the host does not have. */
static void refused_ids(void)
{
	struct sockaddr_in away = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000201) };
	struct rdma_cm_id *id;

	if (rdma_create_id(rdma_create_event_channel(), &id, NULL, RDMA_PS_TCP) != 0)
		exit(2);
	refused(rdma_resolve_route(id, 100) != 0);
	refused(rdma_bind_addr(id, (struct sockaddr *)&away) != 0);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(devices[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 6, .opcode = IBV_WR_SEND }, *bad_send;
	static char memory[64];

	last_refusal = (const char *(*)(void))dlsym(RTLD_DEFAULT, "roxie_last_refusal");
	if (qp == NULL || last_refusal == NULL)
		return 2;
	refused(ibv_modify_qp(qp, &attr, IBV_QP_STATE) != 0);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	refused(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX) != 0);
	refused(ibv_post_recv(qp, &receive, &bad_receive) != 0);
	refused(ibv_post_send(qp, &send, &bad_send) != 0);
	refused(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_REMOTE_WRITE) == NULL);
	refused(ibv_create_cq(context, 4, NULL, NULL, 1000) == NULL);
	init.cap.max_send_sge = 1000;
	refused(ibv_create_qp(pd, &init) == NULL);
	refused(ibv_dealloc_pd(pd) != 0);
	refused_ids();
	return 0;
}
