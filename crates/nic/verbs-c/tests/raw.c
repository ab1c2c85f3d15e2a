/*
 * Raw packet queue pairs on `lo`: capabilities, states, flow rules and their refusals, transfers, events, the
 * builder, RSS. Without CAP_NET_RAW: the refusals that hardware drivers give. Exits 77 without a device.
 */
#define _GNU_SOURCE
#include "pair.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

/* A local experimental Ethernet type (IEEE 802), which the network stack ignores. */
#define TYPE_HIGH 0x88
#define TYPE_LOW 0xb5
#define FRAME 64

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;

struct rule {
	struct ibv_flow_attr attr;
	struct ibv_flow_spec_eth eth;
};

static struct ibv_qp *create(enum ibv_qp_type type, struct ibv_srq *srq, uint32_t max_wr)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .pd = pd,
		.cap = { max_wr, max_wr, 2, 2, 64 }, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	errno = 0;
	return ibv_create_qp_ex(ctx, &init);
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask, int port)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = port };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static void to_rts(struct ibv_qp *qp)
{
	CHECK(!modify(qp, IBV_QPS_INIT, IBV_QP_PORT, 1) && !modify(qp, IBV_QPS_RTR, 0, 0) &&
		!modify(qp, IBV_QPS_RTS, 0, 0) && qp->state == IBV_QPS_RTS);
}

/* A rule for frames to the address 02:00:00:00:00:`last`. */
static struct rule rule_to(uint8_t last)
{
	struct rule rule = { .attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1,
		.port = 1 }, .eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) } };
	rule.eth.val.dst_mac[0] = 2;
	rule.eth.val.dst_mac[5] = last;
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	return rule;
}

static void refused(struct ibv_qp *qp, struct rule rule, int error)
{
	errno = 0;
	CHECK(!ibv_create_flow(qp, &rule.attr));
	CHECK(errno == error);
}

/* The rule of the caller is refused with one `change`. */
#define REFUSED(change, error) \
	do { \
		struct rule changed = rule; \
		changed.change; \
		refused(a, changed, error); \
	} while (0)

/* Writes a frame to 02:00:00:00:00:`last` at `offset` of the buffer. */
static struct ibv_sge frame(size_t offset, uint8_t last, uint8_t fill)
{
	uint8_t *at = (uint8_t *)buf + offset;
	memset(at, fill, FRAME);
	memcpy(at, (uint8_t[]){ 2, 0, 0, 0, 0, last, 2, 0, 0, 0, 0, 1, TYPE_HIGH, TYPE_LOW }, 14);
	return (struct ibv_sge){ (uintptr_t)at, FRAME, buf_mr->lkey };
}

static int post_send(struct ibv_qp *qp, struct ibv_sge *sge, enum ibv_wr_opcode op, unsigned flags)
{
	struct ibv_send_wr *bad = NULL, wr = { .wr_id = 7, .sg_list = sge, .num_sge = 1, .opcode = op,
		.send_flags = flags | IBV_SEND_SIGNALED };
	int error = ibv_post_send(qp, &wr, &bad);
	CHECK(!error || bad == &wr);
	return error;
}

static int post_recv(struct ibv_qp *qp, size_t offset, uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)buf + offset, length, buf_mr->lkey };
	struct ibv_recv_wr *bad = NULL, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	int error = ibv_post_recv(qp, &wr, &bad);
	CHECK(!error || bad == &wr);
	return error;
}

static struct ibv_wc take(struct ibv_cq *from)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;
	while (!ibv_poll_cq(from, 1, &wc))
		CHECK(time(NULL) < end);
	return wc;
}

/* The last refusal of this thread is of this function, with this errno and a reason. */
static int last_refusal_is(const char *text)
{
	const char *(*last_refusal)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "roxie_last_refusal");
	const char *last = last_refusal ? last_refusal() : NULL;
	return last && !strncmp(last, text, strlen(text)) && !strncmp(last + strlen(text), ": ", 2);
}

