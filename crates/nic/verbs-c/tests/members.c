/*
 * The public members of the structures of verbs.h and rdma_cma.h: which of them the library writes, and
 * which it reads although programs write them. A row for each member, with what rdma-core does;
 * conventions.rs compares the rows with the headers. Exits 77 without a device.
 */
#include "pair.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static int wrong;

/* Prints a row that does not hold. */
static void row(const char *member, const char *rdma_core, int holds)
{
	if (!holds)
		printf("%s: rdma-core: %s\n", member, rdma_core);
	wrong += !holds;
}

static int is_initialised(pthread_mutex_t *mutex, pthread_cond_t *cond)
{
	return !pthread_mutex_trylock(mutex) && !pthread_cond_broadcast(cond) && !pthread_mutex_unlock(mutex);
}

static int is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void device(struct ibv_device *d)
{
	char text[8];

	row("ibv_device._ops", "no program reads it", 1);
	row("ibv_device.node_type", "the library writes it", d->node_type == IBV_NODE_CA);
	row("ibv_device.transport_type", "the library writes it", d->transport_type == IBV_TRANSPORT_IB);
	row("ibv_device.name", "the library writes it", !strcmp(d->name, ibv_get_device_name(d)));
	row("ibv_device.dev_name", "the library writes it", !strncmp(d->dev_name, "uverbs", 6));
	row("ibv_device.dev_path", "a path that ends with dev_name", strstr(d->dev_path, d->dev_name) != NULL);
	row("ibv_device.ibdev_path", "a directory whose files can be read",
		ibv_read_sysfs_file(d->ibdev_path, "node_type", text, sizeof(text)) > 0);
}

static void context(void)
{
	row("ibv_context.device", "ibv_open_device writes it", ctx->device && *ctx->device->name);
	row("ibv_context.ops", "ibv_open_device writes it", ctx->ops.poll_cq && ctx->ops.post_send);
	row("ibv_context.cmd_fd", "an open descriptor", is_open(ctx->cmd_fd));
	row("ibv_context.async_fd", "an open descriptor", is_open(ctx->async_fd));
	row("ibv_context.num_comp_vectors", "ibv_open_device writes it", ctx->num_comp_vectors > 0);
	row("ibv_context.mutex", "initialised", !pthread_mutex_trylock(&ctx->mutex) &&
		!pthread_mutex_unlock(&ctx->mutex));
	row("ibv_context.abi_compat", "all ones: a verbs_context is around it", ctx->abi_compat == (void *)-1);
}

static void memory(struct pair *p)
{
	static char area[8192] __attribute__((aligned(4096)));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;
	struct ibv_mr *mr = ibv_reg_mr(pd, area, 4096, access);
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { gid, 0, gid_index, 64, 0 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)area, 64, IBV_ACCESS_REMOTE_READ } };
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { two, 0x12345678, bind.bind_info } };
	uint32_t first, second;
	struct ibv_wc wc;

	CHECK(mr && other && one && two && ah);
	row("ibv_pd.context", "ibv_alloc_pd writes it", pd->context == ctx);
	row("ibv_pd.handle", "a label", pd->handle != other->handle);
	row("ibv_ah.context", "ibv_create_ah writes it", ah->context == ctx);
	row("ibv_ah.pd", "ibv_create_ah writes it", ah->pd == pd);
	row("ibv_ah.handle", "a label", 1);
	row("ibv_mw.context", "ibv_alloc_mw writes it", one->context == ctx);
	row("ibv_mw.pd", "ibv_alloc_mw writes it", one->pd == pd);
	row("ibv_mw.handle", "a label", one->handle != two->handle);
	row("ibv_mw.type", "ibv_alloc_mw writes it", one->type == IBV_MW_TYPE_1 && two->type == IBV_MW_TYPE_2);
	/* A program restores the key of a type 1 window after a failed bind: the next bind begins there. */
	first = one->rkey;
	CHECK(!ibv_bind_mw(p->b, one, &bind) && (next(p, &wc), !wc.status));
	second = one->rkey;
	one->rkey = first;
	CHECK(!ibv_bind_mw(p->b, one, &bind) && (next(p, &wc), !wc.status));
	row("ibv_mw.rkey", "ibv_bind_mw writes the next key after the one there", second == ibv_inc_rkey(first)
		&& one->rkey == second);
	/* Only the low 8 bits of the requested key count. */
	first = two->rkey;
	row("ibv_mw.rkey", "the bind of a type 2 window leaves it", !posted(p, p->b, &wr) && two->rkey == first);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = (first & ~0xff) | 0x78 };
	row("ibv_mw.rkey", "a type 2 window has its own index, whatever it is bound with", !posted(p, p->b, &wr));
	CHECK(!ibv_dealloc_mw(one) && !ibv_dealloc_mw(two) && !ibv_destroy_ah(ah));

	row("ibv_mr.context", "ibv_reg_mr writes it", mr->context == ctx);
	row("ibv_mr.handle", "a label", mr->handle != buf_mr->handle);
	row("ibv_mr.lkey", "ibv_reg_mr writes it", mr->lkey != buf_mr->lkey);
	row("ibv_mr.rkey", "ibv_reg_mr writes it", mr->rkey != buf_mr->rkey);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other, area + 4096,
		64, access));
	row("ibv_mr.pd", "ibv_rereg_mr writes it", mr->pd == other);
	row("ibv_mr.addr", "ibv_rereg_mr writes it", mr->addr == area + 4096);
	row("ibv_mr.length", "ibv_rereg_mr writes it", mr->length == 64);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
}

