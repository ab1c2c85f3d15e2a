/* What the sizes of packets cost bulk data over UDP sockets, without verbs. The first and the last packet
 * of a READ response are 4 bytes longer than those between them (AETH, IBA 9.7.5.1.8), so a message of 64
 * packets leaves as three segmented datagrams; the packets of a WRITE are equal. Both ends copy and sum
 * each byte once, as the device does for its ICRC. The receiver grants a window of messages, as a device
 * does.
 *
 *     responses PORT KIND                   server: receives until it is killed
 *     responses PORT KIND SERVER SECONDS    client: prints the GB/s that arrived
 * KIND: equal, or longer: the first and the last packet of a message are
 */
#include "datagrams.h"
#include <string.h>

enum { PACKETS = 64, PAYLOAD = 1024, HEADERS = 16, LONGER = 4, BURST = 62, WINDOW = 8 };
enum { GIVE_UP_NS = 1000000000 };

static char message[PACKETS * (PAYLOAD + HEADERS + LONGER)], staged[sizeof message];
static uint64_t sum;

static void touch(const char *from, char *to, size_t length)
{
	memcpy(to, from, length);
	for (size_t i = 0; i + 8 <= length; i += 8)
		sum += *(uint64_t *)(to + i);
}

static void send_message(int longer)
{
	int packet = PAYLOAD + HEADERS;
	touch(message, staged, PACKETS * packet);
	if (longer) {
		send_burst(staged, packet + LONGER, packet + LONGER, 0);
		send_burst(staged, (PACKETS - 2) * packet, packet, 0);
		send_burst(staged, packet + LONGER, packet + LONGER, 0);
	} else {
		send_burst(staged, BURST * packet, packet, 0);
		send_burst(staged, (PACKETS - BURST) * packet, packet, 0);
	}
}

/* Copies what arrives; answers with the number of messages so far. */
static void serve(void)
{
	static char arrived[65536], placed[65536];
	uint64_t bytes = 0, messages = 0, each = PACKETS * (PAYLOAD + HEADERS);
	for (;;) {
		struct iovec piece = { arrived, sizeof arrived };
		struct msghdr header = {
			.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &piece, .msg_iovlen = 1 };
		ssize_t length = recvmsg(udp, &header, MSG_DONTWAIT);
		if (length <= 0)
			continue;
		if (length == 1) {
			bytes = messages = 0;
			continue;
		}
		touch(arrived, placed, length);
		bytes += length;
		if (bytes / each > messages) {
			messages = bytes / each;
			sendto(udp, &messages, sizeof messages, MSG_DONTWAIT, (struct sockaddr *)&peer, sizeof peer);
		}
	}
}

int main(int count, char **words)
{
	check(count != 3 && count != 5, "responses PORT equal|longer [SERVER SECONDS]");
	int yes = 1, port = atoi(words[1]), room = 16 << 20;
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	check(udp < 0 || setsockopt(udp, SOL_UDP, UDP_GRO, &yes, sizeof yes), "UDP socket");
	setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
	setsockopt(udp, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
	if (count == 3) {
		serve_at(port);
		serve();
	}
	int longer = !strcmp(words[2], "longer");
	struct sockaddr_in server = { .sin_family = AF_INET, .sin_port = htons(port) };
	check(inet_pton(AF_INET, words[3], &server.sin_addr) != 1, "SERVER");
	peer = server;
	memset(message, 1, sizeof message);
	char start_over = 0;
	check(sendto(udp, &start_over, 1, 0, (struct sockaddr *)&peer, sizeof peer) < 0, "sendto");
	uint64_t sent = 0, acknowledged = 0;
	double begun = now_ns(), end = begun + atof(words[4]) * 1e9, heard = begun;
	while (now_ns() < end) {
		if (sent < acknowledged + WINDOW) {
			send_message(longer);
			sent++;
		}
		uint64_t number;
		if (recv(udp, &number, sizeof number, MSG_DONTWAIT) == sizeof number) {
			acknowledged = number > acknowledged ? number : acknowledged;
			heard = now_ns();
		}
		check(now_ns() - heard > GIVE_UP_NS, "no answer: a datagram was lost");
	}
	printf("%.3f\n", acknowledged * (double)PACKETS * PAYLOAD / (now_ns() - begun));
	return sum == 0;
}
