/*
 * Litmus tests of what a NIC may reorder: `litmus ROUNDS` runs each test so often and prints a line `NAME
 * allowed|forbidden COUNT`: how often the outcome of the test was seen. The table with the reasons is in
 * docs/chaos.md. a and c are connected to b and d; all requests go to the memory of b.
 */
#include "pair.h"

#define X 0	/* Data in b, in a cache line of its own. */
#define Y 2048	/* A flag in b. */
#define BIG 4096 /* Bytes of a message of four packets. */

static struct end a, b, c, d;
/* The value of this round: never the one before, never 0. */
static unsigned char fresh;

static void fill(struct end *end, uint32_t from, uint32_t length)
{
	memset((void *)(end->buf + from), fresh, length);
}

/* Takes `number` completions of requests. */
static void finish(int number)
{
	while (number-- > 0)
		wait_for(a.send_cq);
}

/*
 * Looks at two bytes of b, `first` and then `second`, until both are fresh. Returns whether the first one was
 * fresh and the second one was not. The requests are finished meanwhile.
 */
static int sees_first_only(uint32_t first, uint32_t second, int requests)
{
	int seen = 0, done = 0;
	struct ibv_wc wc;

	while (!done) {
		int one = b.buf[first] == fresh;
		int other = b.buf[second] == fresh;

		seen |= one && !other;
		done = one && other;
		if (requests > 0 && ibv_poll_cq(a.send_cq, 1, &wc) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			requests--;
		}
	}
	finish(requests);
	return seen;
}

static int last_before_first(void)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	return sees_first_only(X + 63, X, 1);
}

static int last_before_middle(void)
{
	fill(&a, 0, BIG);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, BIG, 1, 0);
	return sees_first_only(X + BIG - 1, X + BIG / 2, 1);
}

static int first_before_last(void)
{
	fill(&a, 0, BIG);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, BIG, 1, 0);
	return sees_first_only(X, X + BIG - 1, 1);
}

static int two_writes(void)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, Y, 8, 2, 0);
	return sees_first_only(Y, X, 2);
}

static int two_queue_pairs(void)
{
	fill(&a, 0, 64);
	fill(&c, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	post(&c, IBV_WR_RDMA_WRITE, 0, &b, Y, 8, 2, 0);
	return sees_first_only(Y, X, 2);
}

static int two_queue_pairs_and_a_poll(void)
{
	fill(&a, 0, 64);
	fill(&c, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	finish(1);
	post(&c, IBV_WR_RDMA_WRITE, 0, &b, Y, 8, 2, 0);
	return sees_first_only(Y, X, 1);
}

static int received(enum ibv_wr_opcode opcode)
{
	int old;

	fill(&a, 0, BIG);
	receive_at(&b, Y, 64, 1);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, BIG, BIG, 1, 0);
	post(&a, opcode, 0, &b, Y, 64, 2, 0);
	wait_for(b.recv_cq);
	old = !is_filled(b.buf + BIG, BIG, fresh) || !is_filled(b.buf + Y, 64, fresh);
	finish(2);
	return old;
}

static int write_then_immediate(void)
{
	return received(IBV_WR_RDMA_WRITE_WITH_IMM);
}

static int write_then_send(void)
{
	return received(IBV_WR_SEND);
}

static int acknowledged_and_old(void)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	finish(1);
	return !is_filled(b.buf + X, 64, fresh);
}

static int read_back_and_old(void)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	post(&a, IBV_WR_RDMA_READ, Y, &b, X, 1, 2, 0);
	finish(2);
	return !is_filled(b.buf + X, 64, fresh);
}

static int write_then_read(void)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	post(&a, IBV_WR_RDMA_READ, Y, &b, X, 64, 2, 0);
	finish(2);
	return !is_filled(a.buf + Y, 64, fresh);
}

static int write_then_read_elsewhere(void)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 1, 0);
	post(&c, IBV_WR_RDMA_READ, Y, &b, X, 64, 2, 0);
	finish(2);
	return !is_filled(c.buf + Y, 64, fresh);
}

static int reads_the_later_write(int flags)
{
	fill(&a, 0, 64);
	post(&a, IBV_WR_RDMA_READ, Y, &b, X, 64, 1, 0);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 64, 2, flags);
	finish(2);
	return a.buf[Y] == fresh;
}