static void queues(struct pair *p)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, NULL, channel, 0), *got = NULL;
	struct ibv_srq_init_attr sa = { .srq_context = &sa, .attr = { 8, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_qp_init_attr init = { .qp_context = &init, .send_cq = cq, .recv_cq = p->cq, .srq = srq,
		.qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } }, queried;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_send_wr wr = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	void *cookie = NULL;

	CHECK(channel && cq && srq && qp);
	row("ibv_comp_channel.context", "ibv_create_comp_channel writes it", channel->context == ctx);
	row("ibv_comp_channel.fd", "an open descriptor", is_open(channel->fd));
	row("ibv_comp_channel.refcnt", "ibv_create_cq adds one", channel->refcnt == 1);
	row("ibv_cq.context", "ibv_create_cq writes it", cq->context == ctx);
	row("ibv_cq.channel", "ibv_create_cq writes it", cq->channel == channel);
	row("ibv_cq.handle", "a label", cq->handle != p->cq->handle);
	row("ibv_cq.mutex", "initialised", is_initialised(&cq->mutex, &cq->cond));
	row("ibv_cq.cond", "initialised", 1);
	row("ibv_cq.cqe", "ibv_resize_cq writes it", cq->cqe >= 10 && !ibv_resize_cq(cq, 50) && cq->cqe >= 50);

	row("ibv_srq.context", "ibv_create_srq writes it", srq->context == ctx);
	row("ibv_srq.srq_context", "ibv_create_srq writes it", srq->srq_context == &sa);
	row("ibv_srq.pd", "ibv_create_srq writes it", srq->pd == pd);
	row("ibv_srq.handle", "a label", 1);
	row("ibv_srq.mutex", "initialised", is_initialised(&srq->mutex, &srq->cond));
	row("ibv_srq.cond", "initialised", 1);
	row("ibv_srq.events_completed", "ibv_destroy_srq compares it", !srq->events_completed);

	row("ibv_qp.context", "ibv_create_qp writes it", qp->context == ctx);
	row("ibv_qp.pd", "ibv_create_qp writes it", qp->pd == pd);
	row("ibv_qp.handle", "a label", qp->handle != p->a->handle);
	row("ibv_qp.qp_num", "ibv_create_qp writes it", qp->qp_num > 1 && qp->qp_num != p->a->qp_num);
	row("ibv_qp.mutex", "initialised", is_initialised(&qp->mutex, &qp->cond));
	row("ibv_qp.cond", "initialised", 1);
	row("ibv_qp.events_completed", "ibv_destroy_qp compares it", !qp->events_completed);
	row("ibv_qp.state", "ibv_create_qp writes it", qp->state == IBV_QPS_RESET);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	row("ibv_qp.state", "ibv_modify_qp writes it", qp->state == IBV_QPS_INIT);
	qp->state = IBV_QPS_RTS;
	row("ibv_qp.state", "the device knows the state itself", ibv_post_send(qp, &wr, &bad) == EINVAL);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_PKEY_INDEX, &queried));
	row("ibv_qp.state", "ibv_query_qp without IBV_QP_STATE leaves it", qp->state == IBV_QPS_RTS);
	qp->qp_context = &attr;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &queried));
	row("ibv_qp.state", "ibv_query_qp with IBV_QP_STATE writes it", qp->state == IBV_QPS_INIT);
	row("ibv_qp.qp_context", "ibv_query_qp returns what is there", queried.qp_context == &attr);
	row("ibv_qp.send_cq", "ibv_query_qp returns what is there", queried.send_cq == cq);
	row("ibv_qp.recv_cq", "ibv_query_qp returns what is there", queried.recv_cq == p->cq);
	row("ibv_qp.srq", "ibv_query_qp returns what is there", queried.srq == srq);
	row("ibv_qp.qp_type", "ibv_query_qp returns what is there", queried.qp_type == IBV_QPT_RC);

	/* A program changes what events of a CQ name, and counts an event that it has read by itself. */
	cq->cq_context = &queried;
	CHECK(!ibv_req_notify_cq(cq, 0));
	attr.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && !ibv_post_send(qp, &wr, &bad));
	CHECK(!ibv_get_cq_event(channel, &got, &cookie) && got == cq);
	row("ibv_cq.cq_context", "ibv_get_cq_event returns what is there", cookie == &queried);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 7);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
	cq->comp_events_completed++;
	row("ibv_cq.comp_events_completed", "ibv_destroy_cq compares it", !ibv_destroy_cq(cq));
	row("ibv_cq.async_events_completed", "ibv_destroy_cq compares it", !p->cq->async_events_completed);
	row("ibv_comp_channel.refcnt", "ibv_destroy_cq subtracts one", !channel->refcnt);
	channel->refcnt++;
	row("ibv_comp_channel.refcnt", "ibv_destroy_comp_channel compares it",
		ibv_destroy_comp_channel(channel) == EBUSY);
	channel->refcnt--;
	CHECK(!ibv_destroy_comp_channel(channel));
}

