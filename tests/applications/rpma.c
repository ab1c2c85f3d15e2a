// librpma: a client writes to a server's memory, flushes, reads it back and compares.
//   rpma server ADDRESS PORT
//   rpma client ADDRESS PORT
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1 << 20 };

static void must(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: %s\n", what, rpma_err_2str(result));
        exit(1);
    }
}

static unsigned char pattern(size_t at) { return (unsigned char)(at * 7 % 251); }

static struct rpma_peer *peer(const char *address, enum rpma_util_ibv_context_type type) {
    struct ibv_context *context;
    struct rpma_peer *peer;
    must(rpma_utils_get_ibv_context(address, type, &context), "device");
    must(rpma_peer_new(context, &peer), "peer");
    return peer;
}

static void event(struct rpma_conn *connection, enum rpma_conn_event wanted) {
    enum rpma_conn_event got;
    must(rpma_conn_next_event(connection, &got), "event");
    if (got != wanted) {
        fprintf(stderr, "event %s\n", rpma_utils_conn_event_2str(got));
        exit(1);
    }
}

static void completion(struct rpma_conn *connection) {
    struct rpma_cq *queue;
    struct ibv_wc done;
    must(rpma_conn_get_cq(connection, &queue), "completion queue");
    must(rpma_cq_wait(queue), "wait");
    must(rpma_cq_get_wc(queue, 1, &done, NULL), "completion");
    if (done.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "completion: %s\n", ibv_wc_status_str(done.status));
        exit(1);
    }
}

static void serve(const char *address, const char *port, unsigned char *memory) {
    struct rpma_peer *own = peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
    struct rpma_ep *endpoint;
    struct rpma_mr_local *region;
    struct rpma_conn_req *request;
    struct rpma_conn *connection;
    const int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY;
    must(rpma_ep_listen(own, address, port, &endpoint), "listen");
    must(rpma_mr_reg(own, memory, SIZE, usage, &region), "register");
    size_t length;
    unsigned char described[64];
    must(rpma_mr_get_descriptor_size(region, &length), "size");
    must(rpma_mr_get_descriptor(region, described), "descriptor");
    struct rpma_conn_private_data data = {.ptr = described, .len = (uint8_t)length};
    must(rpma_ep_next_conn_req(endpoint, NULL, &request), "request");
    must(rpma_conn_req_connect(&request, &data, &connection), "connect");
    event(connection, RPMA_CONN_ESTABLISHED);
    event(connection, RPMA_CONN_CLOSED);
    must(rpma_conn_disconnect(connection), "disconnect");
    must(rpma_conn_delete(&connection), "delete");
    must(rpma_mr_dereg(&region), "deregister");
    must(rpma_ep_shutdown(&endpoint), "shutdown");
    must(rpma_peer_delete(&own), "peer");
}

static void use(const char *address, const char *port, unsigned char *memory) {
    struct rpma_peer *own = peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
    struct rpma_mr_local *out, *in;
    struct rpma_mr_remote *remote;
    struct rpma_conn_req *request;
    struct rpma_conn *connection;
    struct rpma_conn_private_data data;
    unsigned char *back = aligned_alloc(4096, SIZE);
    for (size_t at = 0; at < SIZE; at++) memory[at] = pattern(at), back[at] = 0;
    must(rpma_mr_reg(own, memory, SIZE, RPMA_MR_USAGE_WRITE_SRC, &out), "register");
    must(rpma_mr_reg(own, back, SIZE, RPMA_MR_USAGE_READ_DST, &in), "register");
    must(rpma_conn_req_new(own, address, port, NULL, &request), "request");
    must(rpma_conn_req_connect(&request, NULL, &connection), "connect");
    event(connection, RPMA_CONN_ESTABLISHED);
    must(rpma_conn_get_private_data(connection, &data), "private data");
    must(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote), "descriptor");
    must(rpma_write(connection, remote, 0, out, 0, SIZE, RPMA_F_COMPLETION_ON_ERROR, NULL), "write");
    must(rpma_flush(connection, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL),
         "flush");
    completion(connection);
    must(rpma_read(connection, in, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL), "read");
    completion(connection);
    printf("data %s\n", memcmp(memory, back, SIZE) ? "wrong" : "right");
    must(rpma_conn_disconnect(connection), "disconnect");
    event(connection, RPMA_CONN_CLOSED);
    must(rpma_mr_remote_delete(&remote), "remote");
    must(rpma_conn_delete(&connection), "delete");
    must(rpma_mr_dereg(&out), "deregister");
    must(rpma_mr_dereg(&in), "deregister");
    must(rpma_peer_delete(&own), "peer");
}

int main(int argc, char **argv) {
    unsigned char *memory = aligned_alloc(4096, SIZE);
    if (argc != 4 || !memory) return 2;
    memset(memory, 0, SIZE);
    (strcmp(argv[1], "server") ? use : serve)(argv[2], argv[3], memory);
    return 0;
}
