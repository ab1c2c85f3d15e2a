/*
 * Handlers for SIGSEGV and SIGBUS of the program, installed before and after those of the library: each of
 * them runs with its flags and its mask, and transfers that reach unmapped memory call none of them. Each
 * scenario is a process of its own. Exits 77 without a device.
 */
#include "pair.h"
#include "pages.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIES_OF_SIGSEGV (256 + SIGSEGV)

static sigjmp_buf back;
static struct sigaction replaced;
/* The handlers that ran, oldest first. */
static char ran[16];
static volatile sig_atomic_t runs;
static sigset_t blocked;
static char *volatile frame;
static char *hole;

/* A transfer to memory that the program unmapped fails; none of its handlers runs. */
static void unmapped_target(struct pair *p)
{
	char *at = pages();
	struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)at, 0 } };
	int before = runs;

	CHECK(mr);
	munmap(at, SIZE);
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(posted(p, p->a, &wr) == IBV_WC_REM_ACCESS_ERR);
	CHECK(runs == before && !ibv_dereg_mr(mr));
}

static void with_device(struct pair *p)
{
	open_device();
	make(p);
	unmapped_target(p);
}

static void note(char who)
{
	char here;
	ran[runs++] = who;
	frame = &here;
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
}

static void leaves(int signal, siginfo_t *info, void *context)
{
	(void)context;
	note('a');
	siglongjmp(back, info->si_addr == hole ? signal : -1);
}

static void repairs(int signal)
{
	(void)signal;
	note('r');
	CHECK(mmap(hole, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole);
}

/* A crash reporter: passes the signal to the handler that it replaced. */
static void reports(int signal, siginfo_t *info, void *context)
{
	note('c');
	replaced.sa_sigaction(signal, info, context);
}

static void install(void (*handler)(int, siginfo_t *, void *), int flags, struct sigaction *old)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };
	sigaddset(&action.sa_mask, SIGUSR1);
	CHECK(!sigaction(SIGSEGV, &action, old));
}

static void make_hole(void)
{
	if (!hole)
		hole = pages();
	munmap(hole, SIZE);
}

/* The program's own fault. Returns what ran. */
static const char *crashed(void)
{
	memset(ran, 0, sizeof(ran));
	runs = 0;
	make_hole();
	int signal = sigsetjmp(back, 1);
	if (!signal)
		*(volatile char *)hole = 1;
	else
		CHECK(signal == SIGSEGV);
	return ran;
}

static void a_crash_reporter_on_top(void)
{
	struct pair p;
	install(leaves, 0, NULL);
	with_device(&p);
	CHECK(!strcmp(crashed(), "a"));
	install(reports, 0, &replaced);
	CHECK(!strcmp(crashed(), "ca"));
	/* The registration puts the library's handler on top again. */
	for (int i = 0; i < 3; i++) {
		unmapped_target(&p);
		CHECK(!strcmp(crashed(), "ca"));
	}
}

static void one_handler_installed_twice(void)
{
	struct pair p;
	install(reports, SA_NODEFER, &replaced);
	with_device(&p);
	/* From now on it replaces itself: without the library the program would call it forever. */
	install(reports, SA_NODEFER, &replaced);
	unmapped_target(&p);
	crashed();
	CHECK(0);
}

static void the_mask_and_the_flags(void)
{
	struct pair p;
	install(leaves, 0, NULL);
	with_device(&p);
	CHECK(!strcmp(crashed(), "a"));
	CHECK(sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, SIGSEGV) == 1);
	install(leaves, SA_NODEFER, NULL);
	unmapped_target(&p);
	CHECK(!strcmp(crashed(), "a"));
	CHECK(sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, SIGSEGV) == 0);
}

static void a_handler_for_one_signal(void)
{
	struct pair p;
	struct sigaction once = { .sa_handler = repairs, .sa_flags = SA_RESETHAND };
	CHECK(!sigaction(SIGSEGV, &once, NULL));
	with_device(&p);
	CHECK(!strcmp(crashed(), "r"));
	unmapped_target(&p);
	crashed();
	CHECK(0);
}

static void the_alternate_stack(void)
{
	static char stack[65536];
	stack_t alternate = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct pair p;
	CHECK(!sigaltstack(&alternate, NULL));
	install(leaves, SA_ONSTACK, NULL);
	with_device(&p);
	CHECK(!strcmp(crashed(), "a") && frame >= stack && frame < stack + sizeof(stack));
	install(leaves, 0, NULL);
	unmapped_target(&p);
	CHECK(!strcmp(crashed(), "a") && !(frame >= stack && frame < stack + sizeof(stack)));
}