static struct rdma_event_channel *ours, *theirs;
static struct rdma_cm_id *listener;

static struct sockaddr *loopback(uint16_t port)
{
	static struct sockaddr_in in;

	in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr =
		htonl(INADDR_LOOPBACK) };
	return (struct sockaddr *)&in;
}

/* Takes the next event of a channel, which must be of this type; returns its identifier. */
static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != type)
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == type);
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static struct rdma_cm_id *resolved(void)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(theirs, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, loopback(rdma_get_src_port(listener)), 2000));
	expect(theirs, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	expect(theirs, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static const struct ibv_qp_init_attr sizes = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

/* Makes a queue pair of an identifier, which forgets it and its completion queues. */
static struct ibv_qp *moved(struct rdma_cm_id *from)
{
	struct ibv_qp_init_attr init = sizes;
	struct ibv_qp *qp;

	CHECK(!rdma_create_qp(from, NULL, &init));
	qp = from->qp;
	from->qp = NULL;
	from->send_cq = from->recv_cq = NULL;
	from->send_cq_channel = from->recv_cq_channel = NULL;
	return qp;
}

static struct ibv_cq *cm_cq;

/* Makes a queue pair as a program does that assigns it to an identifier. */
static struct ibv_qp *own(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = sizes;

	CHECK(cm_cq || (cm_cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cm_cq;
	return ibv_create_qp(id->pd, &init);
}

static enum ibv_qp_state state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(qp, &attr, 0, &init));
	return attr.qp_state == qp->state ? attr.qp_state : IBV_QPS_UNKNOWN;
}

/* Both ends have queue pairs that the program assigned: moved from another identifier, or its own. */
static void connections(int is_own)
{
	struct rdma_cm_id *client = resolved(), *other = resolved(), *server;
	struct rdma_conn_param param = { .retry_count = 7, .qp_num = 1 };
	struct ibv_qp_init_attr init = sizes;
	struct ibv_qp *first, *second;

	client->qp = is_own ? own(client) : moved(other);
	CHECK(client->qp && !rdma_connect(client, &param));
	server = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	server->qp = is_own ? own(server) : moved(other);
	CHECK(server->qp && (rdma_create_qp(server, NULL, &init) == -1 && errno == EINVAL));
	row("rdma_cm_id.qp", "rdma_accept moves what is there", !rdma_accept(server, &param) &&
		state(server->qp) == IBV_QPS_RTS);
	CHECK(expect(theirs, RDMA_CM_EVENT_ESTABLISHED) == client);
	row("rdma_cm_id.qp", "the peer's reply moves what is there", state(client->qp) == IBV_QPS_RTS);
	CHECK(expect(ours, RDMA_CM_EVENT_ESTABLISHED) == server);
	/* Both move to other identifiers, which have no connection. */
	first = client->qp;
	client->qp = NULL;
	CHECK(!rdma_disconnect(client));
	row("rdma_cm_id.qp", "rdma_disconnect leaves what is not there", state(first) == IBV_QPS_RTS);
	other->qp = first;
	row("rdma_cm_id.qp", "rdma_disconnect of no connection moves what is there, too",
		rdma_disconnect(other) == -1 && errno == EINVAL && state(first) == IBV_QPS_ERR);
	expect(ours, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(server) && state(server->qp) == IBV_QPS_ERR);
	expect(theirs, RDMA_CM_EVENT_DISCONNECTED);
	second = server->qp;
	row("rdma_cm_id.qp", "ibv_destroy_qp leaves the pointer", !ibv_destroy_qp(second) && server->qp == second);
	/* Neither the calls nor the events that come follow it. */
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_qp(other);
	row("rdma_cm_id.qp", "rdma_destroy_qp destroys what is there", !other->qp);
	CHECK(!rdma_destroy_id(other) && !rdma_destroy_id(client));
}

/* A program takes its queue pair away before the peer replies, or gets a refusal for one that it assigned. */
static void replies(void)
{
	struct rdma_cm_id *client = resolved(), *server;
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_qp *qp = own(client);

	client->qp = qp;
	CHECK(qp && !rdma_connect(client, &param));
	server = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	server->qp = own(server);
	client->qp = NULL;
	CHECK(!rdma_accept(server, &param));
	row("rdma_cm_id.qp", "without one, CONNECT_RESPONSE is the program's",
		expect(theirs, RDMA_CM_EVENT_CONNECT_RESPONSE) == client && state(qp) == IBV_QPS_RESET);
	client->qp = qp;
	row("rdma_cm_id.qp", "rdma_establish refuses one", rdma_establish(client) == -1 && errno == EINVAL);
	client->qp = NULL;
	CHECK(!rdma_establish(client) && expect(ours, RDMA_CM_EVENT_ESTABLISHED) == server);
	rdma_destroy_qp(server);
	CHECK(!rdma_destroy_id(server) && expect(theirs, RDMA_CM_EVENT_DISCONNECTED) == client);
	CHECK(!rdma_destroy_id(client));

	client = resolved();
	CHECK(!ibv_destroy_qp(qp) && (qp = moved(client)));
	client->qp = qp;
	CHECK(!rdma_connect(client, &param));
	server = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	server->qp = moved(server);
	row("rdma_cm_id.qp", "rdma_reject leaves what is there", !rdma_reject(server, NULL, 0) &&
		state(server->qp) == IBV_QPS_INIT);
	CHECK(expect(theirs, RDMA_CM_EVENT_REJECTED) == client);
	row("rdma_cm_id.qp", "a refusal moves what is there", state(qp) == IBV_QPS_ERR);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(!rdma_destroy_id(server) && !rdma_destroy_id(client));
}

/* A program assigns queues before rdma_create_qp, which takes them. */
static void assigned_queues(struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr sa = { .attr = { 8, 1, 0 } };
	struct ibv_qp_init_attr init = sizes;
	struct ibv_pd *default_pd = id->pd, *domain = ibv_alloc_pd(id->verbs);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	struct ibv_srq *srq = ibv_create_srq(domain, &sa);

	CHECK(default_pd && domain && cq && srq);
	id->pd = domain;
	id->send_cq = id->recv_cq = cq;
	id->srq = srq;
	CHECK(cm_cq || (cm_cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0)));
	init.send_cq = cm_cq;
	row("rdma_cm_id.send_cq", "rdma_create_qp refuses another one",
		rdma_create_qp(id, NULL, &init) == -1 && errno == EINVAL);
	init = sizes;
	CHECK(!rdma_create_qp(id, NULL, &init));
	row("rdma_cm_id.send_cq", "rdma_create_qp takes what is there", id->qp->send_cq == cq);
	row("rdma_cm_id.recv_cq", "rdma_create_qp takes what is there", id->qp->recv_cq == cq);
	row("rdma_cm_id.send_cq_channel", "rdma_create_qp writes it with the queue only", !id->send_cq_channel);
	row("rdma_cm_id.recv_cq_channel", "rdma_create_qp writes it with the queue only", !id->recv_cq_channel);
	row("rdma_cm_id.srq", "rdma_create_qp takes what is there", id->qp->srq == srq && init.srq == srq);
	row("rdma_cm_id.pd", "rdma_create_qp takes what is there", id->qp->pd == domain);
	rdma_destroy_qp(id);
	row("rdma_cm_id.recv_cq", "rdma_destroy_qp destroys what is there", !id->recv_cq && !id->send_cq);
	rdma_destroy_srq(id);
	row("rdma_cm_id.srq", "rdma_destroy_srq destroys what is there", !id->srq && !ibv_dealloc_pd(domain));
	id->pd = default_pd;
	CHECK((domain = ibv_alloc_pd(id->verbs)) && !rdma_create_srq(id, domain, &sa));
	row("rdma_cm_id.pd", "rdma_create_srq leaves what is there", id->pd == default_pd);
	rdma_destroy_srq(id);
	CHECK(!ibv_dealloc_pd(domain));
	init = sizes;
	CHECK(!rdma_create_qp(id, NULL, &init));
	row("rdma_cm_id.send_cq_channel", "rdma_create_qp writes it",
		id->send_cq_channel && id->send_cq->channel == id->send_cq_channel);
	row("rdma_cm_id.recv_cq_channel", "rdma_create_qp writes it",
		id->recv_cq_channel && id->recv_cq->channel == id->recv_cq_channel);
	rdma_destroy_qp(id);
}

static void identifiers(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_event_channel *third = rdma_create_event_channel();
	struct rdma_cm_id *client, *server, *sync;

	CHECK((ours = rdma_create_event_channel()) && (theirs = rdma_create_event_channel()) && third);
	CHECK(!rdma_create_id(ours, &listener, &ours, RDMA_PS_TCP) && !rdma_bind_addr(listener, loopback(0)));
	row("rdma_cm_id.verbs", "NULL with an address that has no device", !listener->verbs || listener->port_num);
	CHECK(!rdma_listen(listener, 8));
	client = resolved();
	row("rdma_cm_id.verbs", "rdma_resolve_addr writes it", client->verbs != NULL);
	row("rdma_cm_id.port_num", "rdma_resolve_addr writes it", client->port_num == 1);
	row("rdma_cm_id.route", "the addresses of both ends, and a path", client->route.num_paths == 1 &&
		client->route.path_rec && ((struct sockaddr_in *)rdma_get_peer_addr(client))->sin_port ==
		rdma_get_src_port(listener));
	row("rdma_cm_id.ps", "rdma_create_id writes it", client->ps == RDMA_PS_TCP);
	row("rdma_cm_id.qp_type", "rdma_create_id writes it", client->qp_type == IBV_QPT_RC);
	row("rdma_cm_id.channel", "rdma_migrate_id writes it", client->channel == theirs &&
		!rdma_migrate_id(client, third) && client->channel == third && !rdma_migrate_id(client, theirs));
	assigned_queues(client);
	client->qp = own(client);
	listener->context = &client;
	CHECK(!rdma_connect(client, &param));
	server = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST);
	row("rdma_cm_id.context", "a request gets what its listener has", server->context == &client);
	row("rdma_cm_id.channel", "a request gets what its listener has", server->channel == ours);
	CHECK(!rdma_destroy_id(server) && expect(theirs, RDMA_CM_EVENT_REJECTED) == client);
	rdma_destroy_qp(client);
	CHECK(!rdma_destroy_id(client));
	CHECK(!rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(sync, NULL, loopback(rdma_get_src_port(listener)), 2000));
	row("rdma_cm_id.event", "the event of the last call of a synchronous identifier", sync->event &&
		sync->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	/* A program acknowledges it itself. */
	CHECK(!rdma_ack_cm_event(sync->event));
	sync->event = NULL;
	row("rdma_cm_id.event", "the next call acknowledges what is there", !rdma_resolve_route(sync, 2000) &&
		sync->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_destroy_id(sync));
	connections(0);
	connections(1);
	replies();
	CHECK(!rdma_destroy_id(listener) && !ibv_destroy_cq(cm_cq));
	rdma_destroy_event_channel(third);
	rdma_destroy_event_channel(theirs);
	rdma_destroy_event_channel(ours);
}

int main(void)
{
	struct pair p;

	open_device();
	make(&p);
	device(ctx->device);
	context();
	memory(&p);
	queues(&p);
	identifiers();
	unmake(&p);
	close_device();
	return wrong != 0;
}
