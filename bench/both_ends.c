/* WRITEs of 64 KiB between two queue pairs of one thread, which never waits, so the scheduler does not
 * matter. Prints nanoseconds per packet of the path MTU (1024), including its share of the
 * acknowledgement: the tenth percentile of many messages. With a number as argument it repeats this, each
 * time with that many messages. See bench/hooks and bench/capture. */
#include "ends.h"

enum { BYTES = 65536, MTU = 1024, DEPTH = 4, MESSAGES = 4000 };

static char from[BYTES], to[BYTES];

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int messages = argc > 1 ? atoi(argv[1]) : MESSAGES;
	check(messages < 1 || messages > MESSAGES, "messages");
	union ibv_gid gid;
	struct ibv_context *context = open_device(&gid);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *ours = ibv_reg_mr(pd, from, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *theirs = ibv_reg_mr(pd, to, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(!pd || !cq || !ours || !theirs, "memory");
	struct ibv_qp *qp = create(pd, cq, DEPTH), *peer = create(pd, cq, DEPTH);
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
