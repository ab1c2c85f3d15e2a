/*
 * each_device: opens every device and connects a queue pair of each to another one of it, which has a shared
 *     receive queue. WRITEs over all of them a hundred times a second until it is killed.
 */
#include <time.h>

#include <infiniband/verbs.h>

#include "must.h"

enum { LEN = 4096, DEVICES_MAX = 32 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qps[2];
	char bytes[2 * LEN];
};

static struct end ends[DEVICES_MAX];

static void connect_to(struct end *end, struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	union ibv_gid gid;

	MUST(!ibv_query_gid(end->context, 1, 0, &gid));
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } },
	};
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7 };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void use(struct end *end, struct ibv_device *device)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };

	MUST(end->context = ibv_open_device(device));
	MUST(end->pd = ibv_alloc_pd(end->context));
	MUST(attr.send_cq = attr.recv_cq = end->cq = ibv_create_cq(end->context, 4, NULL, NULL, 0));
	MUST(end->mr = ibv_reg_mr(end->pd, end->bytes, sizeof(end->bytes),
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	MUST(end->qps[0] = ibv_create_qp(end->pd, &attr));
	MUST(attr.srq = ibv_create_srq(end->pd, &srq_attr));
	MUST(end->qps[1] = ibv_create_qp(end->pd, &attr));
	connect_to(end, end->qps[0], end->qps[1]);
	connect_to(end, end->qps[1], end->qps[0]);
}

static void write_once(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->bytes, LEN, end->mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;
	int polled;

	wr.wr.rdma.remote_addr = sge.addr + LEN;
	wr.wr.rdma.rkey = end->mr->rkey;
	MUST(!ibv_post_send(end->qps[0], &wr, &bad));
	while (!(polled = ibv_poll_cq(end->cq, 1, &wc)))
		;
	MUST(polled == 1 && wc.status == IBV_WC_SUCCESS);
}

int main(void)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	struct ibv_device **devices;
	int count;

	MUST((devices = ibv_get_device_list(&count)) && count <= DEVICES_MAX);
	for (int i = 0; i < count; i++)
		use(&ends[i], devices[i]);
	puts("started");
	fflush(stdout);
	for (;; nanosleep(&pause, NULL))
		for (int i = 0; i < count; i++)
			write_once(&ends[i]);
}
