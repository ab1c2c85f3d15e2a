/*
 * Signals that end a program: with the device open they still end it, and the parent process sees which
 * signal did. Handlers and ignored signals of the program stay. Prints the first false condition and exits 1;
 * exits 77 without a device.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* The library may take 200 ms to disconnect the peers. */
#define BOUND_MS 2000
#define NO_DEVICE 77

static volatile sig_atomic_t handled;

static void own_handler(int signal)
{
	handled = signal;
}

static void (*disposition(int signal))(int)
{
	struct sigaction action;
	CHECK(!sigaction(signal, NULL, &action));
	return action.sa_handler;
}

static struct ibv_cq *open_device(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (!list || !n)
		exit(NO_DEVICE);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	if (!cq)
		exit(NO_DEVICE);
	return cq;
}

/*
 * Runs `program` in a child until it reports that it is ready, sends the signal, and returns the child's
 * status.
 */
static int ended_by(int signal, void (*program)(int ready))
{
	int ready[2], status;
	char byte;
	CHECK(!pipe(ready));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		program(ready[1]);
		exit(3);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) == 1)
		CHECK(!kill(child, signal));
	close(ready[0]);
	for (int ms = 0; waitpid(child, &status, WNOHANG) == 0; ms++) {
		CHECK(ms < BOUND_MS);
		poll(NULL, 0, 1);
	}
	return status;
}

static void say(int ready)
{
	CHECK(write(ready, "", 1) == 1);
}

static void idle(int ready)
{
	open_device();
	say(ready);
	/* The signal must not make an interrupted system call fail. */
	char byte;
	int never[2];
	CHECK(!pipe(never));
	CHECK(read(never[0], &byte, 1) == 1);
}

/* The thread that gets the signal holds the engine's lock for most of the time. */
static void polling(int ready)
{
	struct ibv_cq *cq = open_device();
	struct ibv_wc wc;
	for (int i = 0;; i++) {
		ibv_poll_cq(cq, 1, &wc);
		if (i == 100)
			say(ready);
	}
}

/* A child of a program with the device open. */
static void descendant(int ready)
{
	open_device();
	int status = ended_by(SIGTERM, say);
	/* The child exited before the signal, or the signal ended it. */
	CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) || (WIFEXITED(status) &&
		WEXITSTATUS(status) == 3));
	pid_t child = fork();
	if (!child) {
		pause();
		exit(4);
	}
	poll(NULL, 0, 50);
	CHECK(!kill(child, SIGTERM) && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	say(ready);
	pause();
}

/* The program's own handlers, installed before and after it opens the device. */
static void handling(int ready)
{
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, own_handler);
	CHECK(disposition(SIGTERM) == SIG_DFL);
	open_device();
	CHECK(disposition(SIGHUP) == SIG_IGN && disposition(SIGINT) == own_handler);
	CHECK(disposition(SIGTERM) != SIG_DFL);
	CHECK(disposition(SIGQUIT) == SIG_DFL && disposition(SIGPIPE) == SIG_DFL);
	signal(SIGTERM, own_handler);
	raise(SIGHUP);
	raise(SIGINT);
	CHECK(handled == SIGINT);
	raise(SIGTERM);
	CHECK(handled == SIGTERM);
	exit(7);
}

int main(void)
{
	static const int signals[] = { SIGHUP, SIGINT, SIGTERM };
	int status = ended_by(0, handling);
	CHECK(WIFEXITED(status));
	if (WEXITSTATUS(status) != 7)
		return WEXITSTATUS(status);
	for (int i = 0; i < 3; i++) {
		status = ended_by(signals[i], idle);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
	}
	status = ended_by(SIGTERM, polling);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	status = ended_by(SIGINT, descendant);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
	printf("ok\n");
	return 0;
}
