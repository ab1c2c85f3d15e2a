/*
 * datagrams ADDRESS...: rsockets without an address of their own exchange datagrams over each of these
 *     addresses of this host, which are of several devices. The first goes over UDP, the others over queue
 *     pairs.
 */
#include <poll.h>
#include <rdma/rsocket.h>

#include "cm.h"

#define MESSAGES 8

/* Receives a datagram with this text; returns its source. */
static struct sockaddr_in receive(int socket, const char *text)
{
	struct pollfd fd = { .fd = socket, .events = POLLIN };
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	char got[64] = "";

	MUST(rpoll(&fd, 1, 5000) == 1);
	MUST(rrecvfrom(socket, got, sizeof(got), 0, (struct sockaddr *)&from, &length) > 0 && !strcmp(got, text));
	return from;
}

int main(int argc, char **argv)
{
	int server = rsocket(AF_INET, SOCK_DGRAM, 0), client = rsocket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in bound, from;
	socklen_t length = sizeof(bound);
	char text[64], source[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(server >= 0 && client >= 0 && !rbind(server, at("0.0.0.0", 0), sizeof(bound)));
	MUST(!rgetsockname(server, (struct sockaddr *)&bound, &length));
	for (int i = 0; i < MESSAGES; i++)
		for (int to = 1; to < argc; to++) {
			snprintf(text, sizeof(text), "message %d to %s", i, argv[to]);
			MUST(rsendto(client, text, strlen(text) + 1, 0, at(argv[to], ntohs(bound.sin_port)),
				     sizeof(bound)) > 0);
			from = receive(server, text);
			inet_ntop(AF_INET, &from.sin_addr, source, sizeof(source));
			MUST(!strcmp(source, argv[to]));
			MUST(rsendto(server, "answer", 7, 0, (struct sockaddr *)&from, sizeof(from)) == 7);
			from = receive(client, "answer");
			MUST(from.sin_port == bound.sin_port);
		}
	printf("%d messages each way over each of %d addresses\n", MESSAGES, argc - 1);
	return rclose(client) || rclose(server);
}