/* Too small for the kernel's frame on CPUs with AVX-512. No handler asks for it. */
static void a_small_alternate_stack(void)
{
	static char stack[2048];
	stack_t alternate = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct pair p;
	CHECK(!sigaltstack(&alternate, NULL));
	with_device(&p);
	install(leaves, 0, NULL);
	unmapped_target(&p);
	CHECK(!strcmp(crashed(), "a"));
}

static void handlers_after_the_registration(void)
{
	struct pair p;
	open_device();
	install(leaves, 0, NULL);
	char *at = pages();
	struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	install(reports, 0, &replaced);
	munmap(at, SIZE);
	make(&p);
	struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)at, mr->rkey } };
	CHECK(posted(&p, p.a, &wr) == IBV_WC_REM_ACCESS_ERR && !runs);
	CHECK(!strcmp(crashed(), "ca"));
}

/* The parent traces it and sees the last fault. */
static void the_default_action(void)
{
	struct pair p;
	with_device(&p);
	CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0));
	*(volatile char *)0x1234000 = 1;
}

static void sent_signals(void)
{
	struct pair p;
	signal(SIGSEGV, SIG_IGN);
	with_device(&p);
	CHECK(!raise(SIGSEGV) && !kill(getpid(), SIGSEGV));
	install(leaves, 0, NULL);
	unmapped_target(&p);
	if (!sigsetjmp(back, 1))
		raise(SIGSEGV);
	CHECK(runs == 1);
	signal(SIGSEGV, SIG_DFL);
	unmapped_target(&p);
	raise(SIGSEGV);
}

static void without_the_guard(void)
{
	struct sigaction now;
	struct ibv_device_attr_ex attr;
	struct pair p;
	setenv("ROXIE_GUARD", "off", 1);
	open_device();
	make(&p);
	CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == SIG_DFL);
	CHECK(!sigaction(SIGBUS, NULL, &now) && now.sa_handler == SIG_DFL);
	CHECK(!ibv_query_device_ex(ctx, NULL, &attr) && !attr.odp_caps.general_caps);
	struct ibv_sge sge = { (uintptr_t)buf, 8192, buf_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)buf + 32768, buf_mr->rkey } };
	CHECK(!posted(&p, p.a, &wr));
}

static const struct scenario {
	const char *name;
	void (*run)(void);
	int status;
} scenarios[] = {
	{ "a crash reporter on top", a_crash_reporter_on_top, 0 },
	{ "one handler installed twice", one_handler_installed_twice, DIES_OF_SIGSEGV },
	{ "the mask and the flags", the_mask_and_the_flags, 0 },
	{ "a handler for one signal", a_handler_for_one_signal, DIES_OF_SIGSEGV },
	{ "the alternate stack", the_alternate_stack, 0 },
	{ "a small alternate stack", a_small_alternate_stack, 0 },
	{ "handlers after the registration", handlers_after_the_registration, 0 },
	{ "the default action", the_default_action, DIES_OF_SIGSEGV },
	{ "sent signals", sent_signals, DIES_OF_SIGSEGV },
	{ "without the guard", without_the_guard, 0 },
};

/* Waits for a child, which may be traced; returns its exit status, or 256 plus the signal that ended it. */
static int ended(pid_t child, siginfo_t *last)
{
	int status;
	for (;;) {
		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFSTOPPED(status))
			break;
		CHECK(!ptrace(PTRACE_GETSIGINFO, child, 0, last));
		CHECK(!ptrace(PTRACE_CONT, child, 0, WSTOPSIG(status)));
	}
	return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(void)
{
	int failed = 0;
	for (unsigned i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++) {
		siginfo_t last = { 0 };
		fflush(stdout);
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			alarm(30);
			scenarios[i].run();
			exit(0);
		}
		int status = ended(child, &last);
		if (status == 77)
			return 77;
		int died_elsewhere = scenarios[i].run == the_default_action && last.si_addr != (void *)0x1234000;
		if (status != scenarios[i].status || died_elsewhere) {
			printf("%s: status %d, last fault at %p\n", scenarios[i].name, status, last.si_addr);
			failed = 1;
		}
	}
	if (!failed)
		printf("ok\n");
	return failed;
}
