/*
 * failed: work requests that fail. Prints wr_id, status and vendor_err of each completion in error.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_pd *pd;

static void expect(int is_right, const char *what)
{
	if (!is_right) {
		printf("%s failed\n", what);
		exit(2);
	}
}

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	expect(qp != NULL, "ibv_create_qp");
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, int max_rd_atomic)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .max_rd_atomic = max_rd_atomic, .timeout = 10, .retry_cnt = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } },
	};
	int init = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		  IBV_QP_MAX_QP_RD_ATOMIC;

	ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid);
	expect(ibv_modify_qp(qp, &attr, init) == 0, "INIT");
	attr.qp_state = IBV_QPS_RTR;
	expect(ibv_modify_qp(qp, &attr, rtr) == 0, "RTR");
	attr.qp_state = IBV_QPS_RTS;
	expect(ibv_modify_qp(qp, &attr, rts) == 0, "RTS");
}

/* A queue pair that is connected to another one of this process. */
static struct ibv_qp *connected(int max_rd_atomic)
{
	struct ibv_qp *qp = create(), *peer = create();

	connect_to(peer, qp, 1);
	connect_to(qp, peer, max_rd_atomic);
	return qp;
}

static void post(struct ibv_qp *qp, int wr_id, enum ibv_wr_opcode opcode, struct ibv_sge sge)
{
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
	}, *bad;

	expect(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
}

static void wait_for(int count)
{
	struct ibv_wc wc;

	while (count > 0) {
		int polled = ibv_poll_cq(cq, 1, &wc);

		expect(polled >= 0, "ibv_poll_cq");
		if (polled == 0 || wc.status == IBV_WC_SUCCESS)
			continue;
		printf("wr_id %d: %s, vendor_err 0x%x\n", (int)wc.wr_id, ibv_wc_status_str(wc.status),
		       wc.vendor_err);
		count--;
	}
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_recv_wr receive = { .wr_id = 9 }, *bad_receive;
	static char memory[4096];
	struct ibv_mr *mr;
	struct ibv_send_wr first, second, *bad_send;
	struct ibv_sge good, sge;
	struct ibv_qp *qp;

	context = ibv_open_device(devices[0]);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), 0);
	good = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };

	/* No such key; the second request is flushed, and one that is posted later. */
	qp = connected(1);
	sge = good;
	sge.lkey ^= 0x5500;
	second = (struct ibv_send_wr){
		.wr_id = 2, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &good, .num_sge = 1,
	};
	first = second;
	first.wr_id = 1;
	first.sg_list = &sge;
	first.next = &second;
	expect(ibv_post_send(qp, &first, &bad_send) == 0, "ibv_post_send of a list");
	wait_for(2);
	post(qp, 3, IBV_WR_RDMA_WRITE, good);
	wait_for(1);
	/* Beyond the region. */
	sge = good;
	sge.length = sizeof(memory) + 1;
	post(connected(1), 4, IBV_WR_RDMA_WRITE, sge);
	wait_for(1);
	/* A region that the device may not write, then a queue pair without READs. */
	post(connected(1), 5, IBV_WR_RDMA_READ, good);
	wait_for(1);
	post(connected(0), 6, IBV_WR_RDMA_READ, good);
	wait_for(1);
	/* The peer permits no WRITE, then it has no receive. */
	post(connected(1), 7, IBV_WR_RDMA_WRITE, good);
	wait_for(1);
	post(connected(1), 8, IBV_WR_SEND, good);
	wait_for(1);
	/* The application ends a queue pair with a receive. */
	qp = connected(1);
	expect(ibv_post_recv(qp, &receive, &bad_receive) == 0, "ibv_post_recv");
	expect(ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE) == 0, "ERR");
	wait_for(1);
	return 0;
}
