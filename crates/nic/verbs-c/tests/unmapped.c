/*
 * The program unmaps registered memory. A transfer that accesses the unmapped range fails on both sides, and
 * the program lives on. A fault of the program itself still ends it, or reaches its own handler. Exits 77
 * without a device.
 */
#include "pair.h"
#include "pages.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile sig_atomic_t caught;

static struct ibv_mr *reg(char *at)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	return mr;
}

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge, char *at, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = sge, .num_sge = 1, .send_flags =
		IBV_SEND_SIGNALED };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)at;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
		sge->length = 8;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)at;
		wr.wr.rdma.rkey = rkey;
	}
	return wr;
}

static void the_target_is_unmapped(struct pair *p)
{
	enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	char *at = pages();
	struct ibv_mr *mr = reg(at);

	for (int i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
		struct ibv_send_wr wr = request(ops[i], &sge, at + 4096, mr->rkey);
		CHECK(!posted(p, p->a, &wr));
	}
	munmap(at + 8192, SIZE - 8192);
	for (int i = 0; i < 3; i++) {
		struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
		struct ibv_send_wr wr = request(ops[i], &sge, at + (i == 2 ? 8192 : 4096), mr->rkey);
		CHECK(posted(p, p->a, &wr) == IBV_WC_REM_ACCESS_ERR);
	}
	/* The pages that are still mapped can be read. */
	struct ibv_sge sge = { (uintptr_t)buf, 4096, buf_mr->lkey };
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, &sge, at + 4096, mr->rkey);
	CHECK(!posted(p, p->a, &wr));
	CHECK(!ibv_dereg_mr(mr) && !munmap(at, 8192));
}

static void the_local_memory_is_unmapped(struct pair *p)
{
	char *at = pages();
	struct ibv_mr *mr = reg(at);
	struct ibv_sge hole = { (uintptr_t)at, SIZE, mr->lkey }, sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
	struct ibv_send_wr wr, *bad;
	struct ibv_recv_wr rwr = { .wr_id = 5, .sg_list = &hole, .num_sge = 1 }, *rbad;
	struct ibv_wc wc;
	int sender = 0, receiver = 0;

	munmap(at, SIZE);
	wr = request(IBV_WR_SEND, &hole, NULL, 0);
	CHECK(posted(p, p->a, &wr) == IBV_WC_LOC_PROT_ERR);
	wr = request(IBV_WR_RDMA_READ, &hole, buf, buf_mr->rkey);
	CHECK(posted(p, p->a, &wr) == IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_post_recv(p->b, &rwr, &rbad));
	wr = request(IBV_WR_SEND, &sge, NULL, 0);
	CHECK(!ibv_post_send(p->a, &wr, &bad));
	for (int i = 0; i < 2; i++) {
		next(p, &wc);
		sender += wc.qp_num == p->a->qp_num && wc.status == IBV_WC_REM_OP_ERR;
		receiver += wc.qp_num == p->b->qp_num && wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 5;
	}
	CHECK(sender == 1 && receiver == 1);
	renew(p);
	CHECK(!ibv_dereg_mr(mr));
}

static void on_demand(struct pair *p)
{
	char *at = pages();
	int flags = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_sge sge = { (uintptr_t)buf, 4096, buf_mr->lkey };
	unsigned char there;

	munmap(at, SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, flags), *all = ibv_reg_mr(pd, NULL, SIZE_MAX, flags);
	CHECK(mr && all);
	CHECK(mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	memset(buf, 'd', 4096);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, at, mr->rkey);
	CHECK(!posted(p, p->a, &wr) && at[0] == 'd' && at[4095] == 'd');
	wr = request(IBV_WR_RDMA_WRITE, &sge, at + 4096, all->rkey);
	CHECK(!posted(p, p->a, &wr) && at[4096] == 'd' && at[8191] == 'd');

	struct ibv_sge fetch = { (uintptr_t)at + 12288, 4096, mr->lkey };
	CHECK(!mincore(at + 12288, 4096, &there) && !(there & 1));
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &fetch, 1));
	CHECK(!mincore(at + 12288, 4096, &there) && there & 1);
	fetch.length++;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &fetch, 1) == EFAULT);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(all) && !munmap(at, SIZE));
}

static void crash(void)
{
	char *at = pages();
	munmap(at, SIZE);
	*(volatile char *)at = 1;
}

static void handler(int signal)
{
	caught++;
	siglongjmp(back, signal);
}

static struct sigaction before;

/* As language runtimes do: passes the signal to the handler that was installed before. */
static void passes_on(int signal, siginfo_t *info, void *context)
{
	caught++;
	before.sa_sigaction(signal, info, context);
}

static void dies_of_a_crash(void)
{
	int status;
	pid_t child = fork();

	if (!child) {
		crash();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void faults_of_the_program_reach_the_program(struct pair *p)
{
	struct sigaction own = { .sa_handler = handler };
	struct sigaction passing_on = { .sa_sigaction = passes_on, .sa_flags = SA_SIGINFO };

	dies_of_a_crash();
	sigaction(SIGSEGV, &passing_on, &before);
	dies_of_a_crash();
	the_target_is_unmapped(p);
	CHECK(caught == 0);
	dies_of_a_crash();

	/*
	 * The program's handler replaces that of the library. The library installs its own again at the next
	 * registration and passes the signal on.
	 */
	sigaction(SIGSEGV, &own, NULL);
	for (int i = 1; i <= 3; i++) {
		if (!sigsetjmp(back, 1))
			crash();
		CHECK(caught == i);
		if (i < 3)
			the_target_is_unmapped(p);
	}
}

int main(void)
{
	struct pair p;

	open_device();
	make(&p);
	the_target_is_unmapped(&p);
	the_local_memory_is_unmapped(&p);
	on_demand(&p);
	faults_of_the_program_reach_the_program(&p);
	unmake(&p);
	close_device();
	printf("ok\n");
	return 0;
}