static int read_then_write(void)
{
	return reads_the_later_write(0);
}

static int read_then_fenced_overwrite(void)
{
	return reads_the_later_write(IBV_SEND_FENCE);
}

static int read_and_old(void)
{
	fill(&b, X, BIG);
	post(&a, IBV_WR_RDMA_READ, 0, &b, X, BIG, 1, 0);
	finish(1);
	return !is_filled(a.buf, BIG, fresh);
}

/* READ into a buffer, and WRITE from it. */
static int through_a_buffer(int flags)
{
	fill(&b, X, 64);
	post(&a, IBV_WR_RDMA_READ, 0, &b, X, 64, 1, 0);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, Y, 64, 2, flags);
	post(&a, IBV_WR_RDMA_READ, Y, &b, Y, 64, 3, 0);
	finish(3);
	return !is_filled(a.buf + Y, 64, fresh);
}

static int read_then_dependent_write(void)
{
	return through_a_buffer(0);
}

static int read_then_fenced_write(void)
{
	return through_a_buffer(IBV_SEND_FENCE);
}

static int store_buffering(void)
{
	int both_old;

	fill(&a, 0, 8);
	fill(&b, Y, 8);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 1, 0);
	post(&b, IBV_WR_RDMA_WRITE, Y, &a, BIG, 8, 2, 0);
	both_old = b.buf[X] != fresh && a.buf[BIG] != fresh;
	finish(1);
	wait_for(b.send_cq);
	return both_old;
}

/* Two WRITEs of one word, then a READ; returns whether the first one has won. */
static int first_wins(struct end *first, struct end *second)
{
	fill(first, 0, 8);
	memset((void *)second->buf + 8, fresh + 1, 8);
	post(first, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 1, 0);
	post(second, IBV_WR_RDMA_WRITE, 8, &b, X, 8, 2, 0);
	finish(2);
	post(first, IBV_WR_RDMA_READ, Y, &b, X, 8, 3, 0);
	finish(1);
	return first->buf[Y] == fresh;
}

static int overlapping_writes(void)
{
	return first_wins(&a, &a);
}

static int overlapping_writes_of_two(void)
{
	return first_wins(&a, &c);
}

static void add(struct end *end, int number)
{
	struct ibv_sge sge = { (uintptr_t)end->buf + Y, 8, end->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD }, *bad;

	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.atomic.remote_addr = (uintptr_t)b.buf + X;
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.compare_add = 1;
	while (number-- > 0)
		CHECK(!ibv_post_send(end->qp, &wr, &bad));
}

static int lost_addition(void)
{
	*(volatile uint64_t *)(b.buf + X) = 0;
	add(&a, 3);
	add(&c, 3);
	finish(6);
	return *(volatile uint64_t *)(b.buf + X) != 6;
}

/* A message whose buffer changes; `wait`: after the completion. */
static int changed_message(int wait, int flags)
{
	int changed;

	fill(&a, 0, 64);
	receive_at(&b, X, 64, 1);
	post(&a, IBV_WR_SEND, 0, &b, X, 64, 1, flags);
	if (wait)
		finish(1);
	memset((void *)a.buf, 0, 64);
	wait_for(b.recv_cq);
	changed = !is_filled(b.buf + X, 64, fresh);
	finish(!wait);
	return changed;
}

static int reuse_before_completion(void)
{
	return changed_message(0, 0);
}

static int reuse_after_completion(void)
{
	return changed_message(1, 0);
}

static int reuse_of_inline(void)
{
	return changed_message(0, IBV_SEND_INLINE);
}

static int partly_changed_message(void)
{
	int mixed;

	fill(&a, 0, BIG);
	receive_at(&b, X, BIG, 1);
	post(&a, IBV_WR_SEND, 0, &b, X, BIG, 1, 0);
	usleep(20);
	memset((void *)a.buf, 0, BIG);
	wait_for(b.recv_cq);
	mixed = (b.buf[X] == fresh) != (b.buf[X + BIG - 1] == fresh);
	finish(1);
	return mixed;
}

static int visible_before_completion(void)
{
	struct ibv_wc wc;
	int number;

	fill(&a, 0, 8);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 1, 0);
	while (!(number = ibv_poll_cq(a.send_cq, 1, &wc)) && b.buf[X] != fresh)
		;
	finish(1 - number);
	return !number;
}

