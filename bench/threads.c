/* WRITEs between queue pairs of one process for a number of seconds: each thread posts to one of two queue
 * pairs that are connected to each other. Prints messages per second of all threads together. The last
 * word says which thread has created the queue pairs and polls their completions: "own", the thread
 * itself; "main", the main thread has created them, one completion queue for each thread; "shared", all
 * threads poll one completion queue. See bench/scale. */
#include "ends.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

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
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	/* Lists that are posted and not completed; another thread may poll the completion. */
	atomic_int in_flight;
	atomic_long lists_done;
	double rate;
};

static bool threads_create;

static void prepare(struct pair *pair, struct ibv_cq *cq)
{
	char *memory = aligned_alloc(4096, 2 * BYTES_MAX);
	check(!memory, "memory");
	pair->mr = ibv_reg_mr(pd, memory, 2 * BYTES_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	pair->cq = cq ? cq : ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	check(!pair->mr || !pair->cq, "memory region or completion queue");
	pair->qp = create(pd, pair->cq, DEPTH);
	struct ibv_qp *peer = create(pd, pair->cq, DEPTH);
	join(pair->qp, peer, gid);
	join(peer, pair->qp, gid);
}

static void *drive(void *argument)
{
	struct pair *pair = argument;
	if (threads_create)
		prepare(pair, NULL);
	/* The completion of the last work request of a list means that all are completed. */
	int list = bytes <= 1024 ? LIST : 1, lists = bytes <= 1024 ? DEPTH / LIST : 4;
	struct ibv_sge piece = { .addr = (uintptr_t)pair->mr->addr, .length = bytes, .lkey = pair->mr->lkey };
	struct ibv_send_wr wr[LIST], *bad;
	for (int i = 0; i < list; i++)
		wr[i] = (struct ibv_send_wr){
			.wr_id = (uintptr_t)pair,
			.next = i + 1 < list ? &wr[i + 1] : NULL, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = i + 1 < list ? 0 : IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = piece.addr + BYTES_MAX, .rkey = pair->mr->rkey },
		};
	pthread_barrier_wait(&begun);
	double start = now_ns(), end = start + seconds * 1e9;
	while (now_ns() < end) {
		while (pair->in_flight < lists) {
			pair->in_flight++;
			check(ibv_post_send(pair->qp, wr, &bad), "ibv_post_send");
		}
		struct ibv_wc wc;
		while (ibv_poll_cq(pair->cq, 1, &wc)) {
			check(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
			struct pair *done = (struct pair *)wc.wr_id;
			done->in_flight--;
			done->lists_done++;
		}
	}
	pair->rate = pair->lists_done * list / ((now_ns() - start) / 1e9);
	return NULL;
}

int main(int argc, char **argv)
{
	bool fits = argc == 4 || argc == 5;
	int threads = fits ? atoi(argv[1]) : 0;
	bytes = fits ? atoi(argv[2]) : 0;
	seconds = fits ? atof(argv[3]) : 0;
	const char *who = argc == 5 ? argv[4] : "own";
	threads_create = !strcmp(who, "own");
	bool shared = !strcmp(who, "shared");
	if (threads < 1 || threads > THREADS_MAX || bytes < 1 || bytes > BYTES_MAX || seconds <= 0 ||
	    (!threads_create && !shared && strcmp(who, "main"))) {
		fprintf(stderr, "usage: threads THREADS BYTES SECONDS [own|main|shared]\n");
		return 2;
	}
	context = open_device(&gid);
	pd = ibv_alloc_pd(context);
	check(!pd, "ibv_alloc_pd");
	static struct pair pairs[THREADS_MAX];
	struct ibv_cq *cq = shared ? ibv_create_cq(context, 2 * DEPTH * threads, NULL, NULL, 0) : NULL;
	check(shared && !cq, "ibv_create_cq");
	for (int i = 0; i < threads && !threads_create; i++)
		prepare(&pairs[i], cq);
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
