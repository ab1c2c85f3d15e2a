/* A ping-pong of eager messages over UDP sockets that both ends poll, in the datagrams of a device: the
 * kernel's share of the time, which no device on UDP sockets can beat. A message is packets of at most 1044
 * bytes in one burst. With an acknowledgement, which MPI_Send waits for when UCX did not copy the message, a
 * datagram of 20 bytes follows in a system call of its own: only the last packet of a burst may be shorter.
 * No payload is read, placed or checked.
 *
 *     messages PORT BYTES ACKS                   server: replies until it is killed
 *     messages PORT BYTES ACKS SERVER SECONDS    client: prints the median time of a message in us
 * BYTES: of the datagrams of a message; ACKS: 0, or 1 with acknowledgements
 */
#include "datagrams.h"

enum { ACK = 20, PACKET = 1044, BYTES_MAX = 62 * PACKET, SAMPLES_MAX = 4 << 20, GIVE_UP_NS = 1000000000 };

static char payload[BYTES_MAX];
static int bytes, acks, is_server;

static void say(void)
{
	send_burst(payload, bytes, PACKET, 0);
	if (acks)
		send_burst(payload, ACK, PACKET, 0);
}

/* Polls until a message, and an acknowledgement, have arrived. The server waits for as long as it takes. */
static void hear(void)
{
	double until = now_ns() + GIVE_UP_NS;
	int missing = bytes + acks * ACK;
	for (int polls = 1; missing > 0; polls++) {
		ssize_t got = receive_burst();
		if (got > 0)
			missing -= got;
		else if (polls % 1000 == 0 && !is_server && now_ns() > until) {
			fprintf(stderr, "a packet was lost\n");
			exit(1);
		}
	}
}

static void round_trip(void)
{
	say();
	hear();
}

int main(int count, char **words)
{
	check(count != 4 && count != 6, "messages PORT BYTES ACKS [SERVER SECONDS]");
	int yes = 1;
	is_server = count == 4;
	bytes = atoi(words[2]);
	acks = atoi(words[3]);
	check(bytes < 1 || bytes > BYTES_MAX || acks < 0 || acks > 1, "BYTES, ACKS");
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes), "UDP socket");
	if (is_server) {
		serve_at(atoi(words[1]));
		for (;;) {
			hear();
			say();
		}
	}
	peer = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
	check(inet_aton(words[4], &peer.sin_addr) == 0, words[4]);
	printf("%.2f\n", percentiles_ns(round_trip, atof(words[5]), SAMPLES_MAX).median / 2e3);
	return 0;
}
