/*
 * groups receive: attaches a queue pair to IPv6 groups of every scope, permanent and transient, and prints
 *     those from which messages come. groups send GID_INDEX: sends a message to each of them.
 */
#include <arpa/inet.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

#include "must.h"

enum { flags = 2, scopes = 16, count = flags * scopes, size = 256, header = 40, q_key = 0x11 };

static char memory[count][size];
static struct ibv_mr *mr;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static union ibv_gid group(int nth, char *text)
{
	union ibv_gid gid;

	sprintf(text, "ff%d%x::77:%x", nth / scopes, nth % scopes, nth % scopes + 1);
	MUST(inet_pton(AF_INET6, text, gid.raw) == 1);
	return gid;
}

static int completed(struct ibv_wc *wc, int seconds)
{
	time_t end = time(NULL) + seconds;

	while (!ibv_poll_cq(cq, 1, wc))
		if (time(NULL) > end)
			return 0;
	MUST(!wc->status);
	return 1;
}

static void receive(void)
{
	struct ibv_recv_wr *bad;
	struct ibv_wc wc;
	char text[64];

	for (int i = 0; i < count; i++) {
		struct ibv_sge sge = { (uintptr_t)memory[i], size, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
		union ibv_gid gid = group(i, text);

		MUST(!ibv_post_recv(qp, &wr, &bad) && !ibv_attach_mcast(qp, &gid, 0));
	}
	do {
		if (!completed(&wc, 5))
			return;
		printf("%s\n", memory[wc.wr_id] + header);
	} while (strncmp(memory[wc.wr_id] + header, "ff1f", 4));
}

static void post(int sgid_index)
{
	struct ibv_sge sge = { (uintptr_t)memory[0], 64, mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	for (int i = 0; i < count; i++) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = group(i, memory[0]),
			.sgid_index = sgid_index, .hop_limit = 64 } };
		struct ibv_ah *ah = ibv_create_ah(pd, &attr);
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags =
			IBV_SEND_SIGNALED, .wr.ud = { ah, 0xffffff, q_key } };

		MUST(ah && !ibv_post_send(qp, &wr, &bad) && completed(&wc, 5));
	}
}

int main(int argc, char **argv)
{
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 4, count, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = q_key };

	MUST(argc >= 2 && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	MUST((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	init.send_cq = init.recv_cq = cq;
	MUST((qp = ibv_create_qp(pd, &init)));
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	if (argc == 2)
		receive();
	else
		post(atoi(argv[2]));
	return 0;
}
