/* UDP sockets and samples of the ping-pong programs of this directory, which poll. */
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <sys/socket.h>

static int udp;
static struct sockaddr_in peer;
/* The datagrams that receive_burst() has received. */
static char arrived[65536];

/* Sends these bytes to the peer, in datagrams of `packet` bytes; the last may be shorter. */
static void send_burst(char *bytes, int length, int packet, int flags)
{
	union { char bytes[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr first; } control = { .first = {
		.cmsg_len = CMSG_LEN(sizeof(uint16_t)), .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT } };
	*(uint16_t *)CMSG_DATA(&control.first) = packet;
	struct iovec piece = { bytes, length };
	struct msghdr message = {
		.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1 };
	if (length > packet) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
	}
	check(sendmsg(udp, &message, flags) < 0 && errno != EAGAIN, "sendmsg");
}

/* Looks once for datagrams; returns their bytes, or a negative number if there are none. The peer is then
 * their sender. */
static inline ssize_t receive_burst(void)
{
	static char control[256];
	struct iovec piece = { arrived, sizeof arrived };
	struct msghdr message = {
		.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	return recvmsg(udp, &message, MSG_DONTWAIT);
}

/* Listens on a port of TCP: the benchmark waits for that before it starts the client. */
static inline void listen_at(int port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };
	int yes = 1, tcp = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	check(bind(tcp, (struct sockaddr *)&any, sizeof any) || listen(tcp, 1), "listen");
}

/* Binds the socket to a port of UDP, and listens on the same port of TCP. */
static inline void serve_at(int port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };
	check(bind(udp, (struct sockaddr *)&any, sizeof any), "bind");
	listen_at(port);
}

static int ascending(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
	return (left > right) - (left < right);
}

struct percentiles {
	uint32_t median, p99, p999;
};

/* Measures rounds of `round` for so many seconds, `samples_max` at most; returns percentiles in ns. */
static inline struct percentiles percentiles_ns(void (*round)(void), double seconds, int samples_max)
{
	uint32_t *samples = malloc(samples_max * sizeof *samples);
	check(!samples, "memory");
	int taken = 0;
	double end = now_ns() + seconds * 1e9, begun;
	for (; (begun = now_ns()) < end && taken < samples_max; taken++) {
		round();
		samples[taken] = now_ns() - begun;
	}
	check(!taken, "no time");
	qsort(samples, taken, sizeof *samples, ascending);
	return (struct percentiles){
		samples[taken / 2], samples[taken * 99L / 100], samples[taken * 999L / 1000] };
}
