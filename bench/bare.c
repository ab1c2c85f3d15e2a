/* Ping-pong of bursts over UDP sockets that both ends poll: the kernel's share of the latency, which no
 * device on UDP sockets can beat. A burst is a packet of 40 bytes (a WRITE of 8 bytes), or that and one of
 * 20 bytes (its acknowledgement).
 *
 *     bare PORT PACKETS                   server: replies with bursts of PACKETS (1 or 2) until it is killed
 *     bare PORT PACKETS SERVER SECONDS    client: prints the median of half a round trip in us
 */
#include "common.h"
#include <arpa/inet.h>
#include <math.h>
#include <netinet/udp.h>
#include <sys/socket.h>

enum { WRITE_LEN = 40, ACK_LEN = 20, SAMPLES_MAX = 4 << 20, GIVE_UP_NS = 1000000000 };

static char burst[WRITE_LEN + ACK_LEN], arrived[65536];
static int packets, udp;
static struct sockaddr_in peer;

static void say(void)
{
	union { char bytes[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr first; } control = { .first = {
		.cmsg_len = CMSG_LEN(sizeof(uint16_t)), .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT } };
	*(uint16_t *)CMSG_DATA(&control.first) = WRITE_LEN;
	struct iovec piece = { burst, packets == 2 ? WRITE_LEN + ACK_LEN : WRITE_LEN };
	struct msghdr message = {
		.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1 };
	if (packets == 2) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
	}
	check(sendmsg(udp, &message, MSG_DONTWAIT) < 0, "sendmsg");
}

/* Polls for a burst; returns 0 at the time limit. */
static int hear(double until)
{
	char control[256];
	struct iovec piece = { arrived, sizeof arrived };
	do {
		for (int i = 0; i < 1000; i++) {
			struct msghdr message = {
				.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1,
				.msg_control = control, .msg_controllen = sizeof control };
			if (recvmsg(udp, &message, MSG_DONTWAIT) > 0)
				return 1;
		}
	} while (now_ns() < until);
	return 0;
}

static int ascending(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
	return (left > right) - (left < right);
}

int main(int count, char **words)
{
	check(count != 3 && count != 5, "bare PORT PACKETS [SERVER SECONDS]");
	int yes = 1, is_server = count == 3, port = atoi(words[1]);
	packets = atoi(words[2]);
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes) ||
	      setsockopt(udp, IPPROTO_IP, IP_PKTINFO, &yes, sizeof yes), "UDP socket");
	if (is_server) {
		/* The benchmark waits until this port listens. */
		int tcp = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
		check(bind(udp, (struct sockaddr *)&any, sizeof any) || bind(tcp, (struct sockaddr *)&any, sizeof any) ||
		      listen(tcp, 1), "bind");
		for (;;)
			if (hear(INFINITY))
				say();
	}
	struct sockaddr_in server = any;
	check(inet_aton(words[3], &server.sin_addr) == 0, words[3]);
	uint32_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
	check(!samples, "memory");
	int taken = 0;
	double end = now_ns() + atof(words[4]) * 1e9, begun;
	for (; (begun = now_ns()) < end && taken < SAMPLES_MAX; taken++) {
		peer = server;
		say();
		if (!hear(begun + GIVE_UP_NS)) {
			fprintf(stderr, "no answer\n");
			return 1;
		}
		samples[taken] = now_ns() - begun;
	}
	qsort(samples, taken, sizeof *samples, ascending);
	printf("%.3f\n", samples[taken / 2] / 2e3);
	return 0;
}