static int completions_of_one(void)
{
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 1, 0);
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 2, 0);
	int first = wait_for(a.send_cq).wr_id;
	finish(1);
	return first == 2;
}

static int completions_of_two(void)
{
	post(&a, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 1, 0);
	post(&c, IBV_WR_RDMA_WRITE, 0, &b, X, 8, 2, 0);
	int first = wait_for(a.send_cq).wr_id;
	finish(1);
	return first == 2;
}

static int receive_buffer_early(void)
{
	int seen;

	fill(&a, 0, 64);
	receive_at(&b, X, 64, 1);
	post(&a, IBV_WR_SEND, 0, &b, X, 64, 1, 0);
	/* No poll: the application must not be the thread that places the bytes. */
	seen = sees_first_only(X + 63, X, 0);
	wait_for(b.recv_cq);
	finish(1);
	return seen;
}

static const struct test {
	const char *name;
	int is_allowed;
	int (*run)(void);
} tests[] = {
	{ "last_before_first", 1, last_before_first },
	{ "last_before_middle", 1, last_before_middle },
	{ "first_before_last", 1, first_before_last },
	{ "two_writes", 0, two_writes },
	{ "two_queue_pairs", 1, two_queue_pairs },
	{ "two_queue_pairs_and_a_poll", 1, two_queue_pairs_and_a_poll },
	{ "write_then_immediate", 0, write_then_immediate },
	{ "write_then_send", 0, write_then_send },
	{ "acknowledged_and_old", 1, acknowledged_and_old },
	{ "read_back_and_old", 0, read_back_and_old },
	{ "write_then_read", 0, write_then_read },
	{ "write_then_read_elsewhere", 1, write_then_read_elsewhere },
	{ "read_then_write", 1, read_then_write },
	{ "read_then_fenced_overwrite", 0, read_then_fenced_overwrite },
	{ "read_and_old", 0, read_and_old },
	{ "read_then_dependent_write", 1, read_then_dependent_write },
	{ "read_then_fenced_write", 0, read_then_fenced_write },
	{ "store_buffering", 1, store_buffering },
	{ "overlapping_writes", 0, overlapping_writes },
	{ "overlapping_writes_of_two", 1, overlapping_writes_of_two },
	{ "lost_addition", 0, lost_addition },
	{ "reuse_before_completion", 1, reuse_before_completion },
	{ "partly_changed_message", 1, partly_changed_message },
	{ "reuse_after_completion", 0, reuse_after_completion },
	{ "reuse_of_inline", 0, reuse_of_inline },
	{ "visible_before_completion", 1, visible_before_completion },
	{ "completions_of_one", 0, completions_of_one },
	{ "completions_of_two", 1, completions_of_two },
	{ "receive_buffer_early", 1, receive_buffer_early },
};

/* Lets all WRITEs of earlier rounds become visible: the CPU stores to the same memory now. */
static void settle(void)
{
	post(&a, IBV_WR_RDMA_READ, SIZE - 8, &b, SIZE - 8, 1, 0, 0);
	post(&c, IBV_WR_RDMA_READ, SIZE - 8, &b, SIZE - 8, 1, 0, 0);
	post(&b, IBV_WR_RDMA_READ, SIZE - 8, &a, SIZE - 8, 1, 0, 0);
	finish(2);
	wait_for(b.send_cq);
}

int main(int argc, char **argv)
{
	const int rounds = argc > 1 ? atoi(argv[1]) : 20;
	unsigned value = 0;

	make_pair(&a, &b, (struct options){ .rnr_retry = 7 }, NULL);
	make_pair(&c, &d, (struct options){ .rnr_retry = 7 }, a.send_cq);
	alarm(30);
	for (size_t at = 0; at < sizeof(tests) / sizeof(tests[0]); at++) {
		/* The bytes of a receive are there some microseconds before its completion only. */
		int times = tests[at].run == receive_buffer_early ? 20 * rounds : rounds;
		int seen = 0;

		for (int round = 0; round < times; round++) {
			/* 1, 3, 5, ...: the value after it is never one of the round before. */
			fresh = value = (value + 2) % 254 | 1;
			settle();
			seen += tests[at].run();
		}
		printf("%s %s %d\n", tests[at].name, tests[at].is_allowed ? "allowed" : "forbidden", seen);
	}
	return 0;
}
