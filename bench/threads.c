/* WRITEs between queue pairs of one process for a number of seconds: each thread has two connected queue
 * pairs with one completion queue. Prints messages per second of all threads together. See bench/scale. */
#include "ends.h"
#include <pthread.h>

enum { THREADS_MAX = 32, LIST = 32, DEPTH = 4 * LIST, BYTES_MAX = 65536 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static uint32_t bytes;
static double seconds;
static pthread_barrier_t begun;

/* Arguments of a thread, and its result: messages per second. */
struct pair {
	pthread_t thread;
	double rate;
};

static void *drive(void *argument)
{
	struct pair *pair = argument;
	char *memory = aligned_alloc(4096, 2 * BYTES_MAX);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * BYTES_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	check(!memory || !mr || !cq, "memory");
	struct ibv_qp *qp = create(pd, cq, DEPTH), *peer = create(pd, cq, DEPTH);
	join(qp, peer, gid);
	join(peer, qp, gid);
	/* The completion of the last work request of a list means that all are completed. */
	int list = bytes <= 1024 ? LIST : 1, lists = bytes <= 1024 ? DEPTH / LIST : 4;
	struct ibv_sge piece = { .addr = (uintptr_t)memory, .length = bytes, .lkey = mr->lkey };
	struct ibv_send_wr wr[LIST], *bad;
	for (int i = 0; i < list; i++)
		wr[i] = (struct ibv_send_wr){
			.next = i + 1 < list ? &wr[i + 1] : NULL, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = i + 1 < list ? 0 : IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)memory + BYTES_MAX, .rkey = mr->rkey },
		};
	pthread_barrier_wait(&begun);
	double start = now_ns(), end = start + seconds * 1e9;
	long done = 0;
	for (int under_way = 0; now_ns() < end;) {
		for (; under_way < lists; under_way++)
			check(ibv_post_send(qp, wr, &bad), "ibv_post_send");
		struct ibv_wc wc;
		while (ibv_poll_cq(cq, 1, &wc)) {
			check(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
			under_way--;
			done += list;
		}
	}
	pair->rate = done / ((now_ns() - start) / 1e9);
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc == 4 ? atoi(argv[1]) : 0;
	bytes = argc == 4 ? atoi(argv[2]) : 0;
	seconds = argc == 4 ? atof(argv[3]) : 0;
	if (threads < 1 || threads > THREADS_MAX || bytes < 1 || bytes > BYTES_MAX || seconds <= 0) {
		fprintf(stderr, "usage: threads THREADS BYTES SECONDS\n");
		return 2;
	}
	context = open_device(&gid);
	pd = ibv_alloc_pd(context);
	check(!pd, "ibv_alloc_pd");
	struct pair pairs[THREADS_MAX];
	pthread_barrier_init(&begun, NULL, threads);
	for (int i = 0; i < threads; i++)
		check(pthread_create(&pairs[i].thread, NULL, drive, &pairs[i]), "pthread_create");
	double sum = 0;
	for (int i = 0; i < threads; i++) {
		pthread_join(pairs[i].thread, NULL);
		sum += pairs[i].rate;
	}
	printf("%.0f\n", sum);
	return 0;
}
