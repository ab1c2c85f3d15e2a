/*
 * fork(2) without exec: while connected, and while another thread transfers data. The children use the
 * inherited objects, open the device themselves, or live longer than the parent. Prints the first false
 * condition and exits 1; exits 77 without a device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(c)                                                           \
	do {                                                               \
		if (!(c)) {                                                \
			printf("%d: line %d: %s (errno %d)\n", getpid(), __LINE__, #c, errno); \
			exit(1);                                           \
		}                                                          \
	} while (0)
#define FORKS 40
#define NO_DEVICE 77
#define AREAS 64
#define AREA_SIZE 65536

static struct sockaddr *loopback(uint16_t port)
{
	static _Thread_local struct sockaddr_in in;
	in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr =
		htonl(INADDR_LOOPBACK) };
	return (struct sockaddr *)&in;
}

static struct rdma_cm_event *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	struct pollfd wait = { .fd = ch->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	CHECK(poll(&wait, 1, 10000) == 1 && !rdma_get_cm_event(ch, &event));
	if (event->event != type)
		printf("got %s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type);
	return event;
}

static void acknowledge(struct rdma_event_channel *ch, enum rdma_cm_event_type type)
{
	rdma_ack_cm_event(expect(ch, type));
}

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr){ .cap = { 8, 8, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
}

/* One end of a connection. */
struct end {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char buf[64];
};

static struct rdma_cm_id *listen_at(struct rdma_event_channel *ch, uint16_t port)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP))
		return NULL;
	if (rdma_bind_addr(id, loopback(port)) || rdma_listen(id, 8))
		return NULL;
	return id;
}

static void begin(struct end *client, uint16_t port)
{
	struct ibv_qp_init_attr init = attributes();
	CHECK((client->ch = rdma_create_event_channel()));
	CHECK(!rdma_create_id(client->ch, &client->id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client->id, NULL, loopback(port), 1000));
	acknowledge(client->ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(client->id, 1000));
	acknowledge(client->ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_create_qp(client->id, NULL, &init));
	CHECK((client->mr = rdma_reg_msgs(client->id, client->buf, sizeof(client->buf))));
	CHECK(!rdma_connect(client->id, NULL));
}

