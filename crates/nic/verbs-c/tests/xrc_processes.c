/*
 * An XRC domain that two processes share: the parent has the sending and the receiving queue pair, the child
 * the shared receive queues. Exits 77 without a device.
 */
#include "pair.h"
#include "xrc.h"
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
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
static int orders[2], answers[2];

static void fill(char *to, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		to[i] = (char)(i * 7 + i / 1021 + seed);
}

static void open_everything(void)
{
	int fd;

	open_device();
	CHECK((big_mr = ibv_reg_mr(pd, big, LONGEST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((fd = open(name, O_RDONLY)) >= 0 && (xrcd = open_domain(fd, O_CREAT)));
	CHECK((cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
}

static void close_everything(void)
{
	CHECK(!ibv_destroy_cq(cq) && !ibv_close_xrcd(xrcd) && !ibv_dereg_mr(big_mr));
	close_device();
}

/* The child. */

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
		poll_one(cq, &wc);
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
	struct numbers numbers;
	struct ibv_srq *srq, *other;
	struct ibv_xrcd *own;
	struct order order;

	open_everything();
	CHECK((own = open_domain(-1, O_CREAT)));
	srq = numbered_on(pd, xrcd, cq, &numbers.first);
	other = numbered_on(pd, own, cq, &numbers.other_domain);
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

static void renew_halves(void)
{
	destroy_halves();
	make_halves(xrcd, cq, 0);
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
	poll_one(cq, &wc);
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

/*
 * A process of another user that has taken the name on which slot `slot` would share its domains. The group
 * is that of the slots in /proc/net/unix, in the domain of this test. Without root there is none.
 */
static pid_t strange_owner(unsigned slot)
{
	const char *domain = getenv("ROXIE_DOMAIN");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char line[512], *found, *end;
	int ready[2];
	FILE *names = fopen("/proc/net/unix", "r");
	pid_t pid;

	CHECK(names && domain);
	while (fgets(line, sizeof(line), names)) {
		found = strstr(line, "@roxie/");
		end = found ? strstr(found, "/slot/") : NULL;
		if (end && !strncmp(strchr(found, ':') ? strchr(found, ':') + 1 : "", domain, strcspn(domain, ":")))
			break;
		found = NULL;
	}
	fclose(names);
	CHECK(found && !pipe(ready) && (pid = fork()) >= 0);
	if (!pid) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "%.*s/xrc/%u",
				      (int)(end - found - 1), found + 1, slot);
		CHECK(!setgid(65534) && !setuid(65534) && fd >= 0);
		CHECK(!bind(fd, (void *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + length));
		CHECK(!listen(fd, 4) && write(ready[1], "", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], line, 1) == 1);
	return pid;
}

static void strange_names(uint32_t srqn)
{
	pid_t stranger;

	if (geteuid()) {
		printf("skipped: names of another user need root\n");
		return;
	}
	stranger = strange_owner(srqn >> 12);
	CHECK(send_one(IBV_WR_SEND, srqn, 8, NULL) == IBV_WC_REM_INV_REQ_ERR);
	CHECK(!kill(stranger, SIGKILL) && waitpid(stranger, NULL, 0) == stranger);
	renew_halves();
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
	strange_names(to->first ^ 0x7f0000);
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
	make_halves(xrcd, cq, 0);
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
	destroy_halves();
	close_everything();
	return 0;
}
