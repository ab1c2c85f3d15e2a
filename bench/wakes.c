/* The messages of one I/O between two programs that sleep until one arrives: what the kernel takes for them,
 * with no device, no disk and no protocol. A thread of the server stands for the one that reads the disk.
 * Over TCP the thread of the application sleeps on the socket. Over iSER a thread of the device does; it
 * acknowledges a SEND, and wakes up the application by an eventfd, as behind a completion channel. To write,
 * the server READs the data.
 *
 *     wakes PORT tcp|read|write                   server: replies until it is killed
 *     wakes PORT tcp|read|write SERVER SECONDS    client: prints the median time of an I/O in us
 */
#define _GNU_SOURCE
#include "datagrams.h"
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The first byte of a datagram. Bytes: as of a 4 KiB I/O of tgt and libiscsi, headers and ICRC included. */
enum { COMMAND = 1, ACK, READ_REQUEST, DATA_BEGINS, DATA, RESPONSE };
enum { COMMAND_BYTES = 92, ACK_BYTES = 20, READ_BYTES = 32, DATA_BYTES = 4 * 1056 + 92, PACKET = 1056 };
enum { SAMPLES_MAX = 1 << 20 };

static int is_server, is_tcp, is_write;
static int completions, disk_work, disk_done;

static void signal_fd(int fd)
{
	uint64_t one = 1;
	check(write(fd, &one, sizeof one) < 0, "write");
}

/* Sleeps until this eventfd is signaled. */
static void wait_fd(int fd)
{
	struct pollfd ready = { fd, POLLIN, 0 };
	uint64_t count;
	check(poll(&ready, 1, -1) < 0 || read(fd, &count, sizeof count) < 0, "poll");
}

static void say(char kind, int bytes)
{
	char message[DATA_BYTES] = { kind };
	send_burst(message, bytes, PACKET, 0);
}

/* Sleeps until a message is here; returns its kind. */
static char hear(void)
{
	struct pollfd socket = { udp, POLLIN, 0 };
	do
		check(poll(&socket, 1, -1) < 0, "poll");
	while (receive_burst() < 0);
	return arrived[0];
}

static void *device(void *unused)
{
	for (;;) {
		char kind = hear();
		if (kind == COMMAND || kind == RESPONSE)
			say(ACK, ACK_BYTES);
		if (kind == READ_REQUEST) {
			/* The first and the last of its four packets are 4 bytes longer than the others. */
			say(DATA_BEGINS, 1044 + 1040);
			say(DATA_BEGINS, 1040);
			say(DATA, 1044);
		} else if (kind != ACK && kind != DATA_BEGINS)
			signal_fd(completions);
	}
	return unused;
}

static void *disk(void *unused)
{
	for (;;) {
		wait_fd(disk_work);
		signal_fd(disk_done);
	}
	return unused;
}

/* Sleeps until a message for the application is here. */
static void wait_for_message(void)
{
	if (is_tcp)
		hear();
	else
		wait_fd(completions);
}

static void serve(void)
{
	wait_for_message();
	if (is_write) {
		say(READ_REQUEST, READ_BYTES);
		wait_for_message();
	}
	signal_fd(disk_work);
	wait_fd(disk_done);
	say(RESPONSE, is_write ? COMMAND_BYTES : DATA_BYTES);
}

static void request(void)
{
	say(COMMAND, COMMAND_BYTES);
	wait_for_message();
}

int main(int count, char **words)
{
	check(count != 3 && count != 5, "wakes PORT tcp|read|write [SERVER SECONDS]");
	int yes = 1;
	pthread_t thread;
	is_server = count == 3;
	is_tcp = strcmp(words[2], "tcp") == 0;
	is_write = strcmp(words[2], "write") == 0;
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	completions = eventfd(0, 0), disk_work = eventfd(0, 0), disk_done = eventfd(0, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes), "UDP socket");
	peer = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
	if (is_server)
		serve_at(atoi(words[1]));
	else
		check(inet_aton(words[3], &peer.sin_addr) == 0, words[3]);
	check(is_server && pthread_create(&thread, NULL, disk, NULL), "pthread_create");
	check(!is_tcp && pthread_create(&thread, NULL, device, NULL), "pthread_create");
	if (!is_server) {
		printf("%.1f\n", percentiles_ns(request, atof(words[4]), SAMPLES_MAX).median / 1e3);
		return 0;
	}
	for (;;)
		serve();
}
