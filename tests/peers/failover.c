/*
 * failover ADDRESS PEER COMMAND...: which identifiers get events when a COMMAND changes the interface of
 *     ADDRESS, one line for each command. PEER is a neighbour.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <unistd.h>

#include "../programs/cm.h"

/* Prints the events of a second, by identifier. */
static void events(struct rdma_event_channel *channel, const char *const *names, int count)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int seen[4] = { 0 };

	while (poll(&fd, 1, 1000) == 1) {
		MUST(!rdma_get_cm_event(channel, &event));
		for (int i = 0; i < count; i++)
			if (event->id->context == names[i] && event->event == RDMA_CM_EVENT_ADDR_CHANGE)
				seen[i]++;
		if (event->event != RDMA_CM_EVENT_ADDR_CHANGE)
			printf("%s %d ", rdma_event_str(event->event), event->status);
		rdma_ack_cm_event(event);
	}
	for (int i = 0; i < count; i++)
		printf("%s%s %d", i ? ", " : "", names[i], seen[i]);
	printf("\n");
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "bound", "listening", "wildcard", "resolved" };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *ids[4];

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(argc > 3 && channel);
	for (int i = 0; i < 4; i++)
		MUST(!rdma_create_id(channel, &ids[i], (void *)names[i], RDMA_PS_TCP));
	MUST(!rdma_bind_addr(ids[0], at(argv[1], 0)));
	MUST(!rdma_bind_addr(ids[1], at(argv[1], 0)) && !rdma_listen(ids[1], 1));
	MUST(!rdma_bind_addr(ids[2], at("0.0.0.0", 0)) && !rdma_listen(ids[2], 1));
	MUST(!rdma_resolve_addr(ids[3], NULL, at(argv[2], 7471), 5000) && !rdma_get_cm_event(channel, &event));
	MUST(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && ids[3]->verbs);
	rdma_ack_cm_event(event);
	for (int i = 3; i < argc; i++) {
		MUST(!system(argv[i]));
		printf("%s: ", argv[i]);
		events(channel, names, 4);
	}
	for (int i = 0; i < 4; i++)
		rdma_destroy_id(ids[i]);
	rdma_destroy_event_channel(channel);
	return 0;
}
