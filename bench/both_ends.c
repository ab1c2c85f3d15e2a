/* WRITEs of 64 KiB between two queue pairs that one thread drives, so that nothing is waited for and the scheduler does not
 * matter. Prints nanoseconds per packet of the path MTU (1024), there and its share of the acknowledgement back: the tenth
 * percentile of many messages. With an argument it does so again and again, of as many messages. See bench/hooks and bench/capture. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BYTES = 65536, MTU = 1024, PSN = 7, MESSAGES = 4000 };

static char from[BYTES], to[BYTES];

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	check(!qp, "ibv_create_qp");
	return qp;
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = PSN, .sq_psn = PSN,
		.max_rd_atomic = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } },
	};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int messages = argc > 1 ? atoi(argv[1]) : MESSAGES;
	check(messages < 1 || messages > MESSAGES, "messages");
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(!devices || !devices[0], "ibv_get_device_list");
	struct ibv_context *context = ibv_open_device(devices[0]);
	check(!context, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *ours = ibv_reg_mr(pd, from, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *theirs = ibv_reg_mr(pd, to, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(!pd || !cq || !ours || !theirs, "memory");
	union ibv_gid gid;
	check(ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");
	struct ibv_qp *qp = create(pd, cq), *peer = create(pd, cq);
	join(qp, peer, gid);
	join(peer, qp, gid);

	struct ibv_sge piece = { .addr = (uintptr_t)from, .length = BYTES, .lkey = ours->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to, .rkey = theirs->rkey },
	}, *bad;
	static double took[MESSAGES];
	do {
		for (int i = 0; i < messages; i++) {
			double start = now_ns();
			check(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
			struct ibv_wc wc;
			while (!ibv_poll_cq(cq, 1, &wc))
				;
			check(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
			took[i] = now_ns() - start;
		}
		qsort(took, messages, sizeof(took[0]), ascending);
		printf("%.1f\n", took[messages / 10] * MTU / BYTES);
		fflush(stdout);
	} while (argc > 1);
	return 0;
}
