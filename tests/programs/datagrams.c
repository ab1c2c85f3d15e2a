/*
 * datagrams INTERFACE ADDRESS...: rsockets without an address of their own exchange datagrams over each of
 *     these addresses of this host, which are of several devices. The first goes over UDP, the others over
 *     queue pairs. Then the interface of the last address is removed, and the other addresses still work.
 */
#include <poll.h>
#include <rdma/rsocket.h>
#include <unistd.h>

#include "cm.h"

#define MESSAGES 8
#define LOST "to an interface that is removed"

/* Receives a datagram with this text, after any that the removal could have lost; returns its source. */
static struct sockaddr_in receive(int socket, const char *text)
{
	struct pollfd fd = { .fd = socket, .events = POLLIN };
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	char got[64];

	do {
		memset(got, 0, sizeof(got));
		length = sizeof(from);
		MUST(rpoll(&fd, 1, 5000) == 1);
		MUST(rrecvfrom(socket, got, sizeof(got), 0, (struct sockaddr *)&from, &length) > 0);
	} while (!strcmp(got, LOST));
	MUST(!strcmp(got, text));
	return from;
}

/* Each socket sends the other one messages over this address. */
static void exchange(int client, int server, int port, const char *address)
{
	char text[64], source[64];
	struct sockaddr_in from;

	for (int i = 0; i < MESSAGES; i++) {
		snprintf(text, sizeof(text), "message %d to %s", i, address);
		MUST(rsendto(client, text, strlen(text) + 1, 0, at(address, port), sizeof(from)) > 0);
		from = receive(server, text);
		inet_ntop(AF_INET, &from.sin_addr, source, sizeof(source));
		MUST(!strcmp(source, address));
		MUST(rsendto(server, "answer", 7, 0, (struct sockaddr *)&from, sizeof(from)) == 7);
		from = receive(client, "answer");
		MUST(ntohs(from.sin_port) == port);
	}
}

int main(int argc, char **argv)
{
	int server = rsocket(AF_INET, SOCK_DGRAM, 0), client = rsocket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in bound;
	socklen_t length = sizeof(bound);
	char command[64];
	int port, tries = 5000;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc > 3 && server >= 0 && client >= 0 && !rbind(server, at("0.0.0.0", 0), sizeof(bound)));
	MUST(!rgetsockname(server, (struct sockaddr *)&bound, &length));
	port = ntohs(bound.sin_port);
	for (int to = 2; to < argc; to++)
		exchange(client, server, port, argv[to]);
	printf("%d messages each way over each of %d addresses\n", MESSAGES, argc - 2);
	snprintf(command, sizeof(command), "ip link delete %s", argv[1]);
	MUST(!system(command));
	/* The queue pairs of the device fail soon; then there is no route to its address. */
	while (rsendto(client, LOST, sizeof(LOST), 0, at(argv[argc - 1], port), sizeof(bound)) > 0) {
		MUST(--tries);
		usleep(1000);
	}
	printf("to a removed interface: %s\n", strerror(errno));
	for (int to = 2; to < argc - 1; to++)
		exchange(client, server, port, argv[to]);
	puts("the other interfaces go on");
	return rclose(client) || rclose(server);
}