static void accept_one(struct end *server, struct rdma_cm_id *listener)
{
	struct ibv_qp_init_attr init = attributes();
	struct rdma_cm_event *event = expect(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	server->id = event->id;
	server->ch = listener->channel;
	CHECK(!rdma_create_qp(server->id, NULL, &init));
	CHECK((server->mr = rdma_reg_msgs(server->id, server->buf, sizeof(server->buf))));
	CHECK(!rdma_post_recv(server->id, NULL, server->buf, sizeof(server->buf), server->mr));
	CHECK(!rdma_accept(server->id, NULL) && !rdma_ack_cm_event(event));
}

/* Sends a message from one end to the other, both in this process. */
static void message(struct end *from, struct end *to, int n)
{
	struct ibv_wc wc;
	snprintf(from->buf, sizeof(from->buf), "message %d", n);
	memset(to->buf, 0, sizeof(to->buf));
	CHECK(!rdma_post_send(from->id, NULL, from->buf, sizeof(from->buf), from->mr, 0));
	CHECK(rdma_get_recv_comp(to->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!strcmp(from->buf, to->buf));
	CHECK(!rdma_post_recv(to->id, NULL, to->buf, sizeof(to->buf), to->mr));
	CHECK(rdma_get_send_comp(from->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
}

static void nothing_happened(struct rdma_event_channel *ch)
{
	struct pollfd wait = { .fd = ch->fd, .events = POLLIN };
	CHECK(poll(&wait, 1, 20) == 0);
}

static char *areas[AREAS];

/* Runs in the child before the library's handler. The kernel places these areas where the parent has mappings
 * that the child does not inherit. */
static void map_areas(void)
{
	for (int i = 0; i < AREAS; i++) {
		areas[i] = mmap(NULL, AREA_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(areas[i] != MAP_FAILED);
		memset(areas[i], i, AREA_SIZE);
	}
}

/* The library has left the child's own areas alone. */
static void check_areas(void)
{
	for (int i = 0; i < AREAS; i++) {
		for (int at = 0; at < AREA_SIZE; at++)
			CHECK(areas[i][at] == i);
		CHECK(!munmap(areas[i], AREA_SIZE));
	}
}

static pid_t forked(void)
{
	fflush(stdout);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		check_areas();
	return pid;
}

static void succeeds(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		printf("the child ended with status %#x\n", status);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

static struct end client, server;
static atomic_int stop, messages;

static void *traffic(void *unused)
{
	while (!stop)
		message(&client, &server, messages++);
	return unused;
}

/* Calls what the program's destructors would call in the child. */
static void use_inherited_objects(struct rdma_cm_id *listener)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(client.ch, &event) == -1);
	rdma_post_send(client.id, NULL, client.buf, sizeof(client.buf), client.mr, 0);
	rdma_disconnect(client.id);
	rdma_dereg_mr(client.mr);
	rdma_destroy_qp(client.id);
	rdma_destroy_id(client.id);
	rdma_destroy_id(listener);
	exit(0);
}

static void open_again(uint16_t port, int outlive)
{
	struct end mine = { 0 };
	struct ibv_wc wc;
	begin(&mine, port);
	acknowledge(mine.ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(mine.id->verbs != client.id->verbs);
	strcpy(mine.buf, "from the child");
	CHECK(!rdma_post_send(mine.id, NULL, mine.buf, sizeof(mine.buf), mine.mr, 0));
	CHECK(rdma_get_send_comp(mine.id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	if (outlive)
		pause();
	/* Does not disconnect: the exit handler of the library does. */
	exit(0);
}

static void serve_child(struct rdma_cm_id *listener, uint16_t port)
{
	struct end end = { 0 };
	struct ibv_wc wc;
	pid_t pid = forked();
	if (!pid)
		open_again(port, 0);
	accept_one(&end, listener);
	acknowledge(end.ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(end.id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(end.buf,
		"from the child"));
	struct rdma_cm_event *event = expect(end.ch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == end.id && !rdma_ack_cm_event(event) && !rdma_disconnect(end.id));
	succeeds(pid);
	CHECK(!rdma_dereg_mr(end.mr));
	rdma_destroy_qp(end.id);
	CHECK(!rdma_destroy_id(end.id));
}

/*
 * A listener that accepts a connection, forks, and is killed. Its child lives on; it must not keep the port
 * in use or the connection alive.
 */
static void killed_listener(int out)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *listener = ch ? listen_at(ch, 0) : NULL;
	uint16_t port = listener ? rdma_get_src_port(listener) : 0;
	struct end end = { 0 };

	CHECK(write(out, &port, sizeof(port)) == sizeof(port));
	if (!port)
		exit(0);
	accept_one(&end, listener);
	acknowledge(ch, RDMA_CM_EVENT_ESTABLISHED);
	/* The grandchild says when it no longer has the port. */
	if (!forked()) {
		pid_t grandchild = getpid();
		CHECK(write(out, &grandchild, sizeof(grandchild)) == sizeof(grandchild));
	}
	for (;;)
		pause();
}

static void grandchild_lives_longer(void)
{
	struct end end = { 0 };
	int fds[2];
	uint16_t port;
	pid_t grandchild;

	CHECK(!pipe(fds));
	pid_t pid = forked();
	if (!pid)
		killed_listener(fds[1]);
	CHECK(read(fds[0], &port, sizeof(port)) == sizeof(port));
	if (!port)
		exit(NO_DEVICE);
	begin(&end, port);
	acknowledge(end.ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(read(fds[0], &grandchild, sizeof(grandchild)) == sizeof(grandchild));
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	acknowledge(end.ch, RDMA_CM_EVENT_DISCONNECTED);
	struct rdma_cm_id *listener = listen_at(end.ch, port);
	CHECK(listener);
	CHECK(!kill(grandchild, 0) && !kill(grandchild, SIGKILL));
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_qp(end.id);
	CHECK(!rdma_destroy_id(end.id));
	exit(0);
}

static atomic_int waits_for_fork, fork_began, fork_us;

/* Runs after the library's handler. A thread that waits for a fork opens the device while it goes on. */
static void in_fork(void)
{
	fork_began = 1;
	if (waits_for_fork)
		usleep(fork_us);
}

/* Runs before the library is loaded, which then registers its handlers. */
static void at_start(void)
{
	CHECK(!pthread_atfork(in_fork, NULL, map_areas));
}

__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = at_start;

/* Opens the device and starts its engine. */
static void *open_device(void *unused)
{
	while (waits_for_fork && !fork_began)
		usleep(10);
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	CHECK(context);
	ibv_free_device_list(devices);
	CHECK(ibv_alloc_pd(context) && listen_at(rdma_create_event_channel(), 0));
	return unused;
}

/*
 * Processes that fork while a thread of theirs opens the device, each a little later than the one before: the
 * child opens the device, too. In every second one the thread begins in the middle of the fork.
 */
static void forks_while_a_thread_opens(void)
{
	for (int i = 0; i < FORKS; i++) {
		pid_t pid = forked();
		if (!pid) {
			pthread_t thread;
			fork_began = 0;
			waits_for_fork = i % 2;
			fork_us = i * 50;
			CHECK(!pthread_create(&thread, NULL, open_device, NULL));
			if (!waits_for_fork)
				usleep(i * 400);
			pid = forked();
			if (!pid) {
				/* The child ends by a signal if it waits for a lock. A busy machine takes many seconds. */
				alarm(60);
				open_device(NULL);
				_exit(0);
			}
			succeeds(pid);
			CHECK(!pthread_join(thread, NULL));
			_exit(0);
		}
		succeeds(pid);
	}
}

/* Returns the number of netlink sockets of this process. */
static int netlink_sockets(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++) {
		int domain;
		socklen_t size = sizeof(domain);
		count += !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_NETLINK;
	}
	return count;
}

/* Each of three generations opens the device, and has its own netlink socket and none of its parent. */
static void children_open_the_device(int generations)
{
	pid_t pid = forked();
	if (!pid) {
		open_device(NULL);
		CHECK(netlink_sockets() == 1);
		if (generations > 1)
			children_open_the_device(generations - 1);
		_exit(0);
	}
	succeeds(pid);
}

int main(void)
{
	int status;
	pid_t pid = forked();
	if (!pid)
		grandchild_lives_longer();
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	if (WEXITSTATUS(status))
		return WEXITSTATUS(status);
	forks_while_a_thread_opens();
	children_open_the_device(3);

	struct rdma_event_channel *ch = rdma_create_event_channel();
	CHECK(ch);
	struct rdma_cm_id *listener = listen_at(ch, 0);
	CHECK(listener);
	uint16_t port = rdma_get_src_port(listener);
	begin(&client, port);
	accept_one(&server, listener);
	acknowledge(client.ch, RDMA_CM_EVENT_ESTABLISHED);
	acknowledge(ch, RDMA_CM_EVENT_ESTABLISHED);
	message(&client, &server, messages++);

	/* One that sees changes, one for questions: the child would read the parent's answers. */
	CHECK(netlink_sockets() == 2);
	pid = forked();
	if (!pid) {
		CHECK(netlink_sockets() == 0);
		exit(0);
	}
	succeeds(pid);
	message(&client, &server, messages++);
	pid = forked();
	if (!pid)
		use_inherited_objects(listener);
	succeeds(pid);
	message(&client, &server, messages++);
	nothing_happened(client.ch);
	nothing_happened(ch);

	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, traffic, NULL));
	for (int i = 0; i < FORKS; i++) {
		int before = messages;
		pid = forked();
		if (!pid)
			exit(0);
		succeeds(pid);
		while (messages < before + 10)
			usleep(100);
	}
	serve_child(listener, port);
	stop = 1;
	CHECK(!pthread_join(thread, NULL));
	serve_child(listener, port);
	message(&client, &server, messages++);
	nothing_happened(client.ch);
	printf("ok after %d messages\n", messages);
	return 0;
}
