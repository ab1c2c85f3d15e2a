/*
 * raw_own NETDEV: a raw packet queue pair gets the frames that it sends to its device's own Ethernet
 *     address, by polling and after an event, and none of those to another address.
 */
#include <net/if.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include <infiniband/verbs.h>

#include "must.h"
#define FRAME 64

static char memory[2][2048];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void post(const unsigned char *to, unsigned char mark)
{
	struct ibv_sge sge[2] = { { (uintptr_t)memory[0], FRAME, mr->lkey }, { (uintptr_t)memory[1], 2048,
		mr->lkey } };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sge[1], .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	memset(memory, mark, sizeof(memory[0]));
	memcpy(memory[0], to, 6);
	memcpy(memory[0] + 6, "\2\0\0\0\0\1\x88\xb5", 8);
	memset(memory[1], 0, sizeof(memory[1]));
	MUST(!ibv_post_recv(qp, &receive, &bad_receive) && !ibv_post_send(qp, &send, &bad));
}

static int received(int ms, unsigned char mark)
{
	struct timespec now, end;
	struct ibv_wc wc;

	MUST(!clock_gettime(CLOCK_MONOTONIC, &end));
	do {
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc.wr_id == 1 && !wc.status && wc.byte_len == FRAME && memory[1][FRAME - 1] == mark;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - end.tv_sec) * 1000 + (now.tv_nsec - end.tv_nsec) / 1000000 < ms);
	return 0;
}

int main(int argc, char **argv)
{
	struct { struct ibv_flow_attr attr; struct ibv_flow_spec_eth eth; } rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth), .val.ether_type = htobe16(0x88b5),
			.mask.ether_type = 0xffff } };
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RAW_PACKET, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .port_num = 1 };
	unsigned char other[] = { 2, 0, 0, 0, 0, 9 };
	struct ifreq own = { 0 };
	struct pollfd fd = { .events = POLLIN };
	struct ibv_cq *got;
	void *cookie;

	MUST(argc == 2 && pd && channel);
	strncpy(own.ifr_name, argv[1], IFNAMSIZ - 1);
	MUST(!ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCGIFHWADDR, &own));
	MUST((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	MUST((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	init.send_cq = init.recv_cq = cq;
	MUST((qp = ibv_create_qp(pd, &init)) && ibv_create_flow(qp, &rule.attr));
	for (attr.qp_state = IBV_QPS_INIT; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (attr.qp_state == IBV_QPS_INIT ? IBV_QP_PORT : 0)));
	post((unsigned char *)own.ifr_hwaddr.sa_data, 1);
	printf("to the own address: %d\n", received(3000, 1));
	MUST(!ibv_req_notify_cq(cq, 0));
	post((unsigned char *)own.ifr_hwaddr.sa_data, 2);
	fd.fd = channel->fd;
	MUST(poll(&fd, 1, 3000) == 1 && !ibv_get_cq_event(channel, &got, &cookie));
	ibv_ack_cq_events(got, 1);
	printf("after an event: %d\n", received(0, 2));
	post(other, 3);
	printf("to another address: %d\n", received(200, 3));
	return 0;
}
