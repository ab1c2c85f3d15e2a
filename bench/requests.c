/* Requests of a storage protocol over UDP sockets that both ends poll, in the datagrams of a device: the
 * kernel's share of the time, which no device on UDP sockets can beat. A message is packets of at most PACKET
 * bytes, which leave in one burst. Only the last packet of a burst may be shorter than the others: messages
 * of one packet share a burst, and a message of several packets needs one of its own. No ACK is sent, and no
 * payload is read, placed or checked.
 *
 *     requests PORT REQUEST REPLY PACKET                         server: replies until it is killed
 *     requests PORT REQUEST REPLY PACKET DEPTH SERVER SECONDS    client: prints the requests per second
 * REQUEST, REPLY: bytes of the datagrams of a message; DEPTH: requests in flight
 */
#include "datagrams.h"

enum { BURST_MAX = 62 * 1044, GIVE_UP_NS = 1000000000 };

static char payload[BURST_MAX];
static int packet, is_server;

/* Sends so many messages of `bytes` bytes. */
static void say(int messages, int bytes)
{
	if (bytes > packet) {
		for (; messages > 0; messages--)
			send_burst(payload, bytes, packet, 0);
		return;
	}
	int fit = BURST_MAX / bytes, most = fit < 62 ? fit : 62;
	for (int now; messages > 0; messages -= now) {
		now = messages < most ? messages : most;
		send_burst(payload, now * bytes, bytes, 0);
	}
}

/* Polls until messages have arrived completely; returns how many. The server waits for ever. */
static int hear(int bytes)
{
	static int partial;
	double until = now_ns() + GIVE_UP_NS;
	for (int polls = 1;; polls++) {
		ssize_t got;
		int any = 0;
		/* All that is here, as a device does. */
		for (int batch = 0; batch < 16 && (got = receive_burst()) > 0; batch++)
			partial += got, any = 1;
		if (any && partial >= bytes) {
			int messages = partial / bytes;
			partial %= bytes;
			return messages;
		}
		if (polls % 1000 == 0 && !is_server && now_ns() > until) {
			fprintf(stderr, "a packet was lost\n");
			exit(1);
		}
	}
}

int main(int count, char **words)
{
	check(count != 5 && count != 8, "requests PORT REQUEST REPLY PACKET [DEPTH SERVER SECONDS]");
	int yes = 1, buffer = 4 << 20, request = atoi(words[2]), reply = atoi(words[3]);
	is_server = count == 5;
	packet = atoi(words[4]);
	check(packet < 1 || request < 1 || reply < 1 || request > BURST_MAX || reply > BURST_MAX, "bytes");
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes) ||
	      setsockopt(udp, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer), "UDP socket");
	if (is_server) {
		serve_at(atoi(words[1]));
		for (;;)
			say(hear(request), reply);
	}
	peer = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
	check(inet_aton(words[6], &peer.sin_addr) == 0, words[6]);
	double begun = now_ns(), end = begun + atof(words[7]) * 1e9;
	long done = 0;
	say(atoi(words[5]), request);
	while (now_ns() < end) {
		int replies = hear(reply);
		done += replies;
		say(replies, request);
	}
	printf("%.0f\n", done / ((now_ns() - begun) / 1e9));
	return 0;
}
