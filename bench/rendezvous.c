/* A ping-pong of messages that the receiver READs, as UCX and MPI exchange large ones, with nothing but the
 * datagrams of it: the kernel's share of the time, which no device on UDP sockets can beat. For each message
 * its sender announces it (40 bytes), the receiver requests it (32 bytes), the sender responds with packets
 * of 1044 bytes, and the receiver says that it has them (40 bytes). Both ends poll. No payload is read,
 * placed or checked, and nothing is repeated: a lost packet ends the run after a second.
 *
 *     rendezvous PORT PACKETS                   server: runs until it is killed
 *     rendezvous PORT PACKETS SERVER SECONDS    client: prints the median time of a message in us
 */
#include "datagrams.h"

enum { SMALL = 40, REQUEST = 32, PACKET = 1044, BURST = 62, SAMPLES_MAX = 1 << 20, GIVE_UP_NS = 1000000000 };

static char payload[BURST * PACKET];
static int packets, is_server;

static void say(int bytes)
{
	send_burst(payload, bytes, PACKET, 0);
}

/* Polls until this many bytes have arrived. The server waits for as long as it takes. */
static void hear(int bytes)
{
	double until = now_ns() + GIVE_UP_NS;
	for (int polls = 1; bytes > 0; polls++) {
		ssize_t got = receive_burst();
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

static void ping_pong(void)
{
	send_message();
	receive_message();
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
	printf("%.1f\n", percentiles_ns(ping_pong, atof(words[4]), SAMPLES_MAX).median / 2e3);
	return 0;
}
