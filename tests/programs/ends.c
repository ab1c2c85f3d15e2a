/*
 * ends ADDRESS: at each step of a connection, one end stops in each way, in a process of its own; the other
 *     end says what it gets within two seconds. The steps of a datagram service follow. ends ADDRESS STEP WAY
 *     PORT PORT_SPACE is the process that stops.
 */
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cm.h"

/* What the process that stops has done last. It is the server from `unread` to `left`, else the client. */
enum step { unread, read_, refused, replied, accepted, left, asked, answered, connected, closed, steps };
static const char *const names[] = { "a request is unread", "a request is read", "rdma_accept fails",
	"a reply is sent", "the server is established", "the client has disconnected", "a request is sent",
	"a reply is unread", "the client is established", "the server has disconnected" };
enum way { destroys, exits, closes, ways };
static const char *const verbs[] = { "destroys its id", "exits", "closes its channel" };

extern char **environ;
static struct rdma_event_channel *channel;
static int to, from;
/* Connections, or datagrams. */
static enum rdma_port_space ps = RDMA_PS_TCP;

static struct rdma_cm_event *event(int ms)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *got;

	if (poll(&fd, 1, ms) != 1)
		return NULL;
	MUST(!rdma_get_cm_event(channel, &got));
	return got;
}

static struct rdma_cm_id *expect(int kind)
{
	struct rdma_cm_event *got = event(8000);
	struct rdma_cm_id *id;

	MUST(got);
	if ((int)got->event != kind)
		printf("%s instead of %s\n", rdma_event_str(got->event), rdma_event_str(kind));
	MUST((int)got->event == kind);
	id = got->id;
	rdma_ack_cm_event(got);
	return id;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

	if (ps == RDMA_PS_UDP)
		attr.qp_type = IBV_QPT_UD;
	MUST(!rdma_create_qp(id, NULL, &attr));
}

static int accepts(struct rdma_cm_id *id, int length)
{
	static char data[256];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = length };

	return rdma_accept(id, &param);
}

static struct rdma_cm_id *listener(const char *address)
{
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, ps));
	MUST(!rdma_bind_addr(id, at(address, 0)) && !rdma_listen(id, 4));
	return id;
}

static struct rdma_cm_id *asks(const char *address, int port)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, ps));
	MUST(!rdma_resolve_addr(id, NULL, at(address, port), 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(!rdma_resolve_route(id, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(id);
	MUST(!rdma_connect(id, &param));
	return id;
}

/* Tells the other process a number, or waits for its next one. */
static void tell(int number)
{
	MUST(write(to, &number, sizeof(number)) == sizeof(number));
}

static int told(void)
{
	int number;

	MUST(read(from, &number, sizeof(number)) == sizeof(number));
	return number;
}

static void readable(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	MUST(poll(&fd, 1, 8000) == 1);
}

/* Comes to a step, and stops when the other process says so. */
static void stopping(const char *address, enum step step, enum way way, int port)
{
	struct rdma_cm_id *id, *listens = NULL;

	MUST((to = dup(1)) > 0 && dup2(2, 1) == 1);
	from = 0;
	if (step <= left) {
		listens = listener(address);
		tell(ntohs(rdma_get_src_port(listens)));
		readable();
		id = step == unread ? listens : expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	} else {
		id = asks(address, port);
	}
	if (step >= refused && step <= left)
		make_qp(id);
	if (step == refused)
		MUST(accepts(id, 255) == -1 && errno == EINVAL);
	if (step >= replied && step <= left)
		MUST(!accepts(id, 0));
	if (step == answered)
		readable();
	if (step == accepted || step == left || step >= connected)
		expect(RDMA_CM_EVENT_ESTABLISHED);
	tell(step);
	told();
	if (step == left || step == closed)
		expect(RDMA_CM_EVENT_DISCONNECTED);
	if (way == exits)
		exit(0);
	if (way == closes)
		rdma_destroy_event_channel(channel);
	else if (step != refused)
		MUST(!rdma_destroy_id(id));
	tell(step);
	/* Until the other process has seen what comes of it. */
	told();
	_exit(0);
}

static void start(const char *address, enum step step, enum way way, int port, pid_t *pid)
{
	char words[4][12], *argv[] = { "ends", (char *)address, words[0], words[1], words[2], words[3], NULL };
	posix_spawn_file_actions_t actions;
	int down[2], up[2];

	sprintf(words[0], "%d", step);
	sprintf(words[1], "%d", way);
	sprintf(words[2], "%d", port);
	sprintf(words[3], "%d", ps);
	MUST(!pipe(down) && !pipe(up) && !posix_spawn_file_actions_init(&actions));
	MUST(!posix_spawn_file_actions_adddup2(&actions, down[0], 0));
	MUST(!posix_spawn_file_actions_adddup2(&actions, up[1], 1));
	for (int i = 0; i < 2; i++) {
		MUST(!posix_spawn_file_actions_addclose(&actions, down[i]));
		MUST(!posix_spawn_file_actions_addclose(&actions, up[i]));
	}
	MUST(!posix_spawn(pid, "/proc/self/exe", &actions, NULL, argv, environ));
	close(down[0]);
	close(up[1]);
	to = down[1];
	from = up[0];
}

static void row(const char *address, enum step step, enum way way)
{
	struct rdma_cm_id *id = NULL, *listens = NULL;
	struct rdma_cm_event *got;
	int number;
	pid_t pid;

	MUST((channel = rdma_create_event_channel()));
	if (step <= left) {
		start(address, step, way, 0, &pid);
		id = asks(address, told());
	} else {
		listens = listener(address);
		start(address, step, way, ntohs(rdma_get_src_port(listens)), &pid);
		id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		make_qp(id);
		if (step > asked)
			MUST(!accepts(id, 0));
	}
	if (step == accepted || step == left)
		expect(RDMA_CM_EVENT_ESTABLISHED);
	told();
	if (step >= connected)
		expect(RDMA_CM_EVENT_ESTABLISHED);
	if (step == left || step == closed)
		MUST(!rdma_disconnect(id));
	tell(step);
	/* It has stopped, or has ended. */
	MUST(read(from, &number, sizeof(number)) >= 0);
	if (step == asked) {
		/* A request that was withdrawn has no event before it is accepted; then accepting it fails. */
		usleep(500000);
		printf("%s, the client %s: %s\n", names[step], verbs[way], accepts(id, 0) ? "accept fails" :
			"accept succeeds");
	} else {
		got = event(2000);
		if (step == replied && got && got->event == RDMA_CM_EVENT_ESTABLISHED) {
			/* The client has read the reply before the rejection arrived. */
			rdma_ack_cm_event(got);
			got = event(2000);
		}
		printf("%s, the %s %s: %s\n", names[step], step <= left ? "server" : "client", verbs[way],
			got ? rdma_event_str(got->event) : "nothing");
		if (got)
			rdma_ack_cm_event(got);
	}
	if (way != exits)
		tell(step);
	close(to);
	close(from);
	MUST(waitpid(pid, NULL, 0) == pid);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	if (listens)
		rdma_destroy_id(listens);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 6) {
		ps = atoi(argv[5]);
		MUST((channel = rdma_create_event_channel()));
		stopping(argv[1], atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
	}
	MUST(argc == 2);
	for (enum step step = 0; step < steps; step++)
		for (enum way way = 0; way < ways; way++)
			row(argv[1], step, way);
	/* A datagram service has no further steps. */
	ps = RDMA_PS_UDP;
	for (enum step step = 0; step <= refused; step++)
		for (enum way way = 0; way < ways; way++)
			row(argv[1], step, way);
	return 0;
}
