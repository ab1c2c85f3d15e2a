/* Ping-pong of bursts over UDP sockets that both ends poll: the kernel's share of the latency, which no
 * device on UDP sockets can beat. A burst is a packet of 40 bytes (a WRITE of 8 bytes), or that and one of
 * 20 bytes (its acknowledgement).
 *
 *     bare PORT KIND                   server: replies with bursts until it is killed
 *     bare PORT KIND SERVER SECONDS    client: prints half a round trip in us: median, 99th and 99.9th
 *                                      percentile
 * KIND: the packets of a burst, 1 or 2; device-1, device-2: received as the device does
 */
#define _GNU_SOURCE
#include "datagrams.h"
#include <linux/filter.h>
#include <math.h>
#include <string.h>

enum { WRITE_LEN = 40, ACK_LEN = 20, SAMPLES_MAX = 4 << 20, GIVE_UP_NS = 1000000000 };

static char burst[WRITE_LEN + ACK_LEN];
static int packets;
static struct sockaddr_in server;
/* Of the device: the socket that receives; `udp` sends. */
static int receiver = -1;

static void turn_on(int fd, int level, int option)
{
	int yes = 1;
	check(setsockopt(fd, level, option, &yes, sizeof yes), "setsockopt");
}

/* Receives as the device does: a socket of both families that reports addresses, TOS and TTL, in a group in
 * which a program chooses the socket by the destination QP. */
static int device_receiver(int port)
{
	int fd = socket(AF_INET6, SOCK_DGRAM, 0), no = 0;
	check(fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no), "UDP socket");
	static const int of_v6[] = { IPV6_RECVPKTINFO, IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT };
	for (int i = 0; i < 3; i++)
		turn_on(fd, IPPROTO_IPV6, of_v6[i]);
	turn_on(fd, IPPROTO_IP, IP_RECVTOS);
	turn_on(fd, IPPROTO_IP, IP_RECVTTL);
	turn_on(fd, SOL_UDP, UDP_GRO);
	turn_on(fd, SOL_SOCKET, SO_REUSEPORT);
	struct sock_filter first_socket[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0),
		BPF_STMT(BPF_RET | BPF_A, 0) };
	struct sock_fprog program = { 3, first_socket };
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	check(bind(fd, (struct sockaddr *)&any, sizeof any) ||
	      setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program), "bind");
	return fd;
}

static int device_receives(void)
{
	static char arrived[65536], control[256];
	static struct sockaddr_in6 sender;
	struct iovec piece = { arrived, sizeof arrived };
	struct msghdr message = {
		.msg_name = &sender, .msg_namelen = sizeof sender, .msg_iov = &piece, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	if (recvmsg(receiver, &message, MSG_DONTWAIT) < 0)
		return 0;
	/* An IPv4-mapped address. The sender receives at the same port as this program. */
	memcpy(&server.sin_addr, &sender.sin6_addr.s6_addr[12], sizeof server.sin_addr);
	peer = server;
	return 1;
}

static void say(void)
{
	send_burst(burst, packets == 2 ? WRITE_LEN + ACK_LEN : WRITE_LEN, WRITE_LEN, MSG_DONTWAIT);
}

/* Polls for a burst; returns 0 at the time limit. */
static int hear(double until)
{
	do {
		for (int i = 0; i < 1000; i++)
			if (receiver < 0 ? receive_burst() > 0 : device_receives())
				return 1;
	} while (now_ns() < until);
	return 0;
}

static void ping(void)
{
	peer = server;
	say();
	if (!hear(now_ns() + GIVE_UP_NS)) {
		fprintf(stderr, "no answer\n");
		exit(1);
	}
}

int main(int count, char **words)
{
	check(count != 3 && count != 5, "bare PORT 1|2|device-1|device-2 [SERVER SECONDS]");
	int is_server = count == 3, port = atoi(words[1]), is_device = !strncmp(words[2], "device-", 7);
	packets = atoi(words[2] + (is_device ? 7 : 0));
	check(packets < 1 || packets > 2, "KIND: 1, 2, device-1 or device-2");
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0, "UDP socket");
	turn_on(udp, SOL_UDP, UDP_GRO);
	turn_on(udp, IPPROTO_IP, IP_PKTINFO);
	server = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	if (is_device) {
		receiver = device_receiver(port);
		int probe = IP_PMTUDISC_PROBE;
		check(setsockopt(udp, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof probe), "setsockopt");
	}
	if (is_server) {
		is_device ? listen_at(port) : serve_at(port);
		for (;;)
			if (hear(INFINITY))
				say();
	}
	check(inet_aton(words[3], &server.sin_addr) == 0, words[3]);
	struct percentiles all = percentiles_ns(ping, atof(words[4]), SAMPLES_MAX);
	printf("%.3f %.3f %.3f\n", all.median / 2e3, all.p99 / 2e3, all.p999 / 2e3);
	return 0;
}