static void refusals(void)
{
	struct ibv_srq_init_attr shared = { .attr = { 16, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct rule rule = rule_to(9);
	struct ibv_qp *rc = create(IBV_QPT_RC, NULL, 4);
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_action_tag tag;
	} tag = { .attr = { .num_of_specs = 1, .port = 1 },
		.tag = { IBV_FLOW_SPEC_ACTION_TAG, sizeof(tag.tag), 1 } };

	CHECK(srq && rc);
	CHECK(!create(IBV_QPT_RAW_PACKET, srq, 4) && errno == EOPNOTSUPP);
	CHECK(!create(IBV_QPT_RAW_PACKET, NULL, 1 << 30) && errno == EINVAL);
	CHECK(modify(a, IBV_QPS_RTR, 0, 0) == EINVAL && modify(a, IBV_QPS_INIT, 0, 0) == EINVAL);
	CHECK(modify(a, IBV_QPS_INIT, IBV_QP_PORT, 2) == EINVAL && modify(a, IBV_QPS_ERR, 0, 0) == EINVAL);
	CHECK(modify(a, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX, 1) == EINVAL);
	CHECK(post_recv(a, 0, FRAME, 1) == EINVAL && last_refusal_is("ibv_post_recv: EINVAL"));

	refused(rc, rule, EINVAL);
	REFUSED(attr.port = 2, EINVAL);
	REFUSED(attr.comp_mask = 1, EINVAL);
	REFUSED(attr.type = 4, EINVAL);
	REFUSED(attr.num_of_specs = 11, EINVAL);
	REFUSED(attr.priority = 16, ENOSPC);
	REFUSED(attr.flags = 1, EINVAL);
	REFUSED(attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS, EOPNOTSUPP);
	REFUSED(attr.type = IBV_FLOW_ATTR_SNIFFER, EINVAL);
	REFUSED(eth.size = 7, EINVAL);
	REFUSED(eth.size = 38, EINVAL);
	REFUSED(eth.type = 0x99, EINVAL);
	errno = 0;
	CHECK(!ibv_create_flow(a, &tag.attr) && errno == EOPNOTSUPP);
	CHECK(!ibv_destroy_qp(rc) && !ibv_destroy_srq(srq));
}

static void transfers(void)
{
	struct rule rule = rule_to(2);
	struct ibv_flow *flow = ibv_create_flow(b, &rule.attr);
	struct ibv_sge sge = frame(0, 2, 0x55), other = frame(128, 3, 0x33);
	struct ibv_send_wr *bad, second = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr first = { .wr_id = 1, .next = &second, .sg_list = &other, .num_sge = 1,
		.opcode = IBV_WR_SEND };
	struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(a);
	struct ibv_cq *event_cq;
	void *cq_context;
	struct ibv_wc wc;

	CHECK(flow && ibv_destroy_qp(b) == EBUSY && builder);
	CHECK(post_send(a, &sge, IBV_WR_SEND, 0) == EINVAL && last_refusal_is("ibv_post_send: EINVAL"));
	to_rts(a);
	to_rts(b);
	CHECK(!post_recv(b, 4096, 2048, 11) && !post_recv(b, 8192, 2048, 12));
	/* The first frame is for no rule. */
	CHECK(!ibv_post_send(a, &first, &bad));
	/* A request that was posted leaves no reason for the next refusal. */
	CHECK(modify(a, IBV_QPS_INIT, 0, 0) == EINVAL && last_refusal_is("ibv_modify_qp: EINVAL"));
	wc = take(cq);
	CHECK(wc.wr_id == 2 && wc.opcode == IBV_WC_SEND && wc.qp_num == a->qp_num && !wc.status);
	wc = take(cq);
	CHECK(wc.wr_id == 11 && wc.opcode == IBV_WC_RECV && wc.qp_num == b->qp_num && !wc.status);
	CHECK(wc.byte_len == FRAME && !memcmp(buf, buf + 4096, FRAME));

	CHECK(post_send(a, &sge, IBV_WR_SEND_WITH_IMM, 0) == EINVAL);
	CHECK(post_send(a, &sge, IBV_WR_RDMA_WRITE, 0) == EINVAL);
	CHECK(post_send(a, &sge, IBV_WR_TSO, 0) == EOPNOTSUPP);
	CHECK(post_send(a, &sge, IBV_WR_SEND, IBV_SEND_IP_CSUM) == EINVAL);
	sge.length = 13;
	CHECK(post_send(a, &sge, IBV_WR_SEND, 0) == EINVAL);

	/* By the builder with inline data, and an event instead of polls. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	ibv_wr_start(builder);
	builder->wr_id = 3;
	builder->wr_flags = 0;
	ibv_wr_send(builder);
	ibv_wr_set_inline_data(builder, buf, FRAME);
	CHECK(!ibv_wr_complete(builder));
	CHECK(poll(&(struct pollfd){ channel->fd, POLLIN, 0 }, 1, 10000) == 1);
	CHECK(!ibv_get_cq_event(channel, &event_cq, &cq_context) && event_cq == cq);
	ibv_ack_cq_events(cq, 1);
	wc = take(cq);
	CHECK(wc.wr_id == 12 && wc.byte_len == FRAME && !memcmp(buf, buf + 8192, FRAME));
	ibv_wr_start(builder);
	ibv_wr_rdma_write(builder, 1, 0);
	CHECK(ibv_wr_complete(builder) == EINVAL && last_refusal_is("ibv_wr_complete: EINVAL"));

	/* With a VLAN tag, which the kernel keeps beside the frame. */
	struct rule tagged = rule_to(5);
	tagged.eth.val.vlan_tag = htons(7);
	tagged.eth.mask.vlan_tag = htons(0xfff);
	struct ibv_flow *vlan = ibv_create_flow(b, &tagged.attr);
	CHECK(vlan && !post_recv(b, 4096, 2048, 21));
	sge = frame(0, 5, 0x11);
	/* Untagged, so no rule takes it. */
	CHECK(!post_send(a, &sge, IBV_WR_SEND, 0) && take(cq).wr_id == 7);
	memcpy(buf + 12, (uint8_t[]){ 0x81, 0, 0x20, 7, TYPE_HIGH, TYPE_LOW }, 6);
	CHECK(!post_send(a, &sge, IBV_WR_SEND, 0) && take(cq).wr_id == 7);
	wc = take(cq);
	CHECK(wc.wr_id == 21 && wc.byte_len == FRAME && !memcmp(buf, buf + 4096, FRAME));
	CHECK(!ibv_destroy_flow(vlan));
	sge = frame(0, 2, 0x55);

	/* A forked child has no sockets; what it destroys stays in the parent. */
	pid_t child = fork();
	if (!child) {
		sge.length = FRAME;
		post_send(a, &sge, IBV_WR_SEND, 0);
		_exit(ibv_destroy_flow(flow) || ibv_destroy_qp(a));
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && !status);
	CHECK(!ibv_poll_cq(cq, 1, &wc));

	/* A frame that is longer than the receive ends it; the others are flushed. */
	CHECK(!post_recv(b, 4096, FRAME - 1, 13) && !post_recv(b, 4096, 2048, 14));
	sge.length = FRAME;
	CHECK(!post_send(a, &sge, IBV_WR_SEND, 0) && take(cq).wr_id == 7);
	wc = take(cq);
	CHECK(wc.wr_id == 13 && wc.status == IBV_WC_LOC_LEN_ERR);
	wc = take(cq);
	CHECK(wc.wr_id == 14 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!post_send(b, &sge, IBV_WR_SEND, 0) && take(cq).status == IBV_WC_WR_FLUSH_ERR);
	/* Memory without a key. */
	sge.lkey ^= 0x100;
	CHECK(!post_send(a, &sge, IBV_WR_SEND, 0) && take(cq).status == IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_destroy_flow(flow) && !modify(b, IBV_QPS_RESET, 0, 0) && b->state == IBV_QPS_RESET);
}

/* IPv4 frames of 16 addresses spread over two work queues, and each address stays with one. */
static void scaling(void)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 64, .max_sge = 1, .pd = pd };
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_cq *cqs[2];
	struct ibv_wq *wqs[2];
	struct ibv_rwq_ind_table_init_attr table_init = { .log_ind_tbl_size = 1, .ind_tbl = wqs };
	struct ibv_rwq_ind_table *table;
	uint8_t key[40];
	struct ibv_qp_init_attr_ex qp_init = { .qp_type = IBV_QPT_RAW_PACKET, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.rx_hash_conf = { IBV_RX_HASH_FUNC_TOEPLITZ, sizeof(key), key, IBV_RX_HASH_SRC_IPV4 } };
	struct rule rule = rule_to(4);
	struct ibv_flow *flow;
	struct ibv_qp *rss, *sender = create(IBV_QPT_RAW_PACKET, NULL, 16);
	int counts[2] = { 0, 0 };

	for (int i = 0; i < 40; i++)
		key[i] = 7 * i + 13;
	for (int i = 0; i < 2; i++) {
		CHECK((cqs[i] = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
		init.cq = cqs[i];
		CHECK((wqs[i] = ibv_create_wq(ctx, &init)) && wqs[i]->state == IBV_WQS_RESET);
		struct ibv_recv_wr *bad, wr = { .wr_id = 1 };
		CHECK(ibv_post_wq_recv(wqs[i], &wr, &bad) == EINVAL);
		CHECK(last_refusal_is("ibv_post_wq_recv: EINVAL"));
		struct ibv_wq_attr wrong = { .attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE,
			.wq_state = IBV_WQS_RDY, .curr_wq_state = IBV_WQS_ERR };
		CHECK(ibv_modify_wq(wqs[i], &wrong) == EINVAL && wqs[i]->state == IBV_WQS_RESET);
		CHECK(!ibv_modify_wq(wqs[i], &ready) && wqs[i]->state == IBV_WQS_RDY);
	}
	table_init.log_ind_tbl_size = 8;
	CHECK(!ibv_create_rwq_ind_table(ctx, &table_init) && errno == EINVAL);
	table_init.log_ind_tbl_size = 1;
	CHECK((table = ibv_create_rwq_ind_table(ctx, &table_init)) && ibv_destroy_wq(wqs[0]) == EBUSY);
	qp_init.rwq_ind_tbl = table;
	qp_init.rx_hash_conf.rx_hash_key_len = 39;
	CHECK(!ibv_create_qp_ex(ctx, &qp_init) && errno == EINVAL);
	qp_init.rx_hash_conf.rx_hash_key_len = 40;
	qp_init.rx_hash_conf.rx_hash_fields_mask |= IBV_RX_HASH_SRC_IPV6;
	CHECK(!ibv_create_qp_ex(ctx, &qp_init) && errno == EOPNOTSUPP);
	qp_init.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4;
	CHECK((rss = ibv_create_qp_ex(ctx, &qp_init)) && ibv_destroy_rwq_ind_table(table) == EBUSY);
	CHECK(modify(rss, IBV_QPS_INIT, IBV_QP_PORT, 1) == EOPNOTSUPP && post_recv(rss, 0, 64, 1) == EINVAL);
	CHECK((flow = ibv_create_flow(rss, &rule.attr)) && sender);
	to_rts(sender);
	for (int i = 0; i < 64; i++) {
		struct ibv_sge sge = { (uintptr_t)buf + 4096 + 64 * i, 64, buf_mr->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
		CHECK(!ibv_post_wq_recv(wqs[i % 2], &wr, &bad));
	}
	for (int i = 0; i < 32; i++) {
		struct ibv_sge sge = frame(0, 4, 0);
		struct ibv_wc wc;
		int n = 0;

		memcpy(buf + 12, (uint8_t[]){ 8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 253, 0, 0, 10, 1, 2, i % 16,
			10, 9, 9, 9 }, 22);
		CHECK(!post_send(sender, &sge, IBV_WR_SEND, 0) && !take(cq).status);
		for (time_t end = time(NULL) + 10; !ibv_poll_cq(cqs[n], 1, &wc); n ^= 1)
			CHECK(time(NULL) < end);
		CHECK(!wc.status && wc.qp_num == wqs[n]->wq_num);
		counts[n]++;
		/* The same address selects the same queue. */
		static int queue_of[16];
		CHECK(i < 16 || queue_of[i % 16] == n);
		queue_of[i % 16] = n;
	}
	CHECK(counts[0] + counts[1] == 32 && counts[0] > 3 && counts[1] > 3);
	CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(rss) && !ibv_destroy_rwq_ind_table(table));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_wq(wqs[i]) && !ibv_destroy_cq(cqs[i]));
	CHECK(!ibv_destroy_qp(sender));
}

int main(void)
{
	struct ibv_device_attr_ex caps;

	/* Frames stay on this host. */
	setenv("ROXIE_NETDEV", "lo", 1);
	setenv("ROXIE_LOG", "errors", 1);
	open_device();
	CHECK((channel = ibv_create_comp_channel(ctx)) && (cq = ibv_create_cq(ctx, 64, NULL, channel, 0)));
	CHECK(!ibv_query_device_ex(ctx, NULL, &caps) && caps.orig_attr.max_raw_ethy_qp > 0);
	CHECK(caps.rss_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET && caps.rss_caps.rx_hash_function == 1);
	CHECK(!caps.tso_caps.max_tso && caps.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
	a = create(IBV_QPT_RAW_PACKET, NULL, 8);
	if (!a) {
		struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd,
			.cq = cq };
		CHECK(errno == EPERM && !ibv_create_wq(ctx, &init) && errno == EPERM);
		printf("skipped: needs CAP_NET_RAW\n");
	} else {
		CHECK((b = create(IBV_QPT_RAW_PACKET, NULL, 8)) && a->qp_num != b->qp_num);
		refusals();
		transfers();
		scaling();
		CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	}
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	close_device();
	return 0;
}
