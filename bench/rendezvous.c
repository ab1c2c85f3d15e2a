/* A ping-pong of messages that the receiver READs, as UCX and MPI exchange large ones, with nothing but the
 * datagrams of it: the kernel's share of the time, which no device on UDP sockets can beat. For each message
 * its sender announces it (40 bytes), the receiver requests it (32 bytes), the sender responds with packets
 * of 1044 bytes, and the receiver says that it has them (40 bytes). Both ends poll. No payload is read,
 * placed or checked, and nothing is repeated: a lost packet ends the run after a second.
 *
 *     rendezvous PORT PACKETS                   server: runs until it is killed
 *     rendezvous PORT PACKETS SERVER SECONDS    client: prints the median time of a message in us
 */
#include "common.h"
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { SMALL = 40, REQUEST = 32, PACKET = 1044, BURST = 62, SAMPLES_MAX = 1 << 20, GIVE_UP_NS = 1000000000 };

static char payload[BURST * PACKET], arrived[65536];
static int packets, udp, is_server;
static struct sockaddr_in peer;

static void say(int bytes)
{
	union { char bytes[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr first; } control = { .first = {
		.cmsg_len = CMSG_LEN(sizeof(uint16_t)), .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT } };
	*(uint16_t *)CMSG_DATA(&control.first) = PACKET;
	struct iovec piece = { payload, bytes };
	struct msghdr message = {
		.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1 };
	if (bytes > PACKET) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
	}
	check(sendmsg(udp, &message, 0) < 0, "sendmsg");
}

/* Polls until this many bytes have arrived. The server waits for as long as it takes. */
static void hear(int bytes)
{
	double until = now_ns() + GIVE_UP_NS;
	char control[256];
	struct iovec piece = { arrived, sizeof arrived };
	for (int polls = 1; bytes > 0; polls++) {
		struct msghdr message = {
			.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1,
			.msg_control = control, .msg_controllen = sizeof control };
		ssize_t got = recvmsg(udp, &message, MSG_DONTWAIT);
		if (got > 0)
			bytes -= got;
		else if (polls % 1000 == 0 && !is_server && now_ns() > until) {
			fprintf(stderr, "a packet was lost\n");
			exit(1);
		}
	}
}

static void send_message(void)
{
	say(SMALL);
	hear(REQUEST);
	for (int left = packets; left > 0; left -= BURST)
		say((left < BURST ? left : BURST) * PACKET);
	hear(SMALL);
}

static void receive_message(void)
{
	hear(SMALL);
	say(REQUEST);
	hear(packets * PACKET);
	say(SMALL);
}

static int ascending(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
	return (left > right) - (left < right);
}

int main(int count, char **words)
{
	check(count != 3 && count != 5, "rendezvous PORT PACKETS [SERVER SECONDS]");
	int yes = 1, room = 4 << 20;
	is_server = count == 3;
	packets = atoi(words[2]);
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes) ||
	      setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) ||
	      setsockopt(udp, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room), "UDP socket");
	if (is_server) {
		check(bind(udp, (struct sockaddr *)&any, sizeof any), "bind");
		for (;;) {
			receive_message();
			send_message();
		}
	}
	peer = any;
	check(inet_aton(words[3], &peer.sin_addr) == 0, words[3]);
	uint32_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
	check(!samples, "memory");
	int taken = 0;
	double end = now_ns() + atof(words[4]) * 1e9, begun;
	for (; (begun = now_ns()) < end && taken < SAMPLES_MAX; taken++) {
		send_message();
		receive_message();
		samples[taken] = now_ns() - begun;
	}
	check(!taken, "no time");
	qsort(samples, taken, sizeof *samples, ascending);
	printf("%.1f\n", samples[taken / 2] / 2e3);
	return 0;
}
