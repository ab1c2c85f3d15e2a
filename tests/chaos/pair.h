/*
 * pair.h: two connected RC queue pairs in one process, for the programs of this directory.
 *
 * Every program is compiled two times: as it is, with an assumption that holds on most NICs and that no
 * specification gives, and with -DFIXED, corrected. A failed check exits with 1, a hang is ended by alarm(2).
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 8192
#define ROUNDS 60
#define SECONDS 3

#define CHECK(good)                                                              \
	do {                                                                     \
		if (!(good)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #good); \
			exit(1);                                                 \
		}                                                                \
	} while (0)

struct end {
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_comp_channel *channel;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	volatile unsigned char *buf;
};

struct options {
	int one_cq;    /* The send CQ of both queue pairs is the same. */
	int channel;   /* The receive CQs have a channel. */
	int rnr_retry;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static int gid_index = -1;

static void open_device(void)
{
	int number, index;
	struct ibv_device **list = ibv_get_device_list(&number);

	alarm(SECONDS);
	CHECK(list && number > 0);
	CHECK(context = ibv_open_device(list[0]));
	CHECK(pd = ibv_alloc_pd(context));
	for (index = 0; index < 64 && gid_index < 0; index++)
		if (!ibv_query_gid(context, 1, index, &gid) && gid.global.interface_id)
			gid_index = index;
	CHECK(gid_index >= 0);
}

static struct end make_end(struct options options, struct ibv_cq *send_cq)
{
	struct end end = { 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };

	if (options.channel)
		CHECK(end.channel = ibv_create_comp_channel(context));
	CHECK(end.recv_cq = ibv_create_cq(context, 256, NULL, end.channel, 0));
	end.send_cq = send_cq ? send_cq : ibv_create_cq(context, 256, NULL, NULL, 0);
	CHECK(end.send_cq);
	init.send_cq = end.send_cq;
	init.recv_cq = end.recv_cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = 64;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.cap.max_inline_data = 64;
	CHECK(end.qp = ibv_create_qp(pd, &init));
	CHECK(end.buf = aligned_alloc(4096, SIZE));
	memset((void *)end.buf, 0, SIZE);
	CHECK(end.mr = ibv_reg_mr(pd, (void *)end.buf, SIZE,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					  IBV_ACCESS_REMOTE_ATOMIC));
	return end;
}

static void connect_to(struct end *end, const struct end *peer, int rnr_retry)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.rq_psn = 100;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	attr.ah_attr.port_num = 1;
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 100;
	attr.timeout = 12;
	attr.retry_cnt = 7;
	attr.rnr_retry = rnr_retry;
	attr.max_rd_atomic = 4;
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Makes a pair; the second pair of a process may have the send CQ of the first. */
static inline void make_pair(struct end *a, struct end *b, struct options options, struct ibv_cq *send_cq)
{
	if (!context)
		open_device();
	*a = make_end(options, send_cq);
	*b = make_end(options, NULL);
	connect_to(a, b, options.rnr_retry);
	connect_to(b, a, options.rnr_retry);
}

static inline void receive_at(struct end *end, uint32_t offset, uint32_t length, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)end->buf + offset, length, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(end->qp, &wr, &bad));
}

/* Posts one signaled request of `length` bytes at `from` in `end`, to or from `to` in `peer`. */
static inline void post(struct end *end, enum ibv_wr_opcode opcode, uint32_t from, const struct end *peer,
			uint32_t to, uint32_t length, uint64_t id, int flags)
{
	struct ibv_sge sge = { (uintptr_t)end->buf + from, length, end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	wr.send_flags = IBV_SEND_SIGNALED | flags;
	wr.wr.rdma.remote_addr = (uintptr_t)peer->buf + to;
	wr.wr.rdma.rkey = peer->mr->rkey;
	CHECK(!ibv_post_send(end->qp, &wr, &bad));
}

static inline struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int number;

	while (!(number = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(number == 1);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "work request %lu: %s\n", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

/* Whether all bytes have this value. */
static inline int is_filled(volatile unsigned char *bytes, uint32_t length, unsigned char value)
{
	for (uint32_t at = 0; at < length; at++)
		if (bytes[at] != value)
			return 0;
	return 1;
}
