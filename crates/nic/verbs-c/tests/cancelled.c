/*
 * A thread that is cancelled (pthread_cancel(3)) while it posts and polls: as with rdma-core, it goes on to a
 * cancellation point of its own, and the device works afterwards. A thread that waits for an rsocket is
 * cancelled there. Exits 77 without a device.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <unistd.h>

#include "pair.h"

#define ROUNDS 30

static atomic_bool may_end;
/* Since the thread was cancelled. */
static atomic_long rounds;
/* Requests that the thread has posted and not polled. */
static int outstanding;

static struct ibv_send_wr write_of(struct ibv_sge *sge)
{
	return (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buf + sizeof(buf) / 2, buf_mr->rkey } };
}

/* Has no cancellation point before `may_end`. */
static void *streams(void *pair)
{
	struct pair *p = pair;
	struct ibv_sge sge = { (uintptr_t)buf, 4096, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge), *bad;
	struct ibv_wc wc[16];

	for (;;) {
		outstanding += !ibv_post_send(p->a, &wr, &bad);
		CHECK(!ibv_req_notify_cq(p->cq, 0));
		outstanding -= ibv_poll_cq(p->cq, 16, wc);
		atomic_fetch_add(&rounds, 1);
		if (atomic_load(&may_end))
			pthread_testcancel();
	}
	return NULL;
}

static void cancelled_under_traffic(struct pair *p)
{
	struct ibv_sge sge = { (uintptr_t)buf, 8, buf_mr->lkey };
	struct ibv_send_wr wr = write_of(&sge);
	struct ibv_wc wc;
	pthread_t thread;
	void *result;

	outstanding = 0;
	atomic_store(&may_end, 0);
	CHECK(!pthread_create(&thread, NULL, streams, p));
	usleep(2000);
	CHECK(!pthread_cancel(thread));
	atomic_store(&rounds, 0);
	for (time_t end = time(NULL) + 10; atomic_load(&rounds) < 1000;)
		CHECK(time(NULL) < end);
	atomic_store(&may_end, 1);
	CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);

	for (; outstanding; outstanding--)
		next(p, &wc);
	CHECK(!posted(p, p->a, &wr));
}

static void *accepts(void *listener)
{
	raccept(*(int *)listener, NULL, NULL);
	return NULL;
}

static void cancelled_on_a_socket(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int client = rsocket(AF_INET, SOCK_STREAM, 0), listener = rsocket(AF_INET, SOCK_STREAM, 0);
	pthread_t thread;
	void *result;
	struct timespec limit;

	CHECK(!rbind(listener, (struct sockaddr *)&at, len) && !rlisten(listener, 1));
	CHECK(!rgetsockname(listener, (struct sockaddr *)&at, &len));
	CHECK(!pthread_create(&thread, NULL, accepts, &listener));
	usleep(100000);
	CHECK(!pthread_cancel(thread) && !clock_gettime(CLOCK_REALTIME, &limit));
	limit.tv_sec += 10;
	CHECK(!pthread_timedjoin_np(thread, &result, &limit) && result == PTHREAD_CANCELED);

	CHECK(!rfcntl(client, F_SETFL, O_NONBLOCK));
	CHECK(rconnect(client, (struct sockaddr *)&at, len) == -1 && errno == EINPROGRESS);
	int server = raccept(listener, NULL, NULL);
	CHECK(server >= 0 && !rclose(server) && !rclose(client) && !rclose(listener));
}

int main(void)
{
	struct pair p;

	open_device();
	make(&p);
	for (int i = 0; i < ROUNDS; i++)
		cancelled_under_traffic(&p);
	unmake(&p);
	cancelled_on_a_socket();
	close_device();
	printf("%d threads cancelled\n", ROUNDS);
	return 0;
}
