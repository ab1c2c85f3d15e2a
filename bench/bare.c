/* Ping-pong of bursts over UDP sockets that both ends poll: the kernel's share of the latency, which no
 * device on UDP sockets can beat. A burst is a packet of 40 bytes (a WRITE of 8 bytes), or that and one of
 * 20 bytes (its acknowledgement).
 *
 *     bare PORT PACKETS                   server: replies with bursts of PACKETS (1 or 2) until it is killed
 *     bare PORT PACKETS SERVER SECONDS    client: prints half a round trip in us: median, 99th and 99.9th
 *                                         percentile
 */
#include "datagrams.h"
#include <math.h>

enum { WRITE_LEN = 40, ACK_LEN = 20, SAMPLES_MAX = 4 << 20, GIVE_UP_NS = 1000000000 };

static char burst[WRITE_LEN + ACK_LEN];
static int packets;
static struct sockaddr_in server;

static void say(void)
{
	send_burst(burst, packets == 2 ? WRITE_LEN + ACK_LEN : WRITE_LEN, WRITE_LEN, MSG_DONTWAIT);
}

/* Polls for a burst; returns 0 at the time limit. */
static int hear(double until)
{
	do {
		for (int i = 0; i < 1000; i++)
			if (receive_burst() > 0)
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
	check(count != 3 && count != 5, "bare PORT PACKETS [SERVER SECONDS]");
	int yes = 1, is_server = count == 3, port = atoi(words[1]);
	packets = atoi(words[2]);
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes) ||
	      setsockopt(udp, IPPROTO_IP, IP_PKTINFO, &yes, sizeof yes), "UDP socket");
	if (is_server) {
		serve_at(port);
		for (;;)
			if (hear(INFINITY))
				say();
	}
	server = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	check(inet_aton(words[3], &server.sin_addr) == 0, words[3]);
	struct percentiles all = percentiles_ns(ping, atof(words[4]), SAMPLES_MAX);
	printf("%.3f %.3f %.3f\n", all.median / 2e3, all.p99 / 2e3, all.p999 / 2e3);
	return 0;
}
