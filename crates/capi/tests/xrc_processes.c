/*
 * An XRC domain that two processes share: the parent has the sending and the receiving queue pair, the child
 * the shared receive queues. Exits 77 without a device.
 */
#include "pair.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONGEST 200000
#define SHORT 64

/* What the parent asks the child to do. */
struct order {
	char what;
	uint32_t length, value;
};
/* What the child knows. */
struct numbers {
	uint32_t first, other_domain, rkey;
	uint64_t va;
};

static char name[] = "/tmp/roxie-xrc-XXXXXX";
static char big[LONGEST];
static struct ibv_mr *big_mr;
static struct ibv_xrcd *xrcd;
static struct ibv_cq *cq;
static struct ibv_qp *ini, *tgt;
static int orders[2], answers[2];

static void fill(char *to, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		to[i] = (char)(i * 7 + i / 1021 + seed);
}

static void open_everything(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.oflags = O_CREAT };

	open_device();
	CHECK((big_mr = ibv_reg_mr(pd, big, LONGEST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((init.fd = open(name, O_RDONLY)) >= 0 && (xrcd = ibv_open_xrcd(ctx, &init)));
	CHECK((cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
}

static void close_everything(void)
{
	CHECK(!ibv_destroy_cq(cq) && !ibv_close_xrcd(xrcd) && !ibv_dereg_mr(big_mr));
	close_device();
}

static void poll_one(struct ibv_wc *wc)
{
	struct pair p = { .cq = cq };
	next(&p, wc);
}

/* The child. */

static struct ibv_srq *numbered(struct ibv_xrcd *in, uint32_t *number)
{
	struct ibv_srq_init_attr_ex init = { .attr = { 16, 1, 0 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.xrcd = in, .cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &init);

	CHECK(srq && !ibv_get_srq_num(srq, number));
	return srq;
}

static void post(struct ibv_srq *srq, uint64_t wr_id, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)big, length, lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	memset(big, 0, LONGEST);
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void expect_limit(struct ibv_srq *srq)
{
	struct pollfd pfd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK(poll(&pfd, 1, 10000) == 1 && !ibv_get_async_event(ctx, &event));
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
}

/* Carries an order out; the answer is the completion. */
static struct ibv_wc carry_out(struct ibv_srq *srq, struct order *order)
{
	static char expected[LONGEST];
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_wc wc = { 0 };

	switch (order->what) {
	case 'p': /* post a receive */
		post(srq, order->value, order->length, big_mr->lkey);
		break;
	case 'b': /* post one with a bad key */
		post(srq, order->value, order->length, ~big_mr->lkey);
		break;
	case 'd': /* post one later */
		usleep(200000);
		post(srq, order->value, order->length, big_mr->lkey);
		break;
	case 'w': /* wait for a completion, check its data */
		poll_one(&wc);
		if (!wc.status && order->length) {
			fill(expected, order->length, order->value);
			CHECK(wc.byte_len == order->length && !memcmp(big, expected, order->length));
		}
		break;
	case 'l':
		CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
		break;
	case 'e':
		expect_limit(srq);
		break;
	default:
		CHECK(0);
	}
	return wc;
}

static void child(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = O_CREAT };
	struct numbers numbers;
	struct ibv_srq *srq, *other;
	struct ibv_xrcd *own;
	struct order order;

	open_everything();
	CHECK((own = ibv_open_xrcd(ctx, &init)));
	srq = numbered(xrcd, &numbers.first);
	other = numbered(own, &numbers.other_domain);
	numbers.va = (uintptr_t)big;
	numbers.rkey = big_mr->rkey;
	CHECK(write(answers[1], &numbers, sizeof(numbers)) == sizeof(numbers));
	while (read(orders[0], &order, sizeof(order)) == sizeof(order)) {
		struct ibv_wc wc = carry_out(srq, &order);
		CHECK(write(answers[1], &wc, sizeof(wc)) == sizeof(wc));
	}
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_srq(other) && !ibv_close_xrcd(own));
	close_everything();
	exit(0);
}

/* The parent. */

static void tell(char what, uint32_t length, uint32_t value)
{
	struct order order = { what, length, value };
	CHECK(write(orders[1], &order, sizeof(order)) == sizeof(order));
}

static struct ibv_wc answer(void)
{
	struct pollfd pfd = { .fd = answers[0], .events = POLLIN };
	struct ibv_wc wc;
	CHECK(poll(&pfd, 1, 20000) == 1 && read(answers[0], &wc, sizeof(wc)) == sizeof(wc));
	return wc;
}

static struct ibv_wc order(char what, uint32_t length, uint32_t value)
{
	tell(what, length, value);
	return answer();
}

static void make_halves(void)
{
	struct ibv_qp_init_attr_ex send = { .send_cq = cq, .qp_type = IBV_QPT_XRC_SEND,
		.cap = { 16, 0, 1, 0, 64 }, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp_init_attr_ex recv = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD };

	CHECK((ini = ibv_create_qp_ex(ctx, &send)) && (tgt = ibv_create_qp_ex(ctx, &recv)));
	connect_to(ini, tgt->qp_num);
	connect_to(tgt, ini->qp_num);
}

static void renew_halves(void)
{
	CHECK(!ibv_destroy_qp(ini) && !ibv_destroy_qp(tgt));
	make_halves();
}

static void post_sends(enum ibv_wr_opcode opcode, uint32_t srqn, uint32_t length, int count,
		       struct numbers *to)
{
	struct ibv_sge sge = { (uintptr_t)big, length, big_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = opcode, .sg_list = &sge, .num_sge = 1, .imm_data = 0x1234,
		.send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = srqn }, *bad;

	if (to)
		wr.wr.rdma.remote_addr = to->va, wr.wr.rdma.rkey = to->rkey;
	while (count--)
		CHECK(!ibv_post_send(ini, &wr, &bad));
}

static enum ibv_wc_status sent(void)
{
	struct ibv_wc wc;
	poll_one(&wc);
	CHECK(wc.qp_num == ini->qp_num);
	return wc.status;
}

static enum ibv_wc_status send_one(enum ibv_wr_opcode opcode, uint32_t srqn, uint32_t length,
				   struct numbers *to)
{
	post_sends(opcode, srqn, length, 1, to);
	return sent();
}

static void messages(uint32_t srqn)
{
	static const uint32_t lengths[] = { 0, 1, 64, 1024, 5000, LONGEST };
	struct ibv_wc wc;

	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		fill(big, LONGEST, i);
		order('p', LONGEST, 100 + i);
		CHECK(!send_one(IBV_WR_SEND_WITH_IMM, srqn, lengths[i], NULL));
		wc = order('w', lengths[i], i);
		CHECK(!wc.status && wc.wr_id == 100 + i && wc.opcode == IBV_WC_RECV && wc.imm_data == 0x1234);
		CHECK(wc.wc_flags == IBV_WC_WITH_IMM && wc.qp_num == tgt->qp_num && wc.src_qp == ini->qp_num);
	}
	/* Several messages at once, in order. */
	fill(big, LONGEST, 9);
	for (int i = 0; i < 8; i++)
		order('p', LONGEST, 200 + i);
	post_sends(IBV_WR_SEND, srqn, 3000, 8, NULL);
	for (int i = 0; i < 8; i++) {
		CHECK(!sent());
		wc = order('w', 3000, 9);
		CHECK(!wc.status && wc.wr_id == 200 + i && !wc.wc_flags);
	}
}

static void empty_queue(uint32_t srqn)
{
	struct ibv_wc wc;

	fill(big, LONGEST, 3);
	post_sends(IBV_WR_SEND, srqn, 2000, 1, NULL);
	tell('d', LONGEST, 7);
	CHECK(!sent());
	answer();
	wc = order('w', 2000, 3);
	CHECK(!wc.status && wc.wr_id == 7);
	/* The last receive of a queue raises the event in the process that has the queue. */
	order('p', LONGEST, 8);
	order('l', 0, 0);
	CHECK(!send_one(IBV_WR_SEND, srqn, 10, NULL));
	order('e', 0, 0);
	CHECK(!order('w', 10, 3).status);
}

static void refused(struct numbers *to)
{
	struct ibv_wc wc;

	CHECK(send_one(IBV_WR_SEND, to->first ^ 0x100, 8, NULL) == IBV_WC_REM_INV_REQ_ERR);
	renew_halves();
	CHECK(send_one(IBV_WR_SEND, to->other_domain, 8, NULL) == IBV_WC_REM_INV_REQ_ERR);
	renew_halves();
	/* A slot without a process. */
	CHECK(send_one(IBV_WR_SEND, to->first ^ 0xff0000, 8, NULL) == IBV_WC_REM_INV_REQ_ERR);
	renew_halves();
	/* This process cannot reach the memory of the other one. */
	CHECK(send_one(IBV_WR_RDMA_WRITE, to->first, 8, to) == IBV_WC_REM_ACCESS_ERR);
	renew_halves();
	/* The message is longer than the receive. */
	order('p', SHORT, 30);
	CHECK(send_one(IBV_WR_SEND, to->first, SHORT + 1, NULL) == IBV_WC_REM_INV_REQ_ERR);
	wc = order('w', 0, 0);
	CHECK(wc.status == IBV_WC_LOC_LEN_ERR && wc.wr_id == 30);
	renew_halves();
	/* The memory of the receive cannot be written: the sender has got its ACK. */
	order('b', LONGEST, 31);
	CHECK(!send_one(IBV_WR_SEND, to->first, 100, NULL));
	wc = order('w', 0, 0);
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 31);
	/* And everything works again. */
	messages(to->first);
}

int main(void)
{
	struct numbers numbers;
	int status, fd = mkstemp(name);
	pid_t pid;

	CHECK(fd >= 0 && !pipe(orders) && !pipe(answers));
	CHECK((pid = fork()) >= 0);
	if (!pid) {
		close(orders[1]);
		child();
	}
	close(orders[0]);
	close(answers[1]);
	open_everything();
	CHECK(read(answers[0], &numbers, sizeof(numbers)) == sizeof(numbers));
	unlink(name);
	make_halves();
	messages(numbers.first);
	empty_queue(numbers.first);
	/* A forked child leaves the connections to the other process to its parent. */
	pid_t forked = fork();
	CHECK(forked >= 0);
	if (!forked)
		exit(0);
	CHECK(waitpid(forked, &status, 0) == forked && !status);
	refused(&numbers);

	/* The other process ends while a message waits for a receive. */
	post_sends(IBV_WR_SEND, numbers.first, 8, 1, NULL);
	usleep(20000);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	CHECK(sent() == IBV_WC_REM_INV_REQ_ERR);
	CHECK(!ibv_destroy_qp(ini) && !ibv_destroy_qp(tgt));
	close_everything();
	return 0;
}
