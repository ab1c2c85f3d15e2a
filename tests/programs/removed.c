/*
 * removed ROUNDS: creates an interface, opens its device, removes the interface, and closes what it opened,
 *     in each round. A listener on 0.0.0.0 stays. Fails if threads, descriptors, names or memory grow.
 */
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include "cm.h"

#define INTERFACE "link add gone0 type veth peer name gone1"
#define ADDRESS "10.80.0.1"

struct holdings {
	int threads, descriptors, names;
	long bytes;
};

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	MUST(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static struct holdings holdings(void)
{
	struct holdings now = { entries("/proc/self/task"), entries("/proc/self/fd"), 0, 0 };
	FILE *names = fopen("/proc/net/unix", "r");
	char line[512];

	MUST(names);
	while (fgets(line, sizeof(line), names))
		now.names += !!strstr(line, "@roxie/");
	fclose(names);
	now.bytes = mallinfo2().uordblks;
	return now;
}

static void ip(const char *words)
{
	char command[256];

	snprintf(command, sizeof(command), "ip %s", words);
	MUST(!system(command));
}

static struct rdma_cm_event *event(struct rdma_event_channel *channel, int kind)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	MUST(poll(&fd, 1, 8000) == 1 && !rdma_get_cm_event(channel, &event));
	if ((int)event->event != kind) {
		printf("%s %d instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(kind));
		exit(1);
	}
	return event;
}

/* Objects of a program with verbs alone, until the device is removed. */
static void verbs(void)
{
	struct ibv_device **devices;
	struct ibv_async_event event;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp;
	int number;

	MUST((devices = ibv_get_device_list(&number)) && number == 2);
	MUST((context = ibv_open_device(devices[1])));
	ibv_free_device_list(devices);
	MUST((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 1, NULL, NULL, 0)));
	attr.send_cq = attr.recv_cq = cq;
	MUST((qp = ibv_create_qp(pd, &attr)));
	ip("link delete gone0");
	do {
		MUST(!ibv_get_async_event(context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	MUST(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

/* A client that is refused by the listener on 0.0.0.0, which then listens at the device, too. */
static void identifiers(struct rdma_event_channel *ours, int port)
{
	struct rdma_event_channel *theirs = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_event *got;
	struct rdma_cm_id *id;

	MUST(theirs && !rdma_create_id(theirs, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, at(ADDRESS, port), 2000));
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(!rdma_resolve_route(id, 2000));
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_ROUTE_RESOLVED));
	MUST(!rdma_create_qp(id, NULL, &attr) && !rdma_connect(id, &param));
	got = event(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	MUST(!rdma_reject(got->id, NULL, 0));
	rdma_destroy_id(got->id);
	rdma_ack_cm_event(got);
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_REJECTED));
	ip("link delete gone0");
	rdma_ack_cm_event(event(theirs, RDMA_CM_EVENT_DEVICE_REMOVAL));
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(theirs);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct holdings first = { 0 }, now;
	int rounds = argc > 1 ? atoi(argv[1]) : 0, warm = 10, tries;

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(rounds > warm && channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, at("0.0.0.0", 0)) && !rdma_listen(listener, 4));
	for (int round = 1; round <= rounds; round++) {
		ip(INTERFACE);
		ip("link set gone1 up");
		ip("link set gone0 addrgenmode none");
		ip("link set gone0 up");
		ip("address add " ADDRESS "/24 dev gone0");
		if (round % 2)
			verbs();
		else
			identifiers(channel, ntohs(rdma_get_src_port(listener)));
		if (round == warm) {
			usleep(300000);
			first = holdings();
		}
	}
	/* The last engine ends in its own thread. */
	for (tries = 100; tries; tries--) {
		ibv_free_device_list(ibv_get_device_list(NULL));
		now = holdings();
		if (now.threads <= first.threads && now.descriptors <= first.descriptors && now.names <= first.names)
			break;
		usleep(20000);
	}
	printf("rounds %d to %d: threads %d to %d, descriptors %d to %d, names %d to %d, %ld bytes a round\n", warm,
	       rounds, first.threads, now.threads, first.descriptors, now.descriptors, first.names, now.names,
	       (now.bytes - first.bytes) / (rounds - warm));
	/* A device has some 2 KiB, an engine 100 KiB. */
	return !tries || now.bytes - first.bytes > 200 * (rounds - warm);
}
